// Reductions that keep track of positions: argmax, argmin, cumsum, diff.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// Empty `run` when the request is not one of these operators.
[[nodiscard]] Kernel prepare_scan(const Request& request);

}  // namespace tosaic::kernels
