// channels: the values of each channel of a row-major array.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {

// Throws LayoutMismatch unless the numbers of values and observers fit the shape.
void require_channels(std::size_t values, ChannelShape shape, std::size_t observers);

// Calls observers[c].observe() for the values of each channel c. Long runs are passed without a copy; many
// short runs are copied together first.
template <class Observer>
void for_each_channel(std::span<const float> values, ChannelShape shape, std::span<Observer> observers) {
  require_channels(values.size(), shape, observers.size());
  constexpr std::int64_t kLongRun = 64, kCopied = 1 << 14;
  const auto inner = static_cast<std::size_t>(shape.inner);
  if (values.empty()) return;
  if (shape.outer == 1 || shape.inner >= kLongRun) {
    for (std::size_t run = 0; run < values.size() / inner; ++run)
      observers[run % observers.size()].observe(values.subspan(run * inner, inner));
    return;
  }
  // Visits a few groups at a time, so that all channels after the first read them from the cache.
  const std::int64_t group = shape.channels * shape.inner;
  const std::int64_t groups = std::max<std::int64_t>(1, kCopied / group);
  std::vector<float> copied;
  for (std::int64_t begin = 0; begin < shape.outer; begin += groups) {
    const std::int64_t end = std::min(shape.outer, begin + groups);
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      copied.clear();
      for (std::int64_t o = begin; o < end; ++o) {
        const float* run = values.data() + o * group + c * shape.inner;
        copied.insert(copied.end(), run, run + shape.inner);
      }
      observers[static_cast<std::size_t>(c)].observe(copied);
    }
  }
}

}  // namespace tosaic::quant
