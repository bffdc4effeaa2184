#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace tosaic {

// The sum of |value - zero_point|. With the bit of the sign flipped, signed bytes are unsigned ones at the
// same distances, and processors have an instruction that adds up distances of unsigned bytes.
[[nodiscard]] inline std::int64_t sum_of_magnitudes(std::span<const std::int8_t> values,
                                                    std::int64_t zero_point) {
  constexpr std::size_t kPiece = 1 << 20;  // its sum fits in 32 bits
  constexpr std::uint8_t kSign = 0x80;
  const std::int64_t nearest =
      std::clamp<std::int64_t>(zero_point, -128, 127);  // no value is between zero_point and `nearest`
  const auto from = static_cast<std::uint8_t>(nearest + kSign);
  std::int64_t sum = static_cast<std::int64_t>(values.size()) * std::abs(zero_point - nearest);
  for (std::size_t at = 0; at < values.size(); at += kPiece) {
    std::int32_t part = 0;
    for (const std::int8_t value : values.subspan(at, std::min(kPiece, values.size() - at)))
      part += std::abs(static_cast<std::uint8_t>(static_cast<std::uint8_t>(value) ^ kSign) - from);
    sum += part;
  }
  return sum;
}

}  // namespace tosaic
