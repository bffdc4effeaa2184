// Views: permutes show one and the same data. What is transposed is the data, once, whichever of its views is
// read.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::layout {

// A value as the permutation `axes` of another: its axis i is axis axes[i] of `of`. Values that show their
// own data are views of themselves.
struct View {
  ValueId of;
  Dims axes;

  // An order of this value's axes, as one of the data's, and back.
  [[nodiscard]] DimOrder of_data(const DimOrder& order) const;
  [[nodiscard]] DimOrder of_view(const DimOrder& order) const;
};

// By value index. Constants show their own data only: they are transposed ahead.
[[nodiscard]] std::vector<View> views_of(const Graph& graph);
// True if the node makes a view: nothing is computed, in no order.
[[nodiscard]] bool makes_view(const Graph& graph, const Node& node);

}  // namespace tosaic::layout
