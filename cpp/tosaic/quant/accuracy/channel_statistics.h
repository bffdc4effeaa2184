// channel_statistics: statistics of each channel of a tensor, for the accuracy tools.
//
//   ChannelAbsMax   the largest magnitude of each channel    smooth()
//   ChannelSums     the exact sum of each channel            correct_bias()
//
// States do not depend on the order of samples, nor on how samples are split into calls and merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {

// Infinities and NaN take no part.
class ChannelAbsMax {
 public:
  explicit ChannelAbsMax(std::int64_t channels) : most_(static_cast<std::size_t>(channels)) {}

  // Throws LayoutMismatch for another number of channels or values.
  void observe(std::span<const float> values, ChannelShape shape);
  // Throws LayoutMismatch for another number of channels.
  void merge(const ChannelAbsMax& other);
  [[nodiscard]] std::span<const float> most() const { return most_; }  // 0 without samples
  bool operator==(const ChannelAbsMax&) const = default;

  // from_bytes() throws InvalidGraph for bytes that to_bytes() did not return.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  [[nodiscard]] static ChannelAbsMax from_bytes(std::span<const std::byte> bytes);

 private:
  std::vector<float> most_;
};

// Samples are rounded to multiples of 2^(exponent - 30), and the multiples are summed as 64-bit integers.
// Samples have magnitudes up to 2^exponent. An f32 of magnitude 2^(exponent - 7) or more is exact, and the
// error of a smaller one is at most 2^(exponent - 31). observe() and merge() throw QuantMismatch for more
// than 2^32 samples of a channel, so that no sum overflows.
class ChannelSums {
 public:
  // Throws QuantMismatch unless -120 <= exponent <= 127.
  ChannelSums(std::int64_t channels, int exponent);

  // Throws LayoutMismatch for another number of channels or values, and QuantMismatch for a sample that is
  // not finite or beyond 2^exponent in magnitude; then the state is as before.
  void observe(std::span<const float> values, ChannelShape shape);
  // Throws QuantMismatch if `other` has another exponent or another number of channels.
  void merge(const ChannelSums& other);
  [[nodiscard]] std::uint64_t count() const { return count_; }  // samples of each channel
  [[nodiscard]] int exponent() const { return exponent_; }
  [[nodiscard]] std::span<const std::int64_t> sums() const { return sums_; }
  [[nodiscard]] std::vector<double> means() const;  // 0 without samples
  bool operator==(const ChannelSums&) const = default;

  // from_bytes() throws InvalidGraph for bytes that to_bytes() did not return.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  [[nodiscard]] static ChannelSums from_bytes(std::span<const std::byte> bytes);

 private:
  int exponent_;
  std::uint64_t count_ = 0;
  std::vector<std::int64_t> sums_;
};

// The least exponent for ChannelSums of samples in this range or, with `differences`, of differences of two
// samples in this range.
[[nodiscard]] int sums_exponent(const Range& range, bool differences = false);

}  // namespace tosaic::quant
