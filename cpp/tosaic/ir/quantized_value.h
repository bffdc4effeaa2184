// quantized_value: quantizes and dequantizes one element, as torch's q/dq graphs (quantized_decomposed) do in
// f32:
//
//   q = clamp(round_half_even(x * float32(1 / scale)) + zero_point, qmin, qmax)
//   x = (float32(q) - float32(zero_point)) * float32(scale)
//
// The scale is inverted as a double: inverting a float32 scale, or dividing by it, results in other integers.
// The sum with the zero point is a float32, too. There is one difference from torch: where torch's conversion
// to the integer dtype wraps, the value saturates here.
#pragma once

#include <cmath>
#include <cstdint>

namespace tosaic {

[[nodiscard]] inline float inverse_scale(double scale) { return static_cast<float>(1.0 / scale); }

// q before clamping, as a float: a whole number, an infinity or NaN. `inverse` is inverse_scale(scale).
[[nodiscard]] inline float quantize_unbounded(float x, float inverse, std::int64_t zero_point) {
  return std::nearbyint(x * inverse) + static_cast<float>(zero_point);
}

// Clamps a whole number to [qmin, qmax], bounds of at most 53 bits. NaN becomes 0, as in the casts of our
// float kernels.
[[nodiscard]] inline std::int64_t bound_quantized(double value, std::int64_t qmin, std::int64_t qmax) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(qmin)) return qmin;
  if (value >= static_cast<double>(qmax)) return qmax;
  return static_cast<std::int64_t>(value);
}

[[nodiscard]] inline float dequantize_value(std::int64_t q, double scale, std::int64_t zero_point) {
  return (static_cast<float>(q) - static_cast<float>(zero_point)) * static_cast<float>(scale);
}

}  // namespace tosaic
