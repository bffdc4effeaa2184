// float_sampler: grid samples of f32 arrays, for kernels whose operands are, or become, such arrays.
#pragma once

#include <cstddef>
#include <functional>

#include "tosaic/ir/attributes.h"
#include "tosaic/kernels/kernel.h"
#include "tosaic/kernels/parallel.h"

namespace tosaic::kernels {

struct FloatSampler {
  std::function<void(const float* image, const float* grid, float* to, const Workspace& workspace)> run;
  std::size_t scratch_bytes = 0;
};

// `image` is the shape (N, C, H, W) or, with channels_last, (N, H, W, C); the result has the same order.
// `grid` is the shape (N, H', W', 2).
[[nodiscard]] FloatSampler float_sampler(const GridSampleAttrs& attrs, const Shape& image, const Shape& grid,
                                         bool channels_last, const Options& options);

}  // namespace tosaic::kernels
