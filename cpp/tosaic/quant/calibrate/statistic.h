// statistic: what is remembered of the samples of a tensor, or of several tensors that share one scale.
//
//   Range         least and greatest sample
//   MovingRange   moving averages of the least and the greatest sample of each run
//   Histogram     exact counts by value
//
// The state of a statistic has a fixed size, whatever the number of samples is. States of ranges and histograms
// do not depend on the order of samples, nor on how they are split between states that are merged. A moving
// average does depend on the order of samples, but not on the split: see MovingRange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {

// A moving average of ranges. A state may collect the ranges of its samples instead of averaging them: merged
// into another state, they are averaged there, one by one. So workers collect, and the caller merges their
// states in the order of the samples.
class MovingRange {
 public:
  // Throws QuantMismatch unless 0 < weight <= 1.
  explicit MovingRange(float weight, bool collects = false);

  // Returns the range of these samples.
  Range observe(std::span<const float> values);
  // Adds the samples of `later`, which follow those of this state. Throws InternalError if `later` does not
  // collect: averages cannot be merged.
  void merge(const MovingRange& later);
  // Averages the ranges that were collected.
  [[nodiscard]] Range range() const;
  [[nodiscard]] float weight() const { return weight_; }
  [[nodiscard]] bool collects() const { return collects_; }
  [[nodiscard]] std::span<const Range> collected() const { return collected_; }

  bool operator==(const MovingRange&) const = default;

 private:
  void add(const Range& batch);
  float weight_ = 0.01F;
  bool collects_ = false;
  Range average_;
  std::vector<Range> collected_;
  friend class StatisticReader;
};

using Statistic = std::variant<Range, MovingRange, Histogram>;

// The numbers among some samples that take no part in a statistic.
struct NotFinite {
  std::uint64_t infinities = 0;
  std::uint64_t nans = 0;
  [[nodiscard]] bool any() const { return infinities != 0 || nans != 0; }
};

// A statistic while it observes. A histogram counts in a table first, and take() moves the counts into it.
class Observing {
 public:
  explicit Observing(Statistic statistic) : statistic_(std::move(statistic)) {}

  // Adds samples, each so many times. Infinities and NaN are counted and left out. A moving average moves once.
  NotFinite observe(std::span<const float> values, std::uint64_t times);
  // Adds a finite value, so many times. Not for moving averages.
  void observe(float value, std::uint64_t times);
  [[nodiscard]] const Statistic& take();
  // The samples of a moving average depend on how they are divided into tensors.
  [[nodiscard]] bool is_of_tensors() const { return std::holds_alternative<MovingRange>(statistic_); }

 private:
  Statistic statistic_;
  Histogram::Table table_;
};
// Adds the samples of `later`. Throws InternalError if the two are not of one kind.
void merge(Statistic& into, const Statistic& later);
// The same kind of statistic, without samples. A worker fills it, and its state is merged into `statistic`.
[[nodiscard]] Statistic empty_like(const Statistic& statistic);
// The bounds of the samples, and how many there are.
[[nodiscard]] Range bounds_of(const Statistic& statistic);

// States as bytes, for other processes. Throws InvalidGraph for bytes that to_bytes() did not return.
[[nodiscard]] std::vector<std::byte> to_bytes(std::span<const Statistic> statistics);
[[nodiscard]] std::vector<Statistic> statistics_from_bytes(std::span<const std::byte> bytes);

}  // namespace tosaic::quant
