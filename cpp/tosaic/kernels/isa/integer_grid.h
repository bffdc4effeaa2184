// Samplers over integers: the loops that each instruction set provides. The arithmetic is that of
// ir/integer_sampler.h. A tap outside of the image has the weight 0 and the offset of some pixel.
//
// Sums read a prepared image: max(q, input_low) - input_zp, as i16 for an image of i8, and as i32 for one of
// i16. It is one plane, or all channels with the channels innermost.
#pragma once

#include <cstdint>

#include "tosaic/ir/attributes.h"
#include "tosaic/kernels/isa/each_set.h"
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
  std::int32_t period = 0;  // reflection: positions repeat after so many pixels; 0: all are 0
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
  bool any_outside = false;  // some weight of a nearest sample is 0
};

// How the pixels of an image of T are prepared.
template <class T>
struct PreparedPixel;
template <>
struct PreparedPixel<std::int8_t> {
  using Type = std::int16_t;
};
template <>
struct PreparedPixel<std::int16_t> {
  using Type = std::int32_t;
};

// The loops for an image of T.
template <class T>
struct IntegerGridSums {
  using Pixel = typename PreparedPixel<T>::Type;
  void (*prepare)(const IntegerGridLayout& layout, const T* from, std::int64_t count, Pixel* to) = nullptr;
  void (*plane)(const IntegerGridLayout& layout, const IntegerTaps& taps, std::int64_t count,
                const Pixel* plane, std::int32_t* to) = nullptr;
  // All channels, a multiple of 4: to[i * channels + c].
  void (*pixels)(const IntegerGridLayout& layout, const IntegerTaps& taps, std::int64_t count,
                 const Pixel* image, std::int64_t channels, std::int32_t* to) = nullptr;
  // Nearest samples of planes of the image, which is not prepared. The strides are those from plane to plane.
  void (*nearest)(const IntegerGridLayout& layout, const IntegerTaps& taps, std::int64_t count,
                  const T* planes, std::int64_t from_stride, std::int64_t num_planes, T* to,
                  std::int64_t to_stride) = nullptr;
};

struct IntegerGridKernels {
  // Reads `count` pairs (x, y) of i32.
  void (*taps)(const IntegerGridLayout& layout, const std::int32_t* grid, std::int64_t count,
               IntegerTaps& taps) = nullptr;
  IntegerGridSums<std::int8_t> i8;
  IntegerGridSums<std::int16_t> i16;
};

TOSAIC_IN_EACH_SET(extern const IntegerGridKernels kIntegerGridKernels;)

}  // namespace tosaic::kernels
