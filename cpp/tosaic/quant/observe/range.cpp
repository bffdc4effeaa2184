#include <algorithm>
#include <cmath>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/kernels/histogram_block.h"
#include "tosaic/quant/observe/channels.h"
#include "tosaic/quant/observe/finite.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {

void Range::observe(std::span<const float> values) {
  for_each_finite(values, *this, [](std::span<const float>) {});
}

void Range::observe(float value, std::uint64_t times) {
  if (times == 0) return;
  least = std::min(least, value + 0.0F);
  greatest = std::max(greatest, value + 0.0F);
  finite += times;
}

void Range::merge(const Range& other) {
  least = std::min(least, other.least);
  greatest = std::max(greatest, other.greatest);
  finite += other.finite;
  infinities += other.infinities;
  nans += other.nans;
}

Range MaskRange::observe(std::span<const float> values) {
  Range ignored;
  for (const float value : values) {
    if (std::isnan(value)) {
      ++ignored.nans;
    } else if (value <= kHides) {
      if (std::isinf(value))
        ++hidden.infinities;
      else
        hidden.observe(value, 1);
    } else if (std::isinf(value)) {
      ++ignored.infinities;
    } else {
      visible.observe(value, 1);
    }
  }
  return ignored;
}

void MaskRange::observe(float value, std::uint64_t times) {
  (value <= kHides ? hidden : visible).observe(value, times);
}

void MaskRange::merge(const MaskRange& other) {
  visible.merge(other.visible);
  hidden.merge(other.hidden);
}

Range MaskRange::all() const {
  Range both = visible;
  both.merge(hidden);
  return both;
}

Range moving_average(const Range& before, const Range& batch, float weight) {
  Range after = before;
  after.merge(batch);
  if (before.finite != 0 && batch.finite != 0) {
    after.least = before.least + weight * (batch.least - before.least);
    after.greatest = before.greatest + weight * (batch.greatest - before.greatest);
  }
  return after;
}

void require_channels(std::size_t values, ChannelShape shape, std::size_t observers) {
  if (shape.channels == static_cast<std::int64_t>(observers) &&
      static_cast<std::int64_t>(values) == shape.outer * shape.channels * shape.inner)
    return;
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  throw LayoutMismatch({.where = "observe",
                        .what = "wrong number of values or channels",
                        .expected = text(shape.outer) + " * " + text(shape.channels) + " * " +
                                    text(shape.inner) + " values and " + text(shape.channels) + " channels",
                        .got = std::to_string(values) + " and " + std::to_string(observers)});
}

void observe_channels(std::span<const float> values, ChannelShape shape, std::span<Range> ranges) {
  for_each_channel(values, shape, ranges);
}

}  // namespace tosaic::quant
