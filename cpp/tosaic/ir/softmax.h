// softmax: which operators are softmaxes, and how long their rows are.
#pragma once

#include "tosaic/ir/graph.h"

namespace tosaic {

[[nodiscard]] inline bool is_softmax(Op op) {
  return op == Op::kSoftmax || op == Op::kSafeSoftmax || op == Op::kLogSoftmax;
}

// The number of elements whose shares of a softmax add up to 1.
[[nodiscard]] inline std::int64_t row_of_softmax(const Graph& graph, const Node& softmax) {
  const Shape& shape = graph.type(graph.operands(softmax)[0]).shape;
  const std::int64_t axis = Graph::attrs<AxisDtypeAttrs>(softmax).axis;
  const auto rank = static_cast<std::int64_t>(shape.size());
  return rank == 0 ? 1 : shape[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)];
}

}  // namespace tosaic
