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
  std::string name;  // of the constant of the program
  std::string message;
};

// The notes on a graph at stage tosa, in its order. `source` is the graph that was lowered, whose names they
// have.
[[nodiscard]] std::vector<ConstantNote> constant_notes(const Graph& graph, const Graph& source,
                                                       const target::TargetSpec& target);

}  // namespace tosaic::passes
