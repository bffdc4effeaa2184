// explain: who wants a transpose. On either side of it stands a region of the graph whose values keep one
// order among them; the nearest operators of it with needs of their own, or borders, are the reason.
#pragma once

#include <string>
#include <vector>

#include "tosaic/layout/plan.h"
#include "tosaic/layout/remedies.h"

namespace tosaic::layout {

// An operator, or a border, that lets a value have one order alone.
struct Demand {
  std::string who;          // a node's name; the path of an input or output
  std::string rule;         // "conv wants channels last"
  std::string module_path;  // of the operator's origin, where it has one
  std::string source;       // "model.py:41"
  std::string remedy;       // what the caller may do about it; empty: nothing
};

struct Explanation {
  std::vector<Demand> made, read;  // why the value is made in its order; why it is read in the other
};

// By transposes of the plan. A border has the first of the remedies that it is part of.
[[nodiscard]] std::vector<Explanation> explain(const Graph& graph, const LayoutPlan& plan,
                                               const std::vector<Remedy>& remedies = {});

}  // namespace tosaic::layout
