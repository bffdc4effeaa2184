// quantize: converts constants and biases between floats and integers. Constants follow the formulas of
// ir/quantized_value.h, element by element.
//
// A value outside the bounds saturates, where torch's conversion to the dtype wraps. Examples are 3e9 in i32,
// and the bias of a weight channel that is all zero, whose scale is tiny. The functions count such elements,
// so that a caller can warn or throw.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"

namespace tosaic::quant {

struct Counts {
  std::int64_t saturated = 0;  // values outside the bounds, infinities included
  std::int64_t nans = 0;       // NaN values; each becomes 0
  bool operator==(const Counts&) const = default;
};

// Throws QuantMismatch unless all of this holds: storage is an integer dtype of at most 32 bits; it can
// represent qmin and qmax, and qmin <= qmax; every scale is positive and finite; there are as many scales and
// zero points as `axis` and `groups` say for this shape.
void require_qparams(const QParams& qparams, const Shape& shape);

struct Quantized {
  Storage storage;  // row-major, qparams.storage
  Counts counts;
};

// Quantizes row-major f32 values of `shape`. The caller widens f16 and bf16 to f32 first, as torch does.
// Throws what require_qparams() throws, and LayoutMismatch for another number of values.
[[nodiscard]] Quantized quantize(std::span<const float> values, const Shape& shape, const QParams& qparams);

// Dequantizes row-major integers of `shape` and dtype qparams.storage to f32. Integers outside [qmin, qmax]
// are not clamped first. Throws what quantize() throws.
[[nodiscard]] Storage dequantize(std::span<const std::byte> values, const Shape& shape,
                                 const QParams& qparams);

struct QuantizedBias {
  std::vector<std::int64_t> values;
  Counts counts;
};

// round_half_even(bias[c] / scale[c]), computed in double and saturated to the range of the accumulator
// dtype, i32 or i48. `scales` has one entry for all elements or one for each element; accumulator_scales()
// computes them. Throws QuantMismatch for a scale that is not positive and finite, for another number of
// scales, and for another dtype.
[[nodiscard]] QuantizedBias quantize_bias(std::span<const float> bias, std::span<const double> scales,
                                          DType accumulator);

}  // namespace tosaic::quant
