// apply_scale: the arithmetic of tosa.rescale on one value, as TOSA specifies it (apply_scale_32,
// apply_scale_16):
//
//   (value * multiplier + 2^(shift - 1)) >> shift        value * multiplier / 2^shift, rounded half up
//   double rounding with shift > 31: before the shift, 2^30 is added if value >= 0, else subtracted
//
// The code is in ir/ because layers that do not depend on each other use it: kernels run it, quant/ chooses
// its multipliers, and range analysis uses its bounds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "tosaic/ir/attributes.h"

namespace tosaic {

// The factor multiplier / 2^shift. 2 <= shift <= 62, and 0 <= multiplier < 2^31 (< 2^15 for width k16).
struct Multiplier {
  std::int32_t multiplier = 0;
  std::int32_t shift = 2;
  bool operator==(const Multiplier&) const = default;
};

// k32: RESCALE with `scale32`, for values of at most 32 bits. k16: RESCALE without it, for up to 48 bits.
enum class MultiplierWidth : std::uint8_t { k16, k32 };

inline constexpr std::int32_t kMinShift = 2, kMaxShift = 62;
inline constexpr ValueRange kInt32Values{std::numeric_limits<std::int32_t>::min(),
                                         std::numeric_limits<std::int32_t>::max()};
inline constexpr ValueRange kInt48Values{-(std::int64_t{1} << 47), (std::int64_t{1} << 47) - 1};

// Scales a value of at most 32 bits (k32) or 48 bits (k16). The specification defines the result only for
// scalable_values(); for other values this function evaluates the same formula. The specification lets the
// implementation choose the rounding of kInexactRound; we round as kSingleRound does, like the TOSA reference
// model. RESCALE does not allow kDoubleRound with k16; here kDoubleRound has no effect with k16.
[[nodiscard]] constexpr std::int64_t apply_scale(std::int64_t value, Multiplier by, MultiplierWidth width,
                                                 RoundingMode mode) {
  std::int64_t round = std::int64_t{1} << (by.shift - 1);
  if (mode == RoundingMode::kDoubleRound && width == MultiplierWidth::k32 && by.shift > 31)
    round += value >= 0 ? std::int64_t{1} << 30 : -(std::int64_t{1} << 30);
  return (value * by.multiplier + round) >> by.shift;
}

// The factor by which AVG_POOL2D divides: 1 / count as the specification computes it (reciprocal_scale). The
// multiplier has 31 bits and is rounded up: 0 < multiplier - 2^shift / count < 2. The count is at least 1.
[[nodiscard]] constexpr Multiplier reciprocal_of(std::int64_t count) {
  const int k = std::bit_width(static_cast<std::uint32_t>(count - 1));
  return {static_cast<std::int32_t>((((std::int64_t{1} << 30) + 1) << k) / count), 30 + k};
}

// The values for which apply_scale() is defined and its result plus `offset` fits 32 bits. The offset has at
// most 16 bits.
//
//   k32               values of 32 bits with -2^(shift - 1) <= value < 2^(shift - 1); the results are
//                     within +-2^30, so every offset fits
//   k16, shift > 31   every value of 48 bits; the results are within +-2^30, so every offset fits
//   k16, shift <= 31  the values of 48 bits for which result + offset fits 32 bits
[[nodiscard]] constexpr ValueRange scalable_values(Multiplier by, MultiplierWidth width,
                                                   std::int64_t offset = 0) {
  const std::int64_t round = std::int64_t{1} << (by.shift - 1);
  if (width == MultiplierWidth::k32)
    return {std::max(kInt32Values.low, -round), std::min(kInt32Values.high, round - 1)};
  if (by.shift > 31 || by.multiplier == 0) return kInt48Values;
  // The result fits if first <= value * multiplier + round <= last.
  const std::int64_t first = (kInt32Values.low - std::min<std::int64_t>(offset, 0)) << by.shift;
  const std::int64_t last = ((kInt32Values.high - std::max<std::int64_t>(offset, 0) + 1) << by.shift) - 1;
  // C++ division truncates. first - round < 0, so its quotient is rounded up; last - round >= 0, so its
  // quotient is rounded down.
  return {std::max(kInt48Values.low, (first - round) / by.multiplier),
          std::min(kInt48Values.high, (last - round) / by.multiplier)};
}

}  // namespace tosaic
