// explain: tells why each transpose of a plan is there.
//
// On either side of a transpose is a region of the graph whose nodes pass one order on to each other. The
// reasons are the nearest operators in that region with requirements of their own, and the nearest graph
// inputs and outputs.
#pragma once

#include <string>
#include <vector>

#include "tosaic/layout/plan.h"
#include "tosaic/layout/remedies.h"

namespace tosaic::layout {

// An operator, or a graph input or output, that restricts the order of a value.
struct Demand {
  std::string who;          // a node's name; the path of an input or output
  std::string rule;         // "conv wants channels last"
  std::string module_path;  // the module path of the operator's origin; or empty
  std::string source;       // "model.py:41"
  std::string remedy;       // what the caller can do about it; empty if nothing
};

struct Explanation {
  std::vector<Demand> made, read;  // why the value is made in its order, and why it is read in the other one
};

// One explanation per transpose of the plan, in the same order. The demand of an input or output quotes the
// first of `remedies` that changes this input or output.
[[nodiscard]] std::vector<Explanation> explain(const Graph& graph, const LayoutPlan& plan,
                                               const std::vector<Remedy>& remedies = {});

}  // namespace tosaic::layout
