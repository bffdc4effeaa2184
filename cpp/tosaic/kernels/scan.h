// Operators along one axis whose result depends on positions: argmax, argmin, cumsum, diff, tosa.argmax.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// `run` is empty if the request is not one of these operators.
[[nodiscard]] Kernel prepare_scan(const Request& request);

}  // namespace tosaic::kernels
