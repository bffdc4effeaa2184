// ways: the layout options of an operator.
//
// A layout option (`Way`) is a dim order for every operand and result of a node. The node computes the same
// elements with each of its options.
//
//   convolution, pool, resize               channels last
//   pool whose windows are side by side     channels last, or any order: then it is a reduction (windows.h)
//   grid_sample                             image and result channels last, the grid row-major
//   elementwise, concat, slice, pad, flip,  any order, the same for all operands and results; a rescale with
//   repeat, expand, clone, index_select,    multipliers per channel has its channels innermost
//   tosa.reduce_*
//   gather                                  any order with the gathered axis innermost
//   permute                                 any order, relabelled for the result: no element moves
//   reduction                               any order; the remaining axes stay in that order
//   reshape                                 any order in which the axes that are joined are adjacent, and so
//                                           are the axes into which one is split (order.h, reshaped)
//   linear                                  any order with the channels innermost
//   matrix product                          any order with the two axes of a matrix innermost
//   everything else                         row-major
#pragma once

#include <optional>
#include <vector>

#include "tosaic/base/small_vector.h"
#include "tosaic/ir/graph.h"

namespace tosaic::layout {

// The order of an output at the boundary of the graph: its declared order, or, for a mutation, that of the
// input to which it is stored.
[[nodiscard]] const DimOrder& border_order(const Graph& graph, const Output& output);

struct Way {
  SmallVector<DimOrder, 3> operands;  // those of absent operands have no meaning
  SmallVector<DimOrder, 1> results;
};

// True for TOSA's reductions, which may also be in a graph at stage integer. They reduce one axis, which
// stays with extent 1.
[[nodiscard]] bool is_tosa_reduction(Op op);
// True if the input has several channels and each has weights of its own, which TOSA stores as (H, W, C, M).
// False for transposed convolutions.
[[nodiscard]] bool is_depthwise(const Shape& input, const Shape& weight, const ConvAttrs& attrs);

// The option that an operator wants: that of its own requirements, or row-major order if it has none.
[[nodiscard]] Way wanted_way(const Graph& graph, const Node& node);
// True if the wanted option is always among the plan's choices, even if no neighbour's order leads to it:
// TOSA has an operator for this option.
[[nodiscard]] bool is_always_tried(const Graph& graph, const Node& node);
// True if the wanted option is the only one.
[[nodiscard]] bool is_fixed(const Graph& graph, const Node& node);
// The option in which an operand, or a result, has this order. None if there is no such option, or if the
// order does not determine the orders of the other values (e.g. that of an operand that is broadcast).
[[nodiscard]] std::optional<Way> way_by_operand(const Graph& graph, const Node& node, std::size_t operand,
                                                const DimOrder& order);
[[nodiscard]] std::optional<Way> way_by_result(const Graph& graph, const Node& node, std::size_t result,
                                               const DimOrder& order);

}  // namespace tosaic::layout
