// match: what passes ask about a value: is it a constant, a splat, the result of a certain operator?
#pragma once

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// The producer of `id` if its operator is `op`, or null.
[[nodiscard]] inline const Node* produced_by(const Graph& graph, ValueId id, Op op) {
  if (!id.valid()) return nullptr;
  const Node* node = graph.producer(id);
  return node != nullptr && node->op == op ? node : nullptr;
}

}  // namespace tosaic::passes
