// recast: values in other shapes than their own, where fewer bytes are transposed.
//
//   pool -> view -> mul -> view -> pool      Two pools want channels last. The shape between the views has no
//                                            such axis, so as it stands mul computes row-major. What an
//                                            operator of elements computes does not depend on the shape:
//                                            in that of either pool, mul has channels last too.
//   pool -> view -> pool                     From one channels last to the other is one transpose in a shape
//                                            that has the axes of both, and two in the shapes as they are.
//
// So an elementwise operator may compute in any placement (placement.h) that its neighbours lead to, a
// reshape passes each on, and a permute those whose runs its axes can tell apart. What moves least among
// these is a problem as that of the plan (plan.h), and solved alike; an operator leaves its shape only where
// that saves something. Which shape that is then is up to the caller, as long as it has the cuts.

#pragma once

#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/placement.h"

namespace tosaic::layout {

// A node, and the cuts that the shape must have in which its result is computed, or passes.
struct Recast {
  NodeId node;
  Cuts cuts;
};

struct Recasts {
  std::vector<Recast> nodes;     // elementwise operators that leave their shapes
  std::vector<Recast> reshapes;  // that go through a third shape, in which the data is transposed
};

// True if the node computes each element by itself, whatever shape its operands are seen in.
[[nodiscard]] bool can_be_recast(const Graph& graph, const Node& node);
// True if some reshape changes more than axes of extent 1: else nothing can be saved.
[[nodiscard]] bool may_be_recast(const Graph& graph);
// Each in the order of the nodes; empty if nothing is saved.
[[nodiscard]] Recasts recasts_of(const Graph& graph, const Objective& objective);

// The cuts that a shape must have in which the node computes with this placement; none if there is none.
[[nodiscard]] std::optional<Cuts> needed_cuts(const Graph& graph, const Node& node,
                                              const Placement& placement);
// True if the node can compute in the shape, which has its number of elements, given the cuts it needs.
[[nodiscard]] bool fits(const Graph& graph, const Node& node, const Cuts& needed, const Shape& shape);
// An operand's shape that broadcasts to `shape` as the operand broadcasts to the node's result.
[[nodiscard]] Shape operand_shape(const Shape& operand, const Shape& result, const Shape& shape);
// The axis of `shape` that is this axis of the result, which it must have as a whole.
[[nodiscard]] std::int64_t axis_in(const Shape& result, std::int64_t axis, const Shape& shape);

}  // namespace tosaic::layout
