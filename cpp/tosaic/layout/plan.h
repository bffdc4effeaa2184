// plan: the dim order of every value, and the transposes between them: as few bytes as there can be.
//
// A node computes in one of its ways (ways.h). Those it may choose among are the ones that its neighbours'
// orders lead to, starting at the borders and at operators with needs of their own. A value is made in the
// order of its producer's way and transposed once for each other order that is read, whoever reads it and by
// whichever view (views.h); constants cost nothing, since they are transposed ahead. Among these choices the
// plan is minimal, and carries a certificate of it that `proven_bound` checks.
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

// A value in another order than the one it is made in.
struct Transpose {
  ValueId value;
  DimOrder from, to;
  std::int64_t bytes = 0;
  Cost cost = 0;  // what the objective counts it: its bytes, 1, or what the caller said
};

// Of making a plan: ways and statement, solution.
struct PlanSeconds {
  double state = 0, solve = 0;
};

struct LayoutPlan {
  std::vector<DimOrder> order;        // by value index
  std::vector<Way> ways;              // by node index
  std::vector<DimOrder> outputs;      // by output index: of its border
  std::vector<Transpose> transposes;  // by value, then in the order of their first readers
  std::int64_t bytes = 0;             // of all transposes
  Cost cost = 0;                      // what the objective gives
  Problem problem;                    // what was solved; `proven_bound` of both: what no choice goes below
  Certificate certificate;
  PlanSeconds seconds;
};

// The ways that each node, by index, may choose among.
struct Choices {
  std::vector<Way> ways;             // node by node
  std::vector<std::uint32_t> first;  // by node, and one more
  [[nodiscard]] std::size_t size() const { return first.size() - 1; }
  [[nodiscard]] std::span<const Way> operator[](std::size_t node) const {
    return std::span(ways).subspan(first[node], first[node + 1] - first[node]);
  }
};

// TOSA moves neither unsigned integers nor sums of 48 bits: what reads them does so in the order they have.
[[nodiscard]] bool can_be_moved(DType dtype);

[[nodiscard]] Choices choices_of(const Graph& graph);

// Borders whose order is part of the choice; empty: none.
struct FreeBorders {
  std::vector<bool> inputs, outputs;
};

// Throws InvalidGraph, with the value, for a cost of the caller's that is negative, and for such that their
// sum over all readers has no room in 64 bits; whatever the cost function throws comes through.
[[nodiscard]] LayoutPlan plan_layout(const Graph& graph, const Objective& objective = Measure::kBytes,
                                     const FreeBorders& free = {});

}  // namespace tosaic::layout
