// statistic: a summary of the samples of a tensor, or of several tensors that share one scale.
//
//   Range               least and greatest sample
//   MovingRange         moving averages of the least and the greatest sample of each run
//   Histogram           exact counts by value
//   MaskRange           least and greatest sample among those that hide a score, and among the others
//   ContractionMoments  exact second moments of a contraction's input
//   AxisAbsMax          the largest magnitude of each channel
//   AxisSums            the exact sum of each channel
//
// The state of a statistic has a fixed size, whatever the number of samples is. States other than moving
// averages do not depend on the order of samples, nor on how they are split between states that are merged. A
// moving average does depend on the order of samples, but not on the split: see MovingRange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "tosaic/ir/dims.h"
#include "tosaic/quant/accuracy/accuracy.h"
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
  // Adds the samples of `later`, which follow the samples of this state. Throws InternalError if `later` does
  // not collect: averages cannot be merged.
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

// The second moments of the input of a contraction (accuracy/second_moments.h).
struct ContractionMoments {
  std::shared_ptr<const Contraction> contraction;  // null in a state that was read from bytes
  SecondMoments moments;

  void observe(std::span<const float> values, const Shape& shape) {
    moments.observe(*contraction, values, shape);
  }
  void merge(const ContractionMoments& later) { moments.merge(later.moments); }
  bool operator==(const ContractionMoments& other) const { return moments == other.moments; }
};

// Throws LayoutMismatch if the shape has no such axis.
[[nodiscard]] ChannelShape channel_shape(const Shape& shape, std::int64_t axis);

// A statistic of each position of an axis (accuracy/channel_statistics.h).
template <class Channels>
struct OfAxis {
  std::int64_t axis = 0;
  Channels channels;

  void observe(std::span<const float> values, const Shape& shape) {
    channels.observe(values, channel_shape(shape, axis));
  }
  void merge(const OfAxis& later) { channels.merge(later.channels); }
  bool operator==(const OfAxis&) const = default;
};
using AxisAbsMax = OfAxis<ChannelAbsMax>;
using AxisSums = OfAxis<ChannelSums>;

using Statistic =
    std::variant<Range, MovingRange, Histogram, ContractionMoments, AxisAbsMax, AxisSums, MaskRange>;

// How many infinities and NaN, which statistics leave out, are among some samples.
struct NotFinite {
  std::uint64_t infinities = 0;
  std::uint64_t nans = 0;
  [[nodiscard]] bool any() const { return infinities != 0 || nans != 0; }
};

// A statistic while it observes. A histogram counts in a table first, and take() moves the counts into it.
// The table stays, so that observing again allocates nothing.
class Observing {
 public:
  explicit Observing(Statistic statistic) : statistic_(std::move(statistic)) {}

  // Adds the samples of a row-major tensor, each `times` times. Infinities and NaN are counted and left out.
  // A statistic for which is_of_tensors() is true takes them once.
  NotFinite observe(std::span<const float> values, const Shape& shape, std::uint64_t times);
  // Adds a finite value `times` times. Only for ranges, histograms and masks.
  void observe(float value, std::uint64_t times);
  // Returns the statistic of all samples so far, and begins an empty one.
  [[nodiscard]] Statistic take();
  // False for ranges, histograms and masks, whose samples may come in any order and shape.
  [[nodiscard]] bool is_of_tensors() const {
    return !std::holds_alternative<Range>(statistic_) && !std::holds_alternative<Histogram>(statistic_) &&
           !std::holds_alternative<MaskRange>(statistic_);
  }

 private:
  Statistic statistic_;
  Histogram::Table table_;
};
// Adds the samples of `later`. Throws InternalError if the two are not of one kind.
void merge(Statistic& into, const Statistic& later);
// The same kind of statistic, without samples. A worker fills it, and its state is merged into `statistic`.
[[nodiscard]] Statistic empty_like(const Statistic& statistic);
// The bounds of the samples, and how many there are. Throws InternalError for statistics of other kinds than
// ranges, histograms and masks.
[[nodiscard]] Range bounds_of(const Statistic& statistic);

// States as bytes, for other processes. Throws InvalidGraph for bytes that to_bytes() did not return.
[[nodiscard]] std::vector<std::byte> to_bytes(std::span<const Statistic> statistics);
[[nodiscard]] std::vector<Statistic> statistics_from_bytes(std::span<const std::byte> bytes);

}  // namespace tosaic::quant
