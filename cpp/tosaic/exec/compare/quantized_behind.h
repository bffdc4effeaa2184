// quantized_behind: values at stage quantized that are quantized as the result of a later node.
//
//   float       conv -> relu -> quantize(zero point -128)
//   quantized   %c: i8 q(zp -128) = conv(..)     the negative numbers saturate: %c is relu's result already
//               %r: i8 q(zp -128) = relu(%c)     lower-to-integer drops this node
//
// fold-qdq moves a quantize node in front of operators that commute with it. If such an operator bounds or
// selects numbers, the integers in front of it need not represent the numbers that it drops. So they are not
// a counterpart of the float value that has their name, but of the float value after the operator.
#pragma once

#include <map>
#include <string>

#include "tosaic/ir/graph.h"

namespace tosaic::exec {

// Maps the name of each such value to the name of the later value whose quantization it has. Values with
// other readers are not in the map.
[[nodiscard]] std::map<std::string, std::string> quantized_behind(const Graph& quantized);

}  // namespace tosaic::exec
