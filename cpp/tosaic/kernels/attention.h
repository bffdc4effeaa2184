// Scaled dot-product attention.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// Empty `run` when the request is not sdpa.
[[nodiscard]] Kernel prepare_attention(const Request& request);

}  // namespace tosaic::kernels
