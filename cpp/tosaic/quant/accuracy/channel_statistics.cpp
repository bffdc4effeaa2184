#include "tosaic/quant/accuracy/channel_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/quant/accuracy/state_bytes.h"

namespace tosaic::quant {
namespace {

constexpr std::uint32_t kMostFormat = 0x314d4354, kSumsFormat = 0x31534354;  // "TCM1", "TCS1" in memory
constexpr int kDigits = 30, kLeastExponent = -120, kGreatestExponent = 127;
constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 32;

void require_values(std::size_t values, ChannelShape shape, std::size_t channels) {
  const bool holds = shape.channels == static_cast<std::int64_t>(channels) &&
                     static_cast<std::int64_t>(values) == shape.outer * shape.channels * shape.inner;
  if (holds) return;
  throw LayoutMismatch(
      {.where = "accuracy",
       .what = "the samples of channels",
       .expected = std::to_string(channels) + " channels",
       .got = std::to_string(shape.channels) + " channels, " + std::to_string(values) + " samples"});
}

// Calls visit(channel, values) for each run of values of one channel.
template <class Visit>
void for_each_run(std::span<const float> values, ChannelShape shape, Visit&& visit) {
  const auto inner = static_cast<std::size_t>(shape.inner),
             channels = static_cast<std::size_t>(shape.channels);
  if (values.empty()) return;
  for (std::size_t run = 0; run < values.size() / inner; ++run)
    visit(run % channels, values.subspan(run * inner, inner));
}

}  // namespace

void ChannelAbsMax::observe(std::span<const float> values, ChannelShape shape) {
  require_values(values.size(), shape, most_.size());
  for_each_run(values, shape, [&](std::size_t channel, std::span<const float> run) {
    float most = most_[channel];
    for (const float value : run) {
      const float magnitude = std::abs(value);
      if (magnitude > most && magnitude <= std::numeric_limits<float>::max()) most = magnitude;
    }
    most_[channel] = most;
  });
}

void ChannelAbsMax::merge(const ChannelAbsMax& other) {
  require_values(other.most_.size(), {.channels = static_cast<std::int64_t>(other.most_.size())},
                 most_.size());
  for (std::size_t i = 0; i < most_.size(); ++i) most_[i] = std::max(most_[i], other.most_[i]);
}

std::vector<std::byte> ChannelAbsMax::to_bytes() const {
  StateWriter writer(kMostFormat);
  writer.put_all(std::span(most_));
  return std::move(writer).finish();
}

ChannelAbsMax ChannelAbsMax::from_bytes(std::span<const std::byte> bytes) {
  StateReader reader(bytes, kMostFormat, "magnitudes of channels");
  reader.require(reader.left() % sizeof(float) == 0);
  ChannelAbsMax out(static_cast<std::int64_t>(reader.left() / sizeof(float)));
  reader.take_all(std::span(out.most_));
  for (const float each : out.most_) reader.require(each >= 0 && std::isfinite(each));
  return out;
}

ChannelSums::ChannelSums(std::int64_t channels, int exponent)
    : exponent_(exponent), sums_(static_cast<std::size_t>(channels)) {
  if (exponent >= kLeastExponent && exponent <= kGreatestExponent) return;
  throw QuantMismatch({.where = "accuracy",
                       .what = "the exponent of exact sums",
                       .expected = std::to_string(kLeastExponent) + ".." + std::to_string(kGreatestExponent),
                       .got = std::to_string(exponent)});
}

void ChannelSums::observe(std::span<const float> values, ChannelShape shape) {
  require_values(values.size(), shape, sums_.size());
  const auto more = static_cast<std::uint64_t>(shape.outer * shape.inner);
  const float most =
      exponent_ == kGreatestExponent ? std::numeric_limits<float>::max() : std::ldexp(1.0F, exponent_);
  for (const float value : values)
    if (!(std::abs(value) <= most))
      throw QuantMismatch({.where = "accuracy",
                           .what = "a sample of an exact sum",
                           .expected = "a magnitude of at most 2^" + std::to_string(exponent_),
                           .got = std::to_string(value)});
  if (more > kMostSamples - count_)
    throw QuantMismatch({.where = "accuracy",
                         .what = "too many samples for exact sums",
                         .expected = "at most 2^32 of a channel",
                         .got = std::to_string(count_) + " and " + std::to_string(more) + " more"});
  const double unit = std::ldexp(1.0, kDigits - exponent_);
  for_each_run(values, shape, [&](std::size_t channel, std::span<const float> run) {
    std::int64_t sum = 0;
    for (const float value : run)
      sum += static_cast<std::int64_t>(std::nearbyint(static_cast<double>(value) * unit));
    sums_[channel] += sum;
  });
  count_ += more;
}

void ChannelSums::merge(const ChannelSums& other) {
  if (exponent_ != other.exponent_ || sums_.size() != other.sums_.size() ||
      other.count_ > kMostSamples - count_)
    throw QuantMismatch({.where = "accuracy",
                         .what = "sums of channels cannot be merged",
                         .expected = "equal exponents and numbers of channels, and at most 2^32 samples",
                         .got = "2^" + std::to_string(other.exponent_) + ", " +
                                std::to_string(other.sums_.size()) + " channels, " +
                                std::to_string(other.count_) + " samples"});
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += other.sums_[i];
  count_ += other.count_;
}

std::vector<double> ChannelSums::means() const {
  std::vector<double> out;
  const double unit = std::ldexp(1.0, exponent_ - kDigits);
  const double samples = count_ == 0 ? 1 : static_cast<double>(count_);
  for (const std::int64_t sum : sums_) out.push_back(static_cast<double>(sum) * unit / samples);
  return out;
}

std::vector<std::byte> ChannelSums::to_bytes() const {
  StateWriter writer(kSumsFormat);
  writer.put(static_cast<std::int32_t>(exponent_));
  writer.put(count_);
  writer.put_all(std::span(sums_));
  return std::move(writer).finish();
}

ChannelSums ChannelSums::from_bytes(std::span<const std::byte> bytes) {
  StateReader reader(bytes, kSumsFormat, "sums of channels");
  const auto exponent = reader.take<std::int32_t>();
  const auto count = reader.take<std::uint64_t>();
  reader.require(exponent >= kLeastExponent && exponent <= kGreatestExponent && count <= kMostSamples &&
                 reader.left() % sizeof(std::int64_t) == 0);
  ChannelSums out(static_cast<std::int64_t>(reader.left() / sizeof(std::int64_t)), exponent);
  out.count_ = count;
  reader.take_all(std::span(out.sums_));
  const auto most = static_cast<std::int64_t>(count << kDigits);
  for (const std::int64_t sum : out.sums_) reader.require(sum >= -most && sum <= most);
  return out;
}

int sums_exponent(const Range& range, bool differences) {
  if (range.finite == 0) return kLeastExponent;
  int exponent = 0;
  static_cast<void>(std::frexp(std::max(std::abs(range.least), std::abs(range.greatest)), &exponent));
  return std::clamp(exponent + (differences ? 1 : 0), kLeastExponent, kGreatestExponent);
}

}  // namespace tosaic::quant
