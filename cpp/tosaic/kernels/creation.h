// Values from nothing: arange, full, and the fill that padding uses.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// Empty `run` when the request is neither arange nor full.
[[nodiscard]] Kernel prepare_creation(const Request& request);

// One element of `dtype`: integers saturate, floats are rounded half to even.
[[nodiscard]] std::vector<std::byte> scalar_bytes(const Scalar& value, DType dtype);
// Writes `count` copies of one element.
void fill_elements(std::byte* to, std::span<const std::byte> element, std::int64_t count);

}  // namespace tosaic::kernels
