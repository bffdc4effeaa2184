// match: finds out what a value is: the result of a certain operator or, by ir/constant_value.h, a constant.
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
