// creation: kernels without operands (arange, full), and the fill that pad uses.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// `value` as one element of `dtype`. For a float dtype it is rounded half to even. For an integer dtype, a
// float is truncated and saturates, and an integer is reduced to its low bits.
[[nodiscard]] std::vector<std::byte> scalar_bytes(const Scalar& value, DType dtype);
// Writes `count` copies of one element.
void fill_elements(std::byte* to, std::span<const std::byte> element, std::int64_t count);

}  // namespace tosaic::kernels
