// Samplers over integers: the loops that each instruction set provides. The arithmetic is that of
// ir/integer_sampler.h. A tap beside the image has the weight 0 and the offset of some pixel.
#pragma once

#include <cstdint>

#include "tosaic/ir/attributes.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

inline constexpr std::int64_t kIntegerGridBlock = 128;  // outputs per block

// One spatial axis of the image.
struct IntegerGridAxis {
  std::int64_t multiplier = 0, round = 0;
  std::int32_t shift = 2, fraction = 1;
  std::int32_t centre = 0;  // the position of coordinate 0, with `fraction` fractional bits
  std::int32_t last = 0;    // the last pixel
  std::int32_t mirror = 0;  // reflection: positions are mirrored at -mirror / 2
  std::int32_t period = 0;  // and repeat after so many pixels; 0: all positions are 0
  std::int32_t stride = 0;  // elements between neighbours
};

struct IntegerGridLayout {
  ResizeMode mode = ResizeMode::kBilinear;
  GridPadding padding = GridPadding::kZeros;
  IntegerGridAxis axes[2];  // x, y
  std::int32_t grid_zp = 0, grid_low = 0, grid_high = 0;
  std::int32_t weight_bits = 0, product_shift = 0;
  std::int32_t input_zp = 0, input_low = 0;
};

struct IntegerTaps {
  alignas(64) std::int32_t offsets[16][kIntegerGridBlock];
  alignas(64) std::int32_t weights[16][kIntegerGridBlock];
};

struct IntegerGridKernels {
  // Reads `count` pairs (x, y) of i32.
  void (*taps)(const IntegerGridLayout& layout, const std::int32_t* grid, std::int64_t count,
               IntegerTaps& taps) = nullptr;
  // The sums of one plane, or its nearest pixels, to to[i * step].
  void (*sums_i8)(const IntegerGridLayout& layout, const IntegerTaps& taps, std::int64_t count,
                  const std::int8_t* plane, std::int32_t* to, std::int64_t step) = nullptr;
  void (*sums_i16)(const IntegerGridLayout& layout, const IntegerTaps& taps, std::int64_t count,
                   const std::int16_t* plane, std::int32_t* to, std::int64_t step) = nullptr;
  void (*nearest_i8)(const IntegerGridLayout& layout, const IntegerTaps& taps, std::int64_t count,
                     const std::int8_t* plane, std::int8_t* to, std::int64_t step) = nullptr;
  void (*nearest_i16)(const IntegerGridLayout& layout, const IntegerTaps& taps, std::int64_t count,
                      const std::int16_t* plane, std::int16_t* to, std::int64_t step) = nullptr;
};

namespace baseline {
extern const IntegerGridKernels kIntegerGridKernels;
}
namespace avx2 {
extern const IntegerGridKernels kIntegerGridKernels;
}
namespace avx512 {
extern const IntegerGridKernels kIntegerGridKernels;
}

}  // namespace tosaic::kernels
