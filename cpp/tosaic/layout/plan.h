// plan: chooses the dim order of every value so that as few bytes as possible are transposed.
//
// A node computes in one of its layout options (options.h). The plan chooses one for each node. An option is
// considered if a neighbour's dim order fits one of its operands or results (choices.h). A value is made in
// the order that its producer's option says. It is transposed once for each other order in which it is read,
// however many readers and views (views.h) read it in that order. Constants cost nothing, since they are
// transposed at compile time. No choice of the considered options costs less than the plan, unless the solver
// needed a search (solver/solver.h). In both cases the plan carries a certificate, a proof of a lower bound
// of the cost, which `proven_bound` checks.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/choices.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/options.h"
#include "tosaic/layout/solver/solver.h"

namespace tosaic::layout {

// A copy of a value in another order than the order in which the value is made.
struct Transpose {
  ValueId value;
  DimOrder from, to;
  std::int64_t bytes = 0;
  Cost cost = 0;  // as the objective counts it: the bytes, 1 for kCount, or the caller's cost
};

// The time to make a plan: to find the layout options and state the problem, and to solve it.
struct PlanSeconds {
  double state = 0, solve = 0;
};

struct LayoutPlan {
  std::vector<DimOrder> order;        // by value index
  std::vector<LayoutOption> options;  // by node index
  std::vector<DimOrder> outputs;      // by output index: its order at the graph output
  std::vector<Transpose> transposes;  // by value, then in the order of their first readers
  std::int64_t bytes = 0;             // bytes of all transposes
  Cost cost = 0;                      // the cost by the weights of `problem`, which also decide ties
  Problem problem;                    // what was solved
  Certificate certificate;            // proven_bound(problem, certificate) is a lower bound of `cost`
  target::LayoutNeeds needs;          // the needs for which the plan was made
  PlanSeconds seconds;
};

// The graph inputs and outputs, by index, whose order the plan may choose. Missing entries are false.
struct FreeBoundaries {
  std::vector<bool> inputs, outputs;
};

// Throws InvalidGraph, naming a value, if the caller's cost of a value is negative, or if the caller's
// costs, each counted uses_of times (solver/solver.h), add up to 2^60 or more. Exceptions of the cost
// function are passed on.
[[nodiscard]] LayoutPlan plan_layout(const Graph& graph, const Objective& objective = Measure::kBytes,
                                     const FreeBoundaries& free = {},
                                     const target::LayoutNeeds& needs = target::tosa_layout_needs());

}  // namespace tosaic::layout
