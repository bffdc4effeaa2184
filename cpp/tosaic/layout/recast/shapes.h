// shapes: the shapes in which an elementwise operator may compute.
#pragma once

#include <optional>

#include "tosaic/base/small_vector.h"
#include "tosaic/ir/graph.h"
#include "tosaic/layout/placement.h"
#include "tosaic/target/layout_needs.h"

namespace tosaic::layout {

// True if the node is elementwise and may compute in another shape: it is not composite, has one result of
// two or more elements, has an operand of the result's shape that is not a constant, and neither the result
// nor any operand that is not a constant has per-channel qparams or a dtype that cannot be transposed.
[[nodiscard]] bool can_be_recast(const Graph& graph, const Node& node, const target::LayoutNeeds& needs);
// The cuts (row-major strides, placement.h) that a shape must have so that the node can compute in it, with
// its result stored in `placement`. Returns nothing if there is no such shape.
[[nodiscard]] std::optional<Cuts> needed_cuts(const Graph& graph, const Node& node,
                                              const Placement& placement);

// For each axis of the result: true if the operand has that axis and is not broadcast along it.
[[nodiscard]] SmallVector<bool, 8> has_axes(const Shape& operand, const Shape& result);
// The axis of `shape` that contains `stride`: s <= `stride` < s * n, where s is the row-major stride of the
// axis and n its extent, which is not 1.
[[nodiscard]] std::size_t axis_with(const Shape& shape, std::int64_t stride);

[[nodiscard]] inline const Shape& shape_of(const Graph& graph, ValueId value) {
  return graph.type(value).shape;
}
[[nodiscard]] inline bool is_constant(const Graph& graph, ValueId value) {
  return graph.value(value).kind == ValueKind::kConstant;
}
// True if the operand is a table. Its entries are a list, which does not depend on the shape.
[[nodiscard]] inline bool is_table(const Node& node, std::size_t operand) {
  return node.op == Op::kTosaTable && operand == 1;
}

}  // namespace tosaic::layout
