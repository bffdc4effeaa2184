// The arithmetic of tosa.rescale on one value, as the TOSA specification has it (apply_scale_32,
// apply_scale_16):
//
//   (value * multiplier + 2^(shift - 1)) >> shift        the quotient by 2^shift, half up
//   double rounding, shift > 31: 2^30 more before the shift where value >= 0, else 2^30 less
//
// It stands beside the operator table because kernels run it, quant/ chooses its multipliers and ranges are
// proven by it: layers that do not see each other.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "tosaic/ir/attributes.h"

namespace tosaic {

// The real factor multiplier / 2^shift. 2 <= shift <= 62 and 0 <= multiplier < 2^31 (2^15 where the width is
// k16).
struct Multiplier {
  std::int32_t multiplier = 0;
  std::int32_t shift = 2;
  bool operator==(const Multiplier&) const = default;
};

// k32: `scale32` of RESCALE, for values of 32 bits. k16: for values of 48 bits.
enum class MultiplierWidth : std::uint8_t { k16, k32 };

inline constexpr std::int32_t kMinShift = 2, kMaxShift = 62;
inline constexpr ValueRange kInt32Values{std::numeric_limits<std::int32_t>::min(),
                                         std::numeric_limits<std::int32_t>::max()};
inline constexpr ValueRange kInt48Values{-(std::int64_t{1} << 47), (std::int64_t{1} << 47) - 1};

// A value of at most 32 bits (k32) or 48 bits (k16), scaled. The specification gives the result a meaning for
// scalable_values() only; beside them it is this sum all the same. How kInexactRound rounds is left to the
// implementation, and ours does as kSingleRound, as does the reference model. RESCALE refuses kDoubleRound
// with k16, and here it has no effect.
[[nodiscard]] constexpr std::int64_t apply_scale(std::int64_t value, Multiplier by, MultiplierWidth width,
                                                 RoundingMode mode) {
  std::int64_t round = std::int64_t{1} << (by.shift - 1);
  if (mode == RoundingMode::kDoubleRound && width == MultiplierWidth::k32 && by.shift > 31)
    round += value >= 0 ? std::int64_t{1} << 30 : -(std::int64_t{1} << 30);
  return (value * by.multiplier + round) >> by.shift;
}

// What AVG_POOL2D and others divide by: 1 / count in 31 bits, rounded to nearest (reciprocal_scale). The
// count is at least 1.
[[nodiscard]] constexpr Multiplier reciprocal_of(std::int64_t count) {
  const int k = std::bit_width(static_cast<std::uint32_t>(count - 1));
  return {static_cast<std::int32_t>((((std::int64_t{1} << 30) + 1) << k) / count), 30 + k};
}

// The values whose scaled result is defined and, with `offset` added, fits 32 bits. The offset has at most 16
// bits. k32 asks for -2^(shift - 1) <= value < 2^(shift - 1), whose results stay within +-2^30; with k16 and
// a shift above 31 every value of 48 bits does, too.
[[nodiscard]] constexpr ValueRange scalable_values(Multiplier by, MultiplierWidth width,
                                                   std::int64_t offset = 0) {
  const std::int64_t round = std::int64_t{1} << (by.shift - 1);
  if (width == MultiplierWidth::k32)
    return {std::max(kInt32Values.low, -round), std::min(kInt32Values.high, round - 1)};
  if (by.shift > 31 || by.multiplier == 0) return kInt48Values;
  // value * multiplier + round lies in [first, last]
  const std::int64_t first = (kInt32Values.low - std::min<std::int64_t>(offset, 0)) << by.shift;
  const std::int64_t last = ((kInt32Values.high - std::max<std::int64_t>(offset, 0) + 1) << by.shift) - 1;
  // first - round < 0 and division truncates: upward. last - round >= 0: downward.
  return {std::max(kInt48Values.low, (first - round) / by.multiplier),
          std::min(kInt48Values.high, (last - round) / by.multiplier)};
}

}  // namespace tosaic
