// Ways: the orders that an operator can compute in. A way gives every operand and result of a node its order;
// what an operator computes with is the same in each.
//
//   convolution, pool, resize   channels last
//   pool whose windows lie side by side   that, or any: then it is a reduction (windows.h)
//   grid_sample   image and result channels last, the grid row-major
//   elementwise, concat, slice, pad, flip, repeat, expand, index_select   any, the same for all
//   gather                      any with the axis that is picked along innermost
//   permute                     any, relabelled: no element moves
//   reduction                   any; axes that go leave the order of the others
//   reshape                     any in which the axes that become one, or one axis that becomes several, stay
//   together linear                      any with the channels innermost matrix product              any with
//   the two axes of a matrix innermost everything else             row-major
#pragma once

#include <optional>
#include <vector>

#include "tosaic/base/small_vector.h"
#include "tosaic/ir/graph.h"

namespace tosaic::layout {

// The order in which an output is read: of its border, or of the input that it is stored to.
[[nodiscard]] const DimOrder& border_order(const Graph& graph, const Output& output);

struct Way {
  SmallVector<DimOrder, 3> operands;  // absent ones have any
  SmallVector<DimOrder, 1> results;
};

// TOSA's reductions, which stand at stage integer too: along one axis, which stays with extent 1.
[[nodiscard]] bool is_tosa_reduction(Op op);
// True if each channel of the input has weights of its own, which TOSA has in (H, W, C, M).
[[nodiscard]] bool is_depthwise(const Shape& input, const Shape& weight, const ConvAttrs& attrs);

// The way that an operator wants: its own needs, else row-major order.
[[nodiscard]] Way wanted_way(const Graph& graph, const Node& node);
// True if the way that it wants is one that TOSA has an operator for, so that it is tried even where no
// neighbour leads to it.
[[nodiscard]] bool is_always_tried(const Graph& graph, const Node& node);
// True if there is only this way.
[[nodiscard]] bool is_fixed(const Graph& graph, const Node& node);
// The way in which an operand, or a result, has that order; none if there is none, or if it does not tell.
[[nodiscard]] std::optional<Way> way_by_operand(const Graph& graph, const Node& node, std::size_t operand,
                                                const DimOrder& order);
[[nodiscard]] std::optional<Way> way_by_result(const Graph& graph, const Node& node, std::size_t result,
                                               const DimOrder& order);

}  // namespace tosaic::layout
