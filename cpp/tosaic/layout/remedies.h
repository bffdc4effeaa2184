// remedies: what other orders at the borders would save. They are the caller's to declare.
//
// A plan in which the orders of borders are free tells what is best; borders that do not help are then left
// as they are. What a remedy leaves is what a plan of the graph with these borders moves.
#pragma once

#include <string>
#include <vector>

#include "tosaic/layout/plan.h"

namespace tosaic::layout {

// An input or output, and the order to declare for it.
struct DeclaredOrder {
  bool is_input = true;
  std::uint32_t index = 0;
  DimOrder order;
};

struct Remedy {
  std::vector<DeclaredOrder> declared;  // all of these together
  std::int64_t bytes = 0;               // that are transposed then
  std::size_t transposes = 0;
};

// Those of one border each, then the one of all borders that help; none where that is more than 32 borders.
// `free`: borders that may be declared.
[[nodiscard]] std::vector<Remedy> remedies_of(const Graph& graph, const LayoutPlan& plan,
                                              const Objective& objective, const FreeBorders& free);

// "Declare input 'x' channels_last: that leaves 1 transpose of 4608 bytes".
[[nodiscard]] std::string text_of(const Graph& graph, const Remedy& remedy);

}  // namespace tosaic::layout
