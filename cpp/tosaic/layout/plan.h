// plan: chooses the dim order of every value so that as few bytes as possible are transposed.
//
// A node computes in one of its layout options (`Way`, ways.h). The plan considers the options to which the
// orders of the node's neighbours lead, starting at the graph inputs and outputs and at operators with
// requirements of their own; at most 8 per node. A value is made in the order that its producer's option
// says. It is transposed once for each other order that is read, however many readers and views (views.h)
// read it in that order. Constants cost nothing, since they are transposed at compile time. Among these
// choices the plan is minimal, unless the solver needed a search (solve.h), and it carries a certificate
// that `proven_bound` checks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/certificate.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/problem.h"
#include "tosaic/layout/ways.h"

namespace tosaic::layout {

// A copy of a value in another order than the one in which the value is made.
struct Transpose {
  ValueId value;
  DimOrder from, to;
  std::int64_t bytes = 0;
  Cost cost = 0;  // as the objective counts: the bytes, 1, or the caller's cost
};

// The time to make a plan: to find the layout options and state the problem, and to solve it.
struct PlanSeconds {
  double state = 0, solve = 0;
};

struct LayoutPlan {
  std::vector<DimOrder> order;        // by value index
  std::vector<Way> ways;              // by node index
  std::vector<DimOrder> outputs;      // by output index: its order at the graph output
  std::vector<Transpose> transposes;  // by value, then in the order of their first readers
  std::int64_t bytes = 0;             // of all transposes
  Cost cost = 0;                      // in the weights of `problem`: the objective, and more to decide ties
  Problem problem;                    // what was solved
  Certificate certificate;            // proven_bound(problem, certificate) is a lower bound of `cost`
  PlanSeconds seconds;
};

// The layout options among which the plan chooses, by node index.
struct Choices {
  std::vector<Way> ways;             // of all nodes, one node after another
  std::vector<std::uint32_t> first;  // by node: where its options begin; one more entry for the end
  [[nodiscard]] std::size_t size() const { return first.size() - 1; }
  [[nodiscard]] std::span<const Way> operator[](std::size_t node) const {
    return std::span(ways).subspan(first[node], first[node + 1] - first[node]);
  }
};

// False for unsigned integers and 48-bit integers, which TOSA cannot transpose. The plan has all readers
// read such values in the order in which they are made.
[[nodiscard]] bool can_be_moved(DType dtype);

[[nodiscard]] Choices choices_of(const Graph& graph);

// By index: the graph inputs and outputs whose order the plan may choose. Entries that are missing are false.
struct FreeBorders {
  std::vector<bool> inputs, outputs;
};

// Throws InvalidGraph, naming a value, if the caller's cost of a value is negative, or if the caller's
// costs, each counted uses_of times (problem.h), add up to 2^60 or more. Exceptions of the cost function are
// passed on.
[[nodiscard]] LayoutPlan plan_layout(const Graph& graph, const Objective& objective = Measure::kBytes,
                                     const FreeBorders& free = {});

}  // namespace tosaic::layout
