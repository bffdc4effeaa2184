// scale_grid: which scale belongs to which element of a quantized tensor.
//
//   neither             scales [1]                  one scale for the tensor
//   axis                scales [channels]           one for each position of the axis
//   axis and groups     scales [channels, groups]   one for each position of the axis and each group of
//                                                   consecutive positions of another axis
//
//   axis 0, groups of 2 positions of axis 1, shape [2,4]:    0 0 1 1
//                                                            2 2 3 3
//
// The order of the scales is [channels, groups], whichever axis comes first in the shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tosaic/ir/dims.h"

namespace tosaic {

// Groups of `size` consecutive positions of `axis`.
struct Groups {
  std::int64_t axis = 0;
  std::int64_t size = 1;
  bool operator==(const Groups&) const = default;
};

// Null if `axis` and `groups` fit a tensor of this shape. Otherwise what is expected, for an error message.
[[nodiscard]] const char* scale_grid_fault(const Shape& shape, const std::optional<std::int64_t>& axis,
                                           const std::optional<Groups>& groups);

// The number of scales, if there is no scale_grid_fault().
[[nodiscard]] std::int64_t scale_count(const Shape& shape, const std::optional<std::int64_t>& axis,
                                       const std::optional<Groups>& groups);

class ScaleGrid {
 public:
  // The arguments must have no scale_grid_fault(), and the shape must have a number of elements that fits.
  ScaleGrid(const Shape& shape, const std::optional<std::int64_t>& axis, const std::optional<Groups>& groups);
  // The grid of QParams, or of the attributes of a quantize or dequantize node.
  template <class A>
  ScaleGrid(const Shape& shape, const A& qparams) : ScaleGrid(shape, qparams.axis, qparams.groups) {}

  // The index, in the list of scales, of the scale of the element with row-major index `i`.
  [[nodiscard]] std::size_t of(std::int64_t i) const {
    return static_cast<std::size_t>(i / behind_channel_ % channels_ * groups_ + i / behind_group_ % groups_);
  }
  // Elements [k * run(), (k + 1) * run()) have the same scale, for each k.
  [[nodiscard]] std::int64_t run() const { return run_; }

 private:
  std::int64_t channels_ = 1, groups_ = 1;
  std::int64_t behind_channel_ = 1, behind_group_ = 1;  // elements from one channel (group) to the next
  std::int64_t run_ = 1;
};

}  // namespace tosaic
