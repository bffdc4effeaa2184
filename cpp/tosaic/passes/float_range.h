// Float ranges: what is known of the size of float values, by interval arithmetic front to back.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Every element that is not NaN lies in [min, max]; those that are not 0 are at least `least` in magnitude.
struct FloatRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double least = 0;
};

// Of a canonical graph; integers and bool count with what their dtype holds. Intervals of rounded arithmetic
// are widened by more than the rounding. A constant is read when its range is asked for, not before: weights
// are large, and no rule needs theirs. The graph must outlive this.
class FloatRanges {
 public:
  explicit FloatRanges(const Graph& graph);
  [[nodiscard]] const FloatRange& of(ValueId value) const;

 private:
  const Graph& graph_;
  mutable std::vector<std::optional<FloatRange>> ranges_;  // constants: once asked for
};

}  // namespace tosaic::passes
