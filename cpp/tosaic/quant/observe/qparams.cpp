#include <algorithm>
#include <cmath>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/quant/observe/observe.h"
#include "tosaic/quant/scale.h"

namespace tosaic::quant {

void require_range(const QRange& range) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const auto bounds = [&] { return std::to_string(range.qmin) + " and " + std::to_string(range.qmax); };
  if (range.qmin >= range.qmax || range.qmin < kLeast || range.qmax > kMost ||
      range.qmax - range.qmin > kMost)
    throw QuantMismatch({.where = "observe",
                         .what = "the bounds of the integers",
                         .expected = "qmin < qmax, of at most 32 bits",
                         .got = bounds()});
  if (range.symmetric && (range.zero_point < range.qmin || range.zero_point > range.qmax))
    throw QuantMismatch({.where = "observe",
                         .what = "symmetric quantization cannot represent zero",
                         .expected = "a zero point between " + bounds(),
                         .got = std::to_string(range.zero_point)});
  require_scale("the least scale", range.least_scale);
}

Chosen range_qparams(const Range& range, const QRange& to) {
  require_range(to);
  if (range.finite == 0) return {};
  const float least = std::min(range.least, 0.0F), greatest = std::max(range.greatest, 0.0F);
  const auto steps = static_cast<float>(to.qmax - to.qmin);
  if (to.symmetric) {
    const float scale = std::max(-least, greatest) / (steps / 2);
    return {std::max(scale, to.least_scale), to.zero_point};
  }
  float scale = (greatest - least) / steps;
  if (std::isinf(scale))  // the difference of two f32 may be none
    scale = static_cast<float>((static_cast<double>(greatest) - static_cast<double>(least)) /
                               static_cast<double>(steps));
  scale = std::max(scale, to.least_scale);
  const auto below = static_cast<std::int64_t>(std::nearbyint(least / scale));
  return {scale, std::clamp(to.qmin - below, to.qmin, to.qmax)};
}

}  // namespace tosaic::quant
