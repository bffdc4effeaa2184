// remedies: orders of graph inputs and outputs that would save transposes if the caller declared them.
//
// A plan in which the orders of inputs and outputs are free shows which orders are best. Changes that do not
// help are then removed from the remedy. The bytes and transposes of a remedy come from a plan of the
// graph with its orders declared.
#pragma once

#include <string>
#include <vector>

#include "tosaic/layout/plan.h"

namespace tosaic::layout {

// An input or output of the graph, and the dim order that the caller should declare for it.
struct DeclaredOrder {
  bool is_input = true;
  std::uint32_t index = 0;
  DimOrder order;
};

struct Remedy {
  std::vector<DeclaredOrder> declared;  // all are to be declared together
  std::int64_t bytes = 0;               // bytes that are still transposed
  std::size_t transposes = 0;
};

// The remedies that lower the cost of the plan. If only one input or output helps, there is one remedy. If
// several help, there is a remedy for each that lowers the cost on its own, and a last remedy that changes
// all of them together. The list is empty if no remedy lowers the cost, or if more than 32 inputs and outputs
// would change. `free` has the inputs and outputs whose order the caller may declare.
[[nodiscard]] std::vector<Remedy> remedies_of(const Graph& graph, const LayoutPlan& plan,
                                              const Objective& objective, const FreeBoundaries& free);

// "Declare input 'x' channels_last: that leaves 1 transpose of 4608 bytes".
[[nodiscard]] std::string text_of(const Graph& graph, const Remedy& remedy);

}  // namespace tosaic::layout
