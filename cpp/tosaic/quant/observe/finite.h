// finite: the finite values of samples, in blocks that stay in the cache.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "tosaic/kernels/histogram_block.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {

inline constexpr std::size_t kBlock = 512;

// Begins to load the first block, so that memory is read while the block before is counted.
inline void prefetch(std::span<const float> values) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  for (std::size_t i = 0; i < std::min(kBlock, values.size()); i += kLine) __builtin_prefetch(&values[i]);
}

// Calls visit(block) for the finite values of each block, after `range` has observed the block. A block may
// be empty.
template <class Visit>
void for_each_finite(std::span<const float> values, Range& range, Visit&& visit) {
  using namespace kernels;
  static const HistogramKernels& kernels = histogram_kernels(best_isa());
  constexpr std::int32_t kLeast = float_key(std::numeric_limits<float>::lowest());
  constexpr std::int32_t kGreatest = float_key(std::numeric_limits<float>::max());
  std::array<float, kBlock> finite;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    std::span<const float> block = values.subspan(begin, std::min(kBlock, values.size() - begin));
    KeyBounds bounds = kernels.bounds(block.data(), static_cast<std::int64_t>(block.size()));
    if (bounds.least < kLeast || bounds.greatest > kGreatest) {
      const auto end = std::copy_if(block.begin(), block.end(), finite.begin(),
                                    [](float value) { return std::isfinite(value); });
      const auto nans = static_cast<std::uint64_t>(
          std::count_if(block.begin(), block.end(), [](float value) { return std::isnan(value); }));
      const auto found = static_cast<std::size_t>(end - finite.begin());
      range.nans += nans;
      range.infinities += block.size() - found - nans;
      block = std::span<const float>(finite).first(found);
      bounds = kernels.bounds(block.data(), static_cast<std::int64_t>(found));
    }
    if (!block.empty()) {
      // -0 + 0 is 0, so the sign of a zero does not depend on the order of samples.
      range.least = std::min(range.least, key_value(bounds.least) + 0.0F);
      range.greatest = std::max(range.greatest, key_value(bounds.greatest) + 0.0F);
      range.finite += block.size();
    }
    prefetch(values.subspan(std::min(begin + kBlock, values.size())));
    visit(block);
  }
}

}  // namespace tosaic::quant
