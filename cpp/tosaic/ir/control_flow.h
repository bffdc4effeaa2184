// control_flow: facts about a node that its operands and results do not show: its regions and its effects.
#pragma once

#include <algorithm>

#include "tosaic/ir/graph.h"

namespace tosaic {

// True for a branch. Its regions are `then` and `else`. Its operands are the condition, then the inputs of
// the regions.
[[nodiscard]] inline bool is_cond(Op op) { return op == Op::kCond || op == Op::kTosaCondIf; }

// True for a loop. Its regions are the condition and the body. Its operands are the inputs of both regions.
[[nodiscard]] inline bool is_while_loop(Op op) { return op == Op::kWhileLoop || op == Op::kTosaWhileLoop; }

// Operators whose meaning tosaic does not know. Passes must not remove, merge or fold them.
[[nodiscard]] inline bool is_foreign(Op op) { return op == Op::kOpaque || op == Op::kTosaCustom; }

// True if the node, or a node in its regions, reads or writes a variable. Passes must not remove such a node
// or change the order of such nodes.
[[nodiscard]] inline bool touches_variables(const Node& node) {
  if (info(node.op).has(kEffect)) return true;
  return std::any_of(node.regions.begin(), node.regions.end(), [](const auto& region) {
    return std::any_of(region->nodes().begin(), region->nodes().end(),
                       [](const Node& inner) { return touches_variables(inner); });
  });
}

}  // namespace tosaic
