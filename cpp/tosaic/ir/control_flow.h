// Control flow and effects: what a pass must know of a node beyond its data flow.
#pragma once

#include <algorithm>

#include "tosaic/ir/graph.h"

namespace tosaic {

// Regions (then, else); operands: the condition, then what the regions take.
[[nodiscard]] inline bool is_cond(Op op) { return op == Op::kCond || op == Op::kTosaCondIf; }

// Regions (condition, body); operands: what both take.
[[nodiscard]] inline bool is_while_loop(Op op) { return op == Op::kWhileLoop || op == Op::kTosaWhileLoop; }

// Operators with a meaning that only their user knows.
[[nodiscard]] inline bool is_foreign(Op op) { return op == Op::kOpaque || op == Op::kTosaCustom; }

// True if the node, or one in its regions, reads or writes a variable: it stays, and stays in order.
[[nodiscard]] inline bool touches_variables(const Node& node) {
  if (info(node.op).has(kEffect)) return true;
  return std::any_of(node.regions.begin(), node.regions.end(), [](const auto& region) {
    return std::any_of(region->nodes().begin(), region->nodes().end(),
                       [](const Node& inner) { return touches_variables(inner); });
  });
}

}  // namespace tosaic
