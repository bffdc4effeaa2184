#include "tosaic/passes/resize_axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace tosaic::passes {
namespace {

constexpr std::int64_t kMaxNumerator = 2048;  // the specification's 2^11
constexpr std::int64_t kMaxScale = 256;       // level 8K
constexpr std::int64_t kMaxRatio = 16;        // d and offset stay below 16 * n

// Divides n, d and offset by their common divisor. Sets the border such that ((in - 1) * n - offset + border)
// divided by d is out - 1, as RESIZE requires.
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

// torch reads element floor(o * in / out). RESIZE rounds positions half up, so half a pixel is subtracted.
std::optional<ResizeAxis> nearest_axis(std::int64_t in, std::int64_t out, double scale, bool whole_steps) {
  const std::vector<std::int64_t> elements = nearest_elements(in, out, scale, whole_steps);
  for (std::int64_t o = 0; o < out; ++o)
    if (elements[static_cast<std::size_t>(o)] != o * in / out) return std::nullopt;
  return completed({2 * out, 2 * in, -out}, in, out);
}

std::optional<ResizeAxis> bilinear_axis(std::int64_t in, std::int64_t out, bool align_corners, double scale) {
  if (align_corners) {
    if (out == 1) return completed({}, 1, out);
    if (in == 1) return completed({out, 1, 0}, in, out);  // the only pixel is 0: every position is below 1
    return completed({out - 1, in - 1, 0}, in, out);
  }
  if (scale != 0.0 && scale * static_cast<double>(in) != static_cast<double>(out)) return std::nullopt;
  return completed({2 * out, 2 * in, in - out}, in, out);  // a position is the centre of a pixel
}

}  // namespace

std::optional<ResizeAxis> exact_resize_axis(const ResizeAttrs& attrs, std::size_t i, std::int64_t in,
                                            std::int64_t out) {
  const double scale = attrs.scales.empty() ? 0.0 : attrs.scales[i];
  const std::optional<ResizeAxis> axis = attrs.mode == ResizeMode::kNearest
                                             ? nearest_axis(in, out, scale, attrs.size.size() == 2)
                                             : bilinear_axis(in, out, attrs.align_corners, scale);
  return axis && within_limits(*axis) ? axis : std::nullopt;
}

// For output o, torch computes min(floor(float(o) * ratio), in - 1) with a float ratio.
std::vector<std::int64_t> nearest_elements(std::int64_t in, std::int64_t out, double scale,
                                           bool whole_steps) {
  const bool steps = whole_steps && (out == in || out == 2 * in);
  const float ratio =
      scale > 0.0 ? static_cast<float>(1.0 / scale) : static_cast<float>(in) / static_cast<float>(out);
  std::vector<std::int64_t> elements;
  for (std::int64_t o = 0; o < out; ++o)
    elements.push_back(
        steps ? o * in / out
              : std::min(static_cast<std::int64_t>(std::floor(static_cast<float>(o) * ratio)), in - 1));
  return elements;
}

namespace {

// The position at which torch reads the input for output o, computed in float32. It is ratio * (o + 0.5) -
// 0.5, or ratio * o with align_corners. The position is at least 0, unless the mode is bicubic.
float source_position(const ResizeAttrs& attrs, std::int64_t in, std::int64_t out, double scale,
                      std::int64_t o) {
  const auto at = static_cast<float>(o);
  if (attrs.align_corners)
    return out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) * at : 0.0f;
  const float ratio =
      scale > 0.0 ? static_cast<float>(1.0 / scale) : static_cast<float>(in) / static_cast<float>(out);
  const float x = ratio * (at + 0.5f) - 0.5f;
  return attrs.mode == ResizeMode::kBicubic ? x : std::max(x, 0.0f);
}

// The weights of Keys' kernel with a = -0.75 at the distances t + 1, t, 1 - t, 2 - t.
std::array<float, 4> cubic_weights(float t) {
  const float a = -0.75f;
  const auto outer = [a](float d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  const auto inner = [a](float d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  return {outer(t + 1), inner(t), inner(1 - t), outer(2 - t)};
}

}  // namespace

std::vector<ResizeTap> resize_taps(const ResizeAttrs& attrs, std::int64_t in, std::int64_t out,
                                   double scale) {
  const bool cubic = attrs.mode == ResizeMode::kBicubic;
  std::vector<ResizeTap> taps(cubic ? 4 : 2);
  for (std::int64_t o = 0; o < out; ++o) {
    const float x = source_position(attrs, in, out, scale, o);
    const std::int64_t low = std::min(static_cast<std::int64_t>(std::floor(x)), in - 1);
    const float share = std::clamp(x - static_cast<float>(low), 0.0f, 1.0f);
    const std::array<float, 4> weights =
        cubic ? cubic_weights(share) : std::array<float, 4>{1.0f - share, share, 0.0f, 0.0f};
    for (std::size_t i = 0; i < taps.size(); ++i) {
      const std::int64_t element = low + static_cast<std::int64_t>(i) - (cubic ? 1 : 0);
      taps[i].elements.push_back(std::clamp<std::int64_t>(element, 0, in - 1));
      taps[i].weights.push_back(static_cast<double>(weights[i]));
    }
  }
  return taps;
}

}  // namespace tosaic::passes
