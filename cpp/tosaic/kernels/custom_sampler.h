// custom_sampler: the kernel of the tosa.custom that ir/custom_sampler.h describes.
#pragma once

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// The request has the operands of the custom operator, with channels last. `op` and `attrs` of the request
// are not read. Throws UnsupportedOp if the operator does not allow these dtypes.
[[nodiscard]] Kernel prepare_custom_sampler(const GridSampleAttrs& attrs, const Request& request);

}  // namespace tosaic::kernels
