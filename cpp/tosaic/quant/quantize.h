// Constants and biases between real numbers and integers, element by element as ir/quantized_value.h has it.
//
// Integers saturate where torch's conversion wraps (3e9 in i32; the bias of a weight channel that is all
// zero), and the number of elements outside the bounds is returned: a caller can warn, or refuse.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"

namespace tosaic::quant {

struct Counts {
  std::int64_t saturated = 0;  // real values beyond the bounds, infinities included
  std::int64_t nans = 0;       // became 0
  bool operator==(const Counts&) const = default;
};

// Throws QuantMismatch unless storage is an integer dtype of at most 32 bits that holds qmin <= qmax, and
// scales (positive, finite) and zero points are one each, or one for each position of the axis of `shape`.
void require_qparams(const QParams& qparams, const Shape& shape);

struct Quantized {
  Storage storage;  // row-major, qparams.storage
  Counts counts;
};

// Row-major f32 of `shape` to integers; f16 and bf16 are widened first, as torch does. Throws as
// require_qparams().
[[nodiscard]] Quantized quantize(std::span<const float> values, const Shape& shape, const QParams& qparams);

// Row-major integers of `shape` and qparams.storage to f32. Values outside [qmin, qmax] are taken as they
// are. Throws as require_qparams().
[[nodiscard]] Storage dequantize(std::span<const std::byte> values, const Shape& shape,
                                 const QParams& qparams);

struct QuantizedBias {
  std::vector<std::int64_t> values;
  Counts counts;
};

// round_half_even(bias[c] / scale[c]) in double, for an accumulator of i32 or i48; one scale, or one for each
// element. accumulator_scales() gives them. Throws QuantMismatch for a scale that is not positive and finite,
// and for another number of scales.
[[nodiscard]] QuantizedBias quantize_bias(std::span<const float> bias, std::span<const double> scales,
                                          DType accumulator);

}  // namespace tosaic::quant
