// Requantization: a real scale becomes a multiplier and a shift. This is the one place where it does.
//
//   scale = mantissa * 2^e with 0.5 <= mantissa < 1
//   k32: multiplier = round_half_even(mantissa * 2^31), shift = 31 - e      k16: 15 in place of 31
//   a multiplier of 2^31 is halved and e grows; beyond shift 62 the multiplier is shifted down, truncating;
//   a shift below 2 cannot be expressed
//
// Scales stay doubles up to here. Targets choose the rounding and how 16-bit multipliers come about.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/apply_scale.h"

namespace tosaic::quant {

// Throws QuantMismatch unless the scale is positive, finite and small enough: below about 2^29 (k16: 2^13).
[[nodiscard]] Multiplier multiplier_of(double scale, MultiplierWidth width);

// The k16 form of a k32 multiplier: its upper half, rounded half up, at most 32767, as CMSIS-NN reduces it.
// It differs from multiplier_of(scale, k16) for one scale in a thousand. Throws QuantMismatch below shift 18.
[[nodiscard]] Multiplier narrowed(Multiplier wide);

// multiplier / 2^shift, exact.
[[nodiscard]] double real_scale(Multiplier by);

// How far, in units of the result, apply_scale(value) may be from value * scale over a range of values.
//
// |value * (m / 2^s - scale)| is at most |m / 2^s - scale| * max|value|; the difference is exact in double,
// as m / 2^s lies within a factor of two of the scale or is 0. The shift rounds by at most 1/2, double
// rounding by 2^30 / 2^s more where s > 31. The sum is rounded up. Clipping to a dtype comes on top.
[[nodiscard]] double error_bound(double scale, Multiplier by, MultiplierWidth width, RoundingMode mode,
                                 ValueRange values);

// s_in * s_w[c]: what one unit of an accumulator, and of a bias, is worth.
[[nodiscard]] std::vector<double> accumulator_scales(double input, std::span<const double> weight);
// from[c] / to: the scales of a rescale.
[[nodiscard]] std::vector<double> rescale_scales(std::span<const double> from, double to);

// One side of a rescale: i8, u8, i16, u16, i32 or (input only) i48, and which of its integers means 0.
struct RescaleSide {
  DType dtype = DType::kI8;
  std::int64_t zero_point = 0;
};

enum class NarrowMultiplier : std::uint8_t { kFromScale, kFromWide };

struct RescaleOptions {
  RoundingMode rounding_mode = RoundingMode::kSingleRound;
  NarrowMultiplier narrow = NarrowMultiplier::kFromScale;  // of inputs of i48
};

// The attributes of tosa.rescale for one scale, or one for each position of the last axis. i48 takes k16, the
// others k32. Throws QuantMismatch for a scale that cannot be expressed, by channel, and InvalidGraph where
// RESCALE has no such dtypes, zero points or rounding.
[[nodiscard]] TosaRescaleAttrs plan_rescale(RescaleSide from, RescaleSide to, std::span<const double> scales,
                                            const RescaleOptions& options = {});

// The inputs, zero point included, for which this channel of a rescale is defined; range analysis has to show
// that no other occurs. May be wider than the dtype of the input.
[[nodiscard]] ValueRange defined_inputs(const TosaRescaleAttrs& attrs, std::size_t channel);

}  // namespace tosaic::quant
