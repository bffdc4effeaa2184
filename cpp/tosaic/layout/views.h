// views: which values are views of the data of another value. They are the results of permutes, and of
// reshapes that only add or drop axes of extent 1. A transpose moves the data once for all of its views.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::layout {

// A value as a permutation of the data of another value. The value `of` owns the data and has `rank` axes.
// Axis i of the view is axis axes[i] of `of`, or kAdded: an axis of extent 1 that `of` does not have. Axes of
// `of` that the view does not have are of extent 1, too. A value that owns its data is a view of itself.
struct View {
  static constexpr std::int64_t kAdded = -1;

  ValueId of;
  Dims axes;
  std::size_t rank = 0;

  // Converts an order of this value's axes to one of the data's axes.
  [[nodiscard]] DimOrder of_data(const DimOrder& order) const;
};

// One view per value, by value index. A permute or reshape of a constant is not a view, since constants are
// transposed at compile time.
[[nodiscard]] std::vector<View> views_of(const Graph& graph);
// True if the node makes a view. Such a node computes nothing, so it chooses no order.
[[nodiscard]] bool makes_view(const Graph& graph, const Node& node);
// The order of the result of a node that makes a view, if its operand has `order`.
[[nodiscard]] DimOrder order_of_view(const Graph& graph, const Node& node, const DimOrder& order);

}  // namespace tosaic::layout
