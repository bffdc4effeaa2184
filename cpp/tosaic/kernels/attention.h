// Scaled dot-product attention.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// `run` is empty if the request is not sdpa.
[[nodiscard]] Kernel prepare_attention(const Request& request);

}  // namespace tosaic::kernels
