// Float ranges: bounds on the elements of float values, by interval arithmetic from inputs to outputs.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Every element that is not NaN is in [min, max], and if it is not 0, its magnitude is at least `least`.
struct FloatRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double least = 0;
};

// The ranges of the values of a canonical graph. Integers and bool that are not constant have the range of
// their dtype. Each interval is widened by more than the rounding of its operator. A constant is read only
// when of() is called for it: weights are large, and no rule needs their range. The graph must outlive this
// object.
class FloatRanges {
 public:
  explicit FloatRanges(const Graph& graph);
  [[nodiscard]] const FloatRange& of(ValueId value) const;

 private:
  const Graph& graph_;
  mutable std::vector<std::optional<FloatRange>> ranges_;  // by value; of a constant, none before of()
};

}  // namespace tosaic::passes
