// grid_volume: samples of a volume at the positions of a grid: torch's grid_sampler_3d.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// The kernel of grid_sample for a volume (N, C, D, H, W) and a grid (N, D', H', W', 3) of x, y, z.
[[nodiscard]] Kernel prepare_grid_volume(const Request& request);

}  // namespace tosaic::kernels
