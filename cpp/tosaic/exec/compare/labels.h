// labels: the qparams of the values of a graph, as far as they are known.
//
//   canonical   %relu: i8[1,8,6,6] order(0,2,3,1) q(i8 scale 0.5 zp 3)
//   graph       %relu: i8[1,6,6,8] = tosa.rescale(..)      scale 0.5, zero point 3: the value of the same
//                                                          name
//               %part: i8[1,6,6,4] = tosa.slice(%relu)     the same: its elements were moved
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::exec {

// The qparams by value id: from the graph, otherwise from the canonical value of the same name, if
// `canonical` is not null, otherwise from the operands whose elements were moved. They are not known if a
// later node moves the same elements to a value with other qparams. For example, 2 * x may have the integers
// of x and twice the scale, without a node that computes it.
[[nodiscard]] std::vector<QParamsRef> labels(const Graph& graph, const Graph* canonical);

}  // namespace tosaic::exec
