#include "tosaic/passes/resize_axis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tosaic::passes {
namespace {

constexpr std::int64_t kMaxNumerator = 2048;  // the specification's 2^11
constexpr std::int64_t kMaxScale = 256;       // level 8K
constexpr std::int64_t kMaxRatio = 16;        // d and offset stay below 16 * n

// border makes (in - 1) * n - offset + border divisible by d with quotient out - 1.
ResizeAxis completed(ResizeAxis axis, std::int64_t in, std::int64_t out) {
  const std::int64_t common = std::gcd(std::gcd(axis.n, axis.d), axis.offset);
  axis.n /= common;
  axis.d /= common;
  axis.offset /= common;
  axis.extent = in;
  axis.border = (out - 1) * axis.d - (in - 1) * axis.n + axis.offset;
  return axis;
}

bool within_limits(const ResizeAxis& axis) {
  return axis.n <= kMaxNumerator && axis.n <= kMaxScale * axis.d && axis.d < kMaxRatio * axis.n &&
         axis.offset >= -axis.n && axis.offset < kMaxRatio * axis.n && axis.border >= -kMaxRatio * axis.n &&
         axis.border < axis.n;
}

// Nearest takes the floor of o * in / out, and RESIZE rounds half up: half a pixel less.
std::optional<ResizeAxis> nearest_axis(std::int64_t in, std::int64_t out, double scale) {
  const std::vector<std::int64_t> elements = nearest_elements(in, out, scale);
  for (std::int64_t o = 0; o < out; ++o)
    if (elements[static_cast<std::size_t>(o)] != o * in / out) return std::nullopt;
  return completed({2 * out, 2 * in, -out}, in, out);
}

std::optional<ResizeAxis> bilinear_axis(std::int64_t in, std::int64_t out, bool align_corners, double scale) {
  if (align_corners) {
    if (out == 1) return completed({}, 1, out);
    if (in == 1)
      return completed({out, 1, 0}, in, out);  // every position is below pixel 1, which does not exist
    return completed({out - 1, in - 1, 0}, in, out);
  }
  if (scale != 0.0 && scale * static_cast<double>(in) != static_cast<double>(out)) return std::nullopt;
  return completed({2 * out, 2 * in, in - out}, in, out);  // centres of pixels
}

}  // namespace

std::optional<ResizeAxis> exact_resize_axis(const ResizeAttrs& attrs, std::size_t i, std::int64_t in,
                                            std::int64_t out) {
  const double scale = attrs.scales.empty() ? 0.0 : attrs.scales[i];
  const std::optional<ResizeAxis> axis = attrs.mode == ResizeMode::kNearest
                                             ? nearest_axis(in, out, scale)
                                             : bilinear_axis(in, out, attrs.align_corners, scale);
  return axis && within_limits(*axis) ? axis : std::nullopt;
}

// torch: min(floor(float(o) * float scale), in - 1)
std::vector<std::int64_t> nearest_elements(std::int64_t in, std::int64_t out, double scale) {
  const float ratio =
      scale > 0.0 ? static_cast<float>(1.0 / scale) : static_cast<float>(in) / static_cast<float>(out);
  std::vector<std::int64_t> elements;
  for (std::int64_t o = 0; o < out; ++o)
    elements.push_back(
        std::min(static_cast<std::int64_t>(std::floor(static_cast<float>(o) * ratio)), in - 1));
  return elements;
}

// torch, in float32: x = ratio * (o + 0.5) - 0.5, at least 0; with align_corners x = ratio * o. Between
// floor(x) and the element behind it, which is the last one at the end.
std::vector<double> bilinear_weights(std::int64_t in, std::int64_t out, bool align_corners, double scale) {
  float ratio =
      scale > 0.0 ? static_cast<float>(1.0 / scale) : static_cast<float>(in) / static_cast<float>(out);
  if (align_corners) ratio = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
  std::vector<double> weights(static_cast<std::size_t>(in * out), 0.0);
  for (std::int64_t o = 0; o < out; ++o) {
    const auto position = static_cast<float>(o);
    const float x = align_corners ? ratio * position : std::max(ratio * (position + 0.5f) - 0.5f, 0.0f);
    const std::int64_t low = std::min(static_cast<std::int64_t>(x), in - 1), high = std::min(low + 1, in - 1);
    const float share = std::clamp(x - static_cast<float>(low), 0.0f, 1.0f);
    weights[static_cast<std::size_t>(o * in + low)] += static_cast<double>(1.0f - share);
    weights[static_cast<std::size_t>(o * in + high)] += static_cast<double>(share);
  }
  return weights;
}

}  // namespace tosaic::passes
