// integer_grid_sample: lowers a grid sampler over an image of 8 or 16 bits at positions of 8, 16 or 32 bits.
//
//   %y: i8 q(s_y, z_y) = grid_sample(%x: i8 q(s_x, z_x), %g: i16 q(s_g, z_g))
//
//   %sums: i32 = integer_grid_sample(%x, %g)      unit s_x * 2^-22
//   %y: i8 = rescale(%sums)                       the only rounding of numbers of the image
//
// The rule chooses the arithmetic of positions, which ir/integer_sampler.h defines: the multiplier of each
// axis, and as many fractional bits as 32 bits leave.

#include <algorithm>
#include <array>
#include <cmath>

#include "tosaic/ir/integer_sampler.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

// One axis: position = steps * (coordinate - zero point) + (extent - 1) / 2, in pixels.
struct Axis {
  std::int64_t extent = 1;
  double steps = 0;
};

// The range of grid integers outside of which samples do not change: all taps are outside of the image, or
// are its edge.
ValueRange useful_range(const Axis& axis, const GridSampleAttrs& attrs, std::int64_t zero_point) {
  constexpr double kAll = 0x1p40;
  if (axis.steps == 0) return {zero_point, zero_point};
  const double margin = attrs.mode == ResizeMode::kBicubic ? 3 : 2;  // pixels outside of the image
  const double reach = (static_cast<double>(axis.extent - 1) / 2 + margin) / axis.steps;
  const auto most = static_cast<std::int64_t>(std::ceil(std::min(reach, kAll)));
  return {zero_point - most, zero_point + most};
}

// The most fractional bits with which all positions, and the period of a reflection, have 30 bits, and
// products with a multiplier are exact to a quarter of the last bit.
int fraction_bits(const Axis& axis, GridPadding padding, double farthest) {
  const double reach = axis.steps * farthest, centre = static_cast<double>(axis.extent - 1) / 2;
  const double period = padding == GridPadding::kReflection ? 2.0 * static_cast<double>(axis.extent) : 0.0;
  for (int bits = kMostFractionBits; bits > 0; --bits)
    if (std::ldexp(reach, bits) <= 0x1p29 && std::ldexp(reach + centre + 4, bits) <= 0x1p30 &&
        std::ldexp(period, bits) <= 0x1p30)
      return bits;
  throw NoIntegerForm("its positions have more than 30 bits");
}

// True for i8 with scale 1/127 and zero point 0: Vulkan's SNORM format, if -128 is -1 as well.
bool has_snorm_scale(double scale, std::int64_t zero_point) {
  return zero_point == 0 && std::abs(scale * 127 - 1) < 1e-6;
}

// True if integers outside the range of the qparams may occur, because no node of the graph rounds to them.
bool comes_from_outside(const Graph& graph, ValueId id) {
  for (const Node* node = graph.producer(id); node != nullptr; node = graph.producer(id)) {
    if (!info(node->op).has(kMovement) && !info(node->op).has(kView)) return false;
    id = graph.operands(*node)[0];
  }
  return true;
}

// The least integer that the sampler reads; lesser integers of the image are raised to it. An image that the
// graph's caller passes may have integers below its range. A result of -127..127 says that the sampler has
// SNORM images, whatever range its image has: a dequantize node without a quantize node has the range of i8.
std::int64_t least_integer(const RuleContext& ctx, const ScaledInteger& image) {
  const DType dtype = ctx.build.type(image.id).dtype;
  const std::int64_t least = integer_limits(dtype)->low;
  if (!comes_from_outside(ctx.node.graph(), ctx.node.operand(0))) return least;
  const QParams* const to = ctx.node.result_qparams();
  const bool snorm = dtype == DType::kI8 && has_snorm_scale(image.scale(), image.zero_point) &&
                     to != nullptr && to->storage == DType::kI8 && to->qmin == -127 &&
                     has_snorm_scale(to->scales.front(), to->zero_points.front());
  return snorm ? -127 : image.range.low;
}

// The sums of a bilinear sample are means of pixels and zeros. The weights of a bicubic sample add up to 1,
// and their magnitudes to less than 1.9.
ValueRange range_of_sums(const ScaledInteger& image, ResizeMode mode, int bits) {
  const ValueRange v = image.centred();
  const std::int64_t one = std::int64_t{1} << bits, slack = 16;  // roundings of 16 products
  if (mode == ResizeMode::kBilinear)
    return {std::min<std::int64_t>(v.low, 0) * one - slack, std::max<std::int64_t>(v.high, 0) * one + slack};
  const auto most = static_cast<std::int64_t>(1.9 * static_cast<double>(image.magnitude() * one)) + slack;
  return {-most, most};
}

}  // namespace

RuleResult integer_grid_sample(const RuleContext& ctx) {
  const auto& sample = ctx.node.attrs<GridSampleAttrs>();
  const Shape& shape = ctx.node.operand_type(0).shape;
  if (shape.size() != 4) return Refusal{"it samples a volume"};
  const ScaledInteger image = ctx.with_one_scale(0), stored = ctx.with_one_scale(1);
  const DType dtype = ctx.build.type(image.id).dtype;
  if (dtype != DType::kI8 && dtype != DType::kI16) return Refusal{"its image has more than 16 bits"};
  if (dtype == DType::kI16 && image.zero_point != 0) return Refusal{"its image has a zero point of 16 bits"};
  if (image.minus_infinity || stored.minus_infinity || image.nan_mask || stored.nan_mask)
    return Refusal{"its operands may be infinite or NaN"};
  const bool wide = ctx.build.type(stored.id).dtype == DType::kI32;
  const ScaledInteger grid = wide ? within_bits(ctx.build, stored, 30) : stored;

  const std::array<Axis, 2> axes = [&] {
    std::array<Axis, 2> out;
    for (std::size_t i = 0; i < 2; ++i) {
      out[i].extent = shape[3 - i];
      const std::int64_t spans = sample.align_corners ? out[i].extent - 1 : out[i].extent;
      out[i].steps = grid.scale() * static_cast<double>(spans) / 2;
    }
    return out;
  }();
  ValueRange used = grid.range;
  if (sample.padding != GridPadding::kReflection) {
    const ValueRange x = useful_range(axes[0], sample, grid.zero_point),
                     y = useful_range(axes[1], sample, grid.zero_point);
    used = {std::clamp(std::min(x.low, y.low), grid.range.low, grid.range.high),
            std::clamp(std::max(x.high, y.high), grid.range.low, grid.range.high)};
  }
  IntegerGridSampleAttrs attrs{.sample = sample,
                               .input_zp = image.zero_point,
                               .input_low = least_integer(ctx, image),
                               .grid_zp = grid.zero_point,
                               .grid_low = used.low,
                               .grid_high = used.high,
                               .multiplier = {},
                               .shift = {},
                               .fraction = {}};
  const double farthest = static_cast<double>(
      std::max(std::abs(used.low - grid.zero_point), std::abs(used.high - grid.zero_point)));
  for (const Axis& axis : axes) {
    const int bits = fraction_bits(axis, sample.padding, farthest);
    const Multiplier by = axis.steps == 0
                              ? Multiplier{0, kMaxShift}  // one pixel: the position is 0
                              : quant::multiplier_of(std::ldexp(axis.steps, bits), MultiplierWidth::k32,
                                                     "the scale of the grid");
    attrs.multiplier.push_back(by.multiplier);
    attrs.shift.push_back(by.shift);
    attrs.fraction.push_back(bits);
  }
  ScaledInteger out{
      ctx.build.emit(Op::kIntegerGridSample, attrs, {image.id, grid.id}),
      image.scales,
      image.zero_point,
      {std::min(image.range.low, image.zero_point), std::max(image.range.high, image.zero_point)}};
  if (sample.mode == ResizeMode::kNearest) return out;
  const int bits = sampler_weights(dtype).sum_bits();
  out.scales = {std::ldexp(image.scale(), -bits)};
  out.zero_point = 0;
  out.range = range_of_sums(image, sample.mode, bits);
  return out;
}

}  // namespace tosaic::passes
