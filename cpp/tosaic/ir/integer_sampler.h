// integer_sampler: the arithmetic of integer_grid_sample, which its kernel and its expansion share. It uses
// only operations that TOSA has, so that both compute the same integers.
//
//   image q, zero point z_i   v = max(q, input_low) - z_i
//   grid g, zero point z_g    p = apply_scale_32(clamp(g, grid_low, grid_high) - z_g) + (extent - 1) / 2
//                             a position in pixels with `fraction` fractional bits, for x and for y
//   nearest                   v at p, rounded half to even, in the dtype of the image; z_i where there is
//                             none
//   bilinear, bicubic         the sum of v * w over the taps, in i32
//
//   dtype of the image   bits of a weight w   product of a tap                  unit of the sum
//   i8                   22                   v * w, exact                      2^-22
//   i16                  28                   (v * w + 2^13) >> 14              2^-14
//
// The sums fit: |v| <= 255 or 2^15, and the weights of a bicubic sample add up to less than 1.9.
//
// A position rounds by at most 3/4 of its last fractional bit. In a bilinear sum that is an error of up to
// 3/4 * 2^-fraction * (the difference of two pixels) per axis: far below one unit for i8, and below 0.4 for
// i16 if no side of the image exceeds 2048 pixels and the grid does not exceed -1 .. 1.
//
// Integers of the image below `input_low` mean the same number as `input_low`. In the SNORM format of image
// samplers (i8, scale 1/127), -128 and -127 both mean -1.
#pragma once

#include <cstdint>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/ir/attributes.h"

namespace tosaic {

inline constexpr std::int64_t kMostFractionBits = 22;

struct SamplerWeights {
  int bits = 22;          // fractional bits of a weight
  int product_shift = 0;  // by which the product of a pixel and a weight is shifted right, rounded half up
  [[nodiscard]] int sum_bits() const { return bits - product_shift; }
};
[[nodiscard]] constexpr SamplerWeights sampler_weights(DType image) {
  return image == DType::kI8 ? SamplerWeights{22, 0} : SamplerWeights{28, 14};
}

// The bits in which a bicubic weight of one axis is computed, before weights of x and y are multiplied.
inline constexpr int kAxisWeightBits = 28;

// (a * b + 2^(shift - 1)) >> shift: tosa.mul of i32 with a shift.
[[nodiscard]] constexpr std::int64_t multiply_shifted(std::int64_t a, std::int64_t b, int shift) {
  return shift == 0 ? a * b : (a * b + (std::int64_t{1} << (shift - 1))) >> shift;
}

}  // namespace tosaic
