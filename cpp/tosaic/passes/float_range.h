// Float ranges: what is known of the size of float values, by interval arithmetic front to back.
#pragma once

#include <limits>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Every element that is not NaN lies in [min, max]; those that are not 0 are at least `least` in magnitude.
struct FloatRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double least = 0;
};

// By value, of a canonical graph; integers and bool count with what their dtype holds. Intervals of rounded
// arithmetic are widened by more than the rounding.
[[nodiscard]] std::vector<FloatRange> float_ranges(const Graph& graph);

}  // namespace tosaic::passes
