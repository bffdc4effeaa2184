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
  if (std::isinf(scale))  // the difference of two f32 may overflow
    scale = static_cast<float>((static_cast<double>(greatest) - static_cast<double>(least)) /
                               static_cast<double>(steps));
  scale = std::max(scale, to.least_scale);
  const auto below = static_cast<std::int64_t>(std::nearbyint(least / scale));
  return {scale, std::clamp(to.qmin - below, to.qmin, to.qmax)};
}

Chosen mask_qparams(const MaskRange& range, const QRange& to) {
  constexpr double kHidesScores = 1024, kAbsorbsScores = -1e8;
  require_range(to);
  double bound = kHidesScores;
  if (range.visible.finite != 0) bound += std::max(-range.visible.least, range.visible.greatest);
  const bool is_binary =
      range.visible.finite == 0 || (range.visible.least == 0 && range.visible.greatest == 0);
  if (is_binary && range.hidden.finite != 0 && range.hidden.infinities == 0 &&
      range.hidden.greatest <= kAbsorbsScores)
    bound = -static_cast<double>(range.hidden.greatest);
  const double zero = to.symmetric ? static_cast<double>(to.zero_point) : 0.0;
  const double steps = std::min(zero - static_cast<double>(to.qmin), static_cast<double>(to.qmax) - zero);
  if (steps < 1) return range_qparams(range.all(), to);
  // Rounded down: the least float must not become minus infinity.
  const float scale = std::nextafter(static_cast<float>(bound / steps), 0.0F);
  return {std::max(scale, to.least_scale), to.symmetric ? to.zero_point : 0};
}

}  // namespace tosaic::quant
