// Pools and resizes in channels-last order.
//
// Pools: AVG_POOL2D divides by the count without padding, so counted padding becomes an explicit PAD by zero; the
// trailing pad is what the last window needs, as for convolutions. A dilated or over-padded max pool is refused.
// RESIZE: positions are oy * d + offset over n. Bilinear half-pixel: offset (d - n) / 2. Nearest takes the floor, and
// RESIZE rounds, hence offset -n / 2; the rule checks that torch's float32 index arithmetic picks the same pixels.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tosaic/passes/legalizer.h"

namespace tosaic::passes {
namespace {

const DimOrder kNhwc = DimOrder::channels_last(4);

struct PoolInput {
  ValueId value;
  Dims pad;  // top, bottom, left, right
};

// Crops or pads the trailing end so that the windows fit exactly, given what stands in front.
PoolInput fit_windows(Legalizer& l, ValueId x, const Dims& front) {
  const auto& attrs = l.attrs<PoolAttrs>();
  PoolInput fitted{x, {}};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t in = l.type(x).shape[i + 1], out = l.result_type().shape[i + 2];
    const std::int64_t after = (out - 1) * attrs.stride[i] + attrs.dilation[i] * (attrs.kernel[i] - 1) + 1 - in - front[i];
    if (after < 0) fitted.value = l.slice_axis(fitted.value, i + 1, 0, in + after);
    fitted.pad.push_back(front[i]);
    fitted.pad.push_back(std::max<std::int64_t>(after, 0));
  }
  return fitted;
}

ValueId pad_spatially(Legalizer& l, ValueId x, const Dims& before, const Dims& after) {
  return l.pad(x, {0, before[0], before[1], 0}, {0, after[0], after[1], 0}, 0.0);
}

Physical avg_pool(Legalizer& l) {
  const auto& attrs = l.attrs<PoolAttrs>();
  ValueId x = l.operand(0, kNhwc);
  Dims front = attrs.padding;
  if (attrs.count_include_pad || attrs.divisor_override) {
    x = pad_spatially(l, x, attrs.padding, attrs.padding);
    front = {0, 0};
  }
  PoolInput input = fit_windows(l, x, front);
  double factor = 1.0;
  if (attrs.divisor_override) {  // every window full, then one factor
    const Dims bottom{input.pad[1], input.pad[3]};
    input = {pad_spatially(l, input.value, {0, 0}, bottom), {0, 0, 0, 0}};
    factor = static_cast<double>(attrs.kernel[0] * attrs.kernel[1]) / static_cast<double>(*attrs.divisor_override);
  }
  const TosaAvgPoolAttrs pool{attrs.kernel, attrs.stride, input.pad, 0, 0, DType::kF32};
  ValueId y = l.emit(Op::kTosaAvgPool2d, pool, {input.value});
  if (factor != 1.0) y = l.mul(y, l.number_like(y, factor));
  return {y, kNhwc};
}

Physical max_pool(Legalizer& l) {
  const auto& attrs = l.attrs<PoolAttrs>();
  if (attrs.dilation[0] != 1 || attrs.dilation[1] != 1) l.refuse("max_pool with dilation " + to_string(attrs.dilation));
  const PoolInput input = fit_windows(l, l.operand(0, kNhwc), attrs.padding);
  const TosaMaxPoolAttrs pool{attrs.kernel, attrs.stride, input.pad, NanMode::kPropagate};
  return {l.emit(Op::kTosaMaxPool2d, pool, {input.value}), kNhwc};
}

// One axis of a RESIZE: position of output o is (o * d + offset) / n.
struct Axis {
  std::int64_t n = 1, d = 1, offset = 0, border = 0;
};

// border makes (in - 1) * n - offset + border divisible by d with quotient out - 1.
Axis with_border(Axis axis, std::int64_t in, std::int64_t out) {
  axis.border = (out - 1) * axis.d - (in - 1) * axis.n + axis.offset;
  return axis;
}

Axis bilinear_axis(Legalizer& l, std::int64_t in, std::int64_t out, bool align_corners, double scale) {
  Axis axis;
  if (align_corners) {
    axis.n = std::max<std::int64_t>(out - 1, 1);
    axis.d = out > 1 ? in - 1 : 0;
    const std::int64_t common = std::gcd(axis.n, axis.d);
    axis.n /= common;
    axis.d = std::max<std::int64_t>(axis.d / common, 1);
    if (in == 1) axis = {1, 1, 0, 0};
    if (in == 1 && out > 1) axis = {out, 1, 0, 0};  // every position is below pixel 1, which does not exist
    return with_border(axis, in, out);
  }
  if (scale != 0.0 && scale * static_cast<double>(in) != static_cast<double>(out))
    l.refuse("bilinear resize by a scale that is not the ratio of the sizes",
             "Pass size=, or recompute_scale_factor=True");
  const std::int64_t common = std::gcd(in, out);
  axis.n = 2 * (out / common);
  axis.d = 2 * (in / common);
  axis.offset = (axis.d - axis.n) / 2;
  return with_border(axis, in, out);
}

// torch: min(floor(float(o) * float scale), in - 1)
std::int64_t torch_nearest(std::int64_t o, std::int64_t in, std::int64_t out, double scale) {
  const float ratio = scale > 0.0 ? static_cast<float>(1.0 / scale) : static_cast<float>(in) / static_cast<float>(out);
  return std::min(static_cast<std::int64_t>(std::floor(static_cast<float>(o) * ratio)), in - 1);
}

Axis nearest_axis(Legalizer& l, std::int64_t in, std::int64_t out, double scale) {
  const std::int64_t common = std::gcd(in, out);
  Axis axis{2 * (out / common), 2 * (in / common), 0, 0};
  axis.offset = -axis.n / 2;
  for (std::int64_t o = 0; o < out; ++o)
    if (torch_nearest(o, in, out, scale) != o * in / out)
      l.refuse("nearest resize from " + std::to_string(in) + " to " + std::to_string(out) +
               " picks other pixels in torch's float32 arithmetic than in exact arithmetic");
  return with_border(axis, in, out);
}

}  // namespace

Physical legalize_pool(Legalizer& l) {
  if (l.attrs<PoolAttrs>().kernel.size() != 2)
    l.refuse("a pool over " + std::to_string(l.attrs<PoolAttrs>().kernel.size()) + " axes has no TOSA counterpart");
  return l.node().op == Op::kAvgPool ? avg_pool(l) : max_pool(l);
}

Physical legalize_resize(Legalizer& l) {
  const auto& attrs = l.attrs<ResizeAttrs>();
  const Shape& in = l.logical_type(0).shape;
  const Shape& out = l.result_type().shape;
  if (in.size() != 4) l.refuse("a resize of rank " + std::to_string(in.size()) + " has no TOSA counterpart");
  TosaResizeAttrs resize;
  resize.mode = attrs.mode;
  for (std::size_t i = 0; i < 2; ++i) {
    const double scale = attrs.scales.empty() ? 0.0 : attrs.scales[i];
    const Axis axis = attrs.mode == ResizeMode::kNearest
                          ? nearest_axis(l, in[i + 2], out[i + 2], scale)
                          : bilinear_axis(l, in[i + 2], out[i + 2], attrs.align_corners, scale);
    resize.scale.push_back(axis.n);
    resize.scale.push_back(axis.d);
    resize.offset.push_back(axis.offset);
    resize.border.push_back(axis.border);
  }
  return {l.emit(Op::kTosaResize, resize, {l.operand(0, kNhwc)}), kNhwc};
}

}  // namespace tosaic::passes
