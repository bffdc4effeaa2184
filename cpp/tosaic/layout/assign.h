// assign: the simplest legal dim orders, front to back.
//
// Convolutions, pools and resizes make channels-last values; elementwise operators, concat, slice, pad and
// keepdim reductions follow their operands; a permute or a reduction that turns channels-last into row-major
// order is free; everything else wants and makes row-major order. A plan says only what order each value has;
// transposes appear where a consumer wants another one, when the plan is carried out.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::layout {

struct LayoutPlan {
  std::vector<DimOrder> order;  // by value index
};

[[nodiscard]] LayoutPlan assign(const Graph& graph);

// The order of permute(x) if no element moves: x with `order` relabelled by `perm`.
[[nodiscard]] DimOrder relabelled(const DimOrder& order, const Dims& perm);
// The order of x with `axes` removed.
[[nodiscard]] DimOrder without_axes(const DimOrder& order, std::size_t rank, const Dims& axes);
// True if a tensor of this logical shape lies in memory alike under both orders (axes of extent 1 do not
// count).
[[nodiscard]] bool same_in_memory(const Shape& shape, const DimOrder& a, const DimOrder& b);

}  // namespace tosaic::layout
