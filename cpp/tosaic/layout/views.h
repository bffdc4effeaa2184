// Views: permutes, and reshapes that add or drop axes of extent 1, show one and the same data. What is
// transposed is the data, once, whichever of its views is read.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::layout {

// A value as a permutation of another: its axis i is axis axes[i] of `of`, which has `rank` axes, or kAdded,
// of extent 1; axes of the data that are missing have extent 1, too. Values that show their own data are
// views of themselves.
struct View {
  static constexpr std::int64_t kAdded = -1;

  ValueId of;
  Dims axes;
  std::size_t rank = 0;

  // An order of this value's axes, as one of the data's, and back.
  [[nodiscard]] DimOrder of_data(const DimOrder& order) const;
  [[nodiscard]] DimOrder of_view(const DimOrder& order) const;
};

// By value index. Constants show their own data only: they are transposed ahead.
[[nodiscard]] std::vector<View> views_of(const Graph& graph);
// True if the node makes a view: nothing is computed, in no order.
[[nodiscard]] bool makes_view(const Graph& graph, const Node& node);
// The order of the view that such a node makes of an operand with this order.
[[nodiscard]] DimOrder order_of_view(const Graph& graph, const Node& node, const DimOrder& order);

}  // namespace tosaic::layout
