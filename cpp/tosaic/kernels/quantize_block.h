// quantize_block: the loops that quantize floats at the boundary of a program.
#pragma once

#include <cstdint>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/isa/each_set.h"

namespace tosaic::kernels {

// Parameters as floats, which are exact: the zero point and the bounds have at most 17 bits.
struct NarrowQuantization {
  float inverse_scale = 1, zero_point = 0, low = 0, high = 0;
};

// Each integer is bound_quantized(quantize_unbounded(x)) of ir/quantized_value.h.
struct QuantizeKernels {
  void (*to_bytes)(const float* from, std::int64_t count, const NarrowQuantization& by,
                   std::int8_t* to) = nullptr;
  void (*to_words)(const float* from, std::int64_t count, const NarrowQuantization& by,
                   std::int16_t* to) = nullptr;
};

// The loops that were compiled for an instruction set.
[[nodiscard]] const QuantizeKernels& quantize_kernels(Isa isa);

TOSAIC_IN_EACH_SET(extern const QuantizeKernels kQuantizeKernels;)

}  // namespace tosaic::kernels
