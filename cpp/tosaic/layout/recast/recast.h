// recast: finds values that should be computed in other shapes, so that fewer bytes are transposed.
//
//   pool -> view -> mul -> view -> pool      Two pools want channels last. The shape between the views has no
//                                            such axis, so in that shape mul computes row-major. What an
//                                            elementwise operator computes does not depend on the shape: in
//                                            the shape of either pool, mul has channels last, too.
//   pool -> view -> pool                     The two shapes have different channels last orders. To get from
//                                            one to the other, two transposes are needed in the shapes of
//                                            the graph, but only one in a shape that has the axes of both.
//
// So an elementwise operator may compute in any placement (placement.h: the order of the elements in memory,
// for any shape) to which its neighbours lead. A reshape passes on any placement. A permute passes on the
// placements that can be relabelled (placement.h). The choice with the least cost of transposes is a problem
// like that of the plan (plan.h) and is solved in the same manner. An operator changes its shape only if that
// saves something. The result lists the cuts (row-major strides, placement.h) that each new shape must have;
// the caller chooses a shape that has them.
//
//   shapes.h           the shapes in which a node may compute
//   placed_options.h   the placements in which a node may compute
//   placed_problem.h   the choice of a placement for each node, as a problem for the solver
//   recast.cpp         the solution, read as recasts
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/layout/objective.h"
#include "tosaic/layout/placement.h"

namespace tosaic::layout {

// A node with a new shape: the shape in which an elementwise operator is to compute, or an intermediate shape
// through which a reshape is to go. The caller may choose any shape that has `cuts` (placement.h).
struct Recast {
  NodeId node;
  Cuts cuts;
};

struct Recasts {
  std::vector<Recast> nodes;     // elementwise operators that compute in another shape
  std::vector<Recast> reshapes;  // reshapes that go through a third shape; the data is transposed there
};

// True if some reshape changes more than axes of extent 1. If none does, nothing can be saved.
[[nodiscard]] bool may_be_recast(const Graph& graph);
// Both lists of the result are in the order of the nodes. Both are empty if nothing is saved, or if the costs
// are too large to be added up.
[[nodiscard]] Recasts recasts_of(const Graph& graph, const Objective& objective,
                                 const target::LayoutNeeds& needs);

// True if the node, which needs these cuts, can compute in `shape`, which has as many elements as its result
// and at most `most_axes` axes.
[[nodiscard]] bool fits(const Graph& graph, const Node& node, const Cuts& needed, const Shape& shape,
                        std::size_t most_axes);
// The shape of an operand that broadcasts to `shape` as `operand` broadcasts to the node's `result`.
[[nodiscard]] Shape operand_shape(const Shape& operand, const Shape& result, const Shape& shape);
// `result` and `shape` are shapes of the same elements. Returns the axis of `shape` that has the extent and
// the row-major stride of axis `axis` of `result`. There must be such an axis.
[[nodiscard]] std::int64_t axis_in(const Shape& result, std::int64_t axis, const Shape& shape);

}  // namespace tosaic::layout
