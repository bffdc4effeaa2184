// group_scales: scales of a weight, one for each channel and each group of input channels.
//
//   fitting = max |w| / min(-qmin, qmax)            the largest element of the group just fits
//   scale   = the best of fitting * r               r from 1 to 0.6 in 20 even steps
//
// The best scale has the least squared error of rounding and clamping; of two equal errors, the larger scale
// wins. Elements are rounded in f32, as the annotation observer TosaicPerChannelGroupObserver does, and
// squared errors are added up in f64, in the order of the elements. The observer adds them up in f32, so it
// may choose another scale if two errors are nearly equal.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tosaic/ir/dims.h"
#include "tosaic/ir/scale_grid.h"

namespace tosaic::quant {

struct ScaleSearch {
  std::int64_t qmin = -127;
  std::int64_t qmax = 127;
  bool search = true;  // false: the fitting scale
  float least_scale = std::numeric_limits<float>::epsilon();
};

// The scale of a group of weights. Infinities and NaN count as zero.
[[nodiscard]] float scale_of_group(std::span<const float> weights, const ScaleSearch& search);

// The scales of a row-major weight, in the order [channels, groups] of ir/scale_grid.h. A scale is for one
// position of `axis`, groups.size positions of groups.axis, and all positions of other axes. Zero points are
// 0. Throws QuantMismatch unless qmin < 0 < qmax, both have at most 32 bits and least_scale is positive and
// finite, and LayoutMismatch for axes or a group size that do not suit the shape, or another number of
// weights.
[[nodiscard]] std::vector<float> group_scales(std::span<const float> weights, const Shape& shape,
                                              std::int64_t axis, const Groups& groups,
                                              const ScaleSearch& search);

}  // namespace tosaic::quant
