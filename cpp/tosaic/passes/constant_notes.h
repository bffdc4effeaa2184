// constant_notes: what a caller should know of the constants of a lowered graph.
#pragma once

#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/target/spec.h"

namespace tosaic::passes {

struct ConstantNote {
  // "grown-weight": stored in a wider dtype than the program has; "two-layouts": stored in several forms
  std::string rule;
  std::string name;  // of the constant in the source graph
  std::string message;
};

// The notes on the constants of `graph`, which is at stage tosa, in the order of its values. `source` is the
// graph that was lowered; the notes name constants as it does.
[[nodiscard]] std::vector<ConstantNote> constant_notes(const Graph& graph, const Graph& source,
                                                       const target::TargetSpec& target);

}  // namespace tosaic::passes
