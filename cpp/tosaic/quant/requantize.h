// requantize: turns the scale of a requantization, a double, into the integer multiplier and shift of
// RESCALE. No other file computes multipliers.
//
//   scale = mantissa * 2^e with 0.5 <= mantissa < 1
//   k32: multiplier = round_half_even(mantissa * 2^31), shift = 31 - e
//   k16: the same with 15 instead of 31
//   if the multiplier rounds to 2^31 (k16: 2^15), the multiplier is halved and e grows by 1
//   if the shift is above 62, the multiplier is shifted right (truncated) until the shift is 62
//   if the shift is below 2, RESCALE cannot express the scale
//
// Callers choose the rounding mode, and how the 16-bit multipliers for i48 inputs are computed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/apply_scale.h"

namespace tosaic::quant {

// Throws QuantMismatch unless the scale is positive, finite and small enough: below about 2^29 (k16: 2^13).
// `subject` names the scale in the error.
[[nodiscard]] Multiplier multiplier_of(double scale, MultiplierWidth width,
                                       const std::string& subject = "the scale");

// The k16 form of a k32 multiplier: its upper half, rounded half up and at most 32767, as CMSIS-NN reduces
// it. The result differs from multiplier_of(scale, k16) for one scale in a thousand. Throws QuantMismatch if
// wide.shift is below 18. `subject` names the scale in the error.
[[nodiscard]] Multiplier narrowed(Multiplier wide, const std::string& subject = "the scale");

// multiplier / 2^shift, exact.
[[nodiscard]] double real_scale(Multiplier by);

// The scales of an accumulator, and of a bias: input * weight[c] for each channel c.
[[nodiscard]] std::vector<double> accumulator_scales(double input, std::span<const double> weight);
// The scales of a rescale: from[c] / to for each channel c.
[[nodiscard]] std::vector<double> rescale_scales(std::span<const double> from, double to);

// One side of a rescale. The dtype is i8, u8, i16, u16, i32 or (input only) i48; zero_point is the integer
// that represents 0.
struct RescaleSide {
  DType dtype = DType::kI8;
  std::int64_t zero_point = 0;
};

// How a k16 multiplier is computed: by multiplier_of(scale, k16), or by narrowed(multiplier_of(scale, k32)).
enum class NarrowMultiplier : std::uint8_t { kFromScale, kFromWide };

struct RescaleOptions {
  RoundingMode rounding_mode = RoundingMode::kSingleRound;
  NarrowMultiplier narrow = NarrowMultiplier::kFromScale;  // used for i48 inputs only
};

// The attributes of tosa.rescale. `scales` has one entry, or one for each position of the last axis. i48
// inputs use k16 multipliers, all others k32. Throws QuantMismatch, naming the channel, for a scale that
// cannot be expressed, and InvalidGraph if RESCALE does not have these dtypes, zero points or this rounding.
[[nodiscard]] TosaRescaleAttrs plan_rescale(RescaleSide from, RescaleSide to, std::span<const double> scales,
                                            const RescaleOptions& options = {});

// The input integers (before the zero point is subtracted) for which RESCALE defines the result of this
// channel. Range analysis has to prove that no other integer occurs. The range may be wider than the input
// dtype.
[[nodiscard]] ValueRange defined_inputs(const TosaRescaleAttrs& attrs, std::size_t channel);

}  // namespace tosaic::quant
