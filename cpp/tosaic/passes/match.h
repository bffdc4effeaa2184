// match: finds out what a value is: the result of a certain operator, the result of a slice_scatter or, by
// ir/constant_value.h, a constant.
#pragma once

#include <optional>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// The producer of `id` if its operator is `op`, or null.
[[nodiscard]] inline const Node* produced_by(const Graph& graph, ValueId id, Op op) {
  if (!id.valid()) return nullptr;
  const Node* node = graph.producer(id);
  return node != nullptr && node->op == op ? node : nullptr;
}

// The elements [start, end) of an axis.
struct AxisRange {
  std::size_t axis = 0;
  std::int64_t start = 0, end = 0;
};

// The elements that a slice_scatter writes, if they are contiguous along the axis. Returns nothing otherwise.
[[nodiscard]] inline std::optional<AxisRange> written_range(const Graph& graph, const Node* node) {
  if (node == nullptr || node->op != Op::kSliceScatter) return std::nullopt;
  const auto& attrs = Graph::attrs<SliceAttrs>(*node);
  const auto axis = static_cast<std::size_t>(attrs.axis);
  const std::int64_t count = graph.type(graph.operands(*node)[1]).shape[axis];
  if (attrs.step != 1 && count != 1) return std::nullopt;
  return AxisRange{axis, attrs.start, attrs.start + count};
}

}  // namespace tosaic::passes
