#include "tosaic/passes/lower_to_integer/integer_contraction.h"

#include <algorithm>
#include <cmath>

#include "tosaic/base/sum_of_magnitudes.h"
#include "tosaic/ir/apply_scale.h"
#include "tosaic/layout/options.h"
#include "tosaic/passes/lower_to_integer/grouped_contraction.h"
#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/lower_to_integer/terms.h"
#include "tosaic/quant/quantize.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

// Says whether the sums start at the bias or at 0.
enum class Bias : std::uint8_t { kInSums, kNone };

struct Weight {
  ScaledInteger integers;
  std::vector<double> scales;      // by result channel
  std::vector<std::int64_t> sums;  // by result channel: a bound of the sum of |w - zero point|
};

DType accumulator(DType input) { return input == DType::kI8 ? DType::kI32 : DType::kI48; }

// Constant operand i is rounded to multiples of `unit`, and each sum of the result has `depth` products. True
// if this rounding can change the result by more than 2^-7 of a unit of 8 bits, or by more than two units of
// 16 bits if the result has these. (There are 2^8 units of 16 bits in one of 8 bits.)
bool rounds_too_far(const RuleContext& ctx, std::size_t i, std::int64_t depth, double unit) {
  const std::optional<QParams> eventual = ctx.node.eventual_qparams();
  if (!eventual || !ctx.is_scaled(1 - i)) return false;
  const ScaledInteger other = ctx.scaled(1 - i);
  const double largest =
      static_cast<double>(other.magnitude()) * *std::max_element(other.scales.begin(), other.scales.end());
  const double allowed = eventual->storage == DType::kI8 ? 0x1p-7 : 2.0;
  return static_cast<double>(depth) * unit / 2 * largest > allowed * eventual->scales.front();
}

// Splits a constant of floats into i8 parts that add up to it. The parts are digits to base 128, of either
// sign. There are two digits. There are three if the target has int16 (then the other operand may have 16
// bits), or if rounds_too_far() is true of two.
std::vector<ScaledInteger> constant_parts(const RuleContext& ctx, std::size_t i, std::int64_t depth) {
  const std::vector<double> numbers = ctx.numbers(i);
  double largest = 0;
  for (const double x : numbers) {
    if (!std::isfinite(x)) throw NoIntegerForm("a constant operand is not finite");
    largest = std::max(largest, std::abs(x));
  }
  const bool three =
      ctx.build.rules().wide_integers || rounds_too_far(ctx, i, depth, largest / std::ldexp(127, 7));
  const int digits = three ? 3 : 2;
  const double most = std::ldexp(127, 7 * (digits - 1));
  const double unit = largest == 0 ? 1.0 : largest / most;
  std::vector<std::int64_t> rest;
  for (const double x : numbers) rest.push_back(std::llround(x / unit));
  const Shape& shape = ctx.node.operand_type(i).shape;
  std::vector<ScaledInteger> parts;
  for (int digit = 0; digit < digits; ++digit) {
    const bool last = digit + 1 == digits;
    std::vector<std::int64_t> values;
    for (std::int64_t& q : rest) {
      const std::int64_t upper = last ? 0 : (q + 64) >> 7;
      values.push_back(q - upper * 128);
      q = upper;
    }
    const ValueRange range = last ? ValueRange{-127, 127} : ValueRange{-64, 63};
    parts.push_back({ctx.build.constant(DType::kI8, shape, values), {std::ldexp(unit, 7 * digit)}, 0, range});
  }
  return parts;
}

bool is_float_constant(const NodeView& node, std::size_t i) {
  return node.is_constant(i) && is_float(node.operand_type(i).dtype);
}

// Splits operand i, constant or computed. Each sum of the result has `depth` products.
std::vector<ScaledInteger> parts_of(const RuleContext& ctx, std::size_t i, std::int64_t depth) {
  return is_float_constant(ctx.node, i) || ctx.by_group(i) ? constant_parts(ctx, i, depth)
                                                           : narrow_parts(ctx.build, ctx.with_one_scale(i));
}

// The axes of a weight that may have per-channel scales.
struct WeightAxes {
  std::size_t channels;    // the axis of the result channels, or of the channels of each group
  std::int64_t groups;     // how often the result repeats that axis
  bool leading_is_groups;  // axis 0 has a position for each group
};

WeightAxes conv_axes(const ConvAttrs& attrs, const Shape& weight) {
  if (!attrs.transposed) return {0, 1, false};
  return {1, attrs.groups, weight[0] == attrs.groups};
}

// The greatest number of products of a weight's elements in a sum. A transposed convolution may have fewer.
std::int64_t products_per_sum(const Shape& weight, const WeightAxes& axes) {
  return num_elements(weight) / std::max<std::int64_t>(weight[axes.channels], 1);
}

// A constant of integers as two digits to base 128, which have scales of their own. The result is exact.
std::vector<ScaledInteger> exact_parts(IntegerBuilder& build, const ScaledInteger& x) {
  const Elements elements(*build.known(x.id));
  std::vector<std::int64_t> upper, lower;
  for (std::size_t k = 0; k < elements.size(); ++k) {
    const std::int64_t q = elements.as_int(k) - x.zero_point;
    upper.push_back((q + 64) >> 7);
    lower.push_back(q - upper.back() * 128);
  }
  const Shape shape = build.type(x.id).shape;
  ScaledInteger high{build.constant(DType::kI8, shape, upper), x.scales, 0, {-127, 127}, x.axis};
  for (double& scale : high.scales) scale *= 128;
  return {{build.constant(DType::kI8, shape, lower), x.scales, 0, {-64, 63}, x.axis}, high};
}

std::vector<ScaledInteger> parts_below(IntegerBuilder& build, const ScaledInteger& x, bool wide);

// A weight as i8 parts, with scales by result channel. A constant with scales along another axis or by group,
// or with more bits than two digits hold, is dequantized and then split as constant_parts() does.
std::vector<ScaledInteger> weight_parts(const RuleContext& ctx, std::size_t i, const WeightAxes& axes,
                                        std::int64_t depth) {
  if (is_float_constant(ctx.node, i) || ctx.by_group(i)) return constant_parts(ctx, i, depth);
  const ScaledInteger weight = ctx.scaled(i);
  const bool scaled_by_channel = !weight.axis || *weight.axis == static_cast<std::int64_t>(axes.channels) ||
                                 (*weight.axis == 0 && axes.leading_is_groups);
  const bool narrow = ctx.build.type(weight.id).dtype == DType::kI8;
  if (narrow && scaled_by_channel) return {weight};
  if (scaled_by_channel && ctx.is_known(i) && weight.magnitude() <= 127 * 128)
    return exact_parts(ctx.build, weight);
  if (ctx.is_known(i)) return constant_parts(ctx, i, depth);
  return narrow ? std::vector{weight} : parts_below(ctx.build, ctx.with_one_scale(i), false);
}

Weight weight_of(IntegerBuilder& build, const ScaledInteger& x, const WeightAxes& axes) {
  const std::size_t axis = axes.channels;
  Weight out{x, {}, {}};
  const TensorType& type = build.type(out.integers.id);
  if (type.dtype != DType::kI8) throw NoIntegerForm("its weight has more than 8 bits");
  const bool by_group = axes.leading_is_groups && out.integers.axis && *out.integers.axis == 0;
  if (out.integers.axis && !by_group && *out.integers.axis != static_cast<std::int64_t>(axis))
    throw NoIntegerForm("its weight is quantized along axis " + std::to_string(*out.integers.axis) +
                        ", not by result channel");
  const std::int64_t channels = type.shape[axis], each = products_per_sum(type.shape, axes);
  std::vector<std::int64_t> sums(static_cast<std::size_t>(channels), each * out.integers.magnitude());
  const ConstantRef& constant = build.known(out.integers.id);
  if (constant && constant->storage.bound()) {
    std::int64_t behind = 1;
    for (std::size_t k = axis + 1; k < type.shape.size(); ++k) behind *= type.shape[k];
    std::fill(sums.begin(), sums.end(), 0);
    const auto* values = reinterpret_cast<const std::int8_t*>(constant->bytes().data());
    for (std::int64_t run = 0; run < num_elements(type.shape) / std::max<std::int64_t>(behind, 1); ++run)
      sums[static_cast<std::size_t>(run % channels)] += sum_of_magnitudes(
          {values + run * behind, static_cast<std::size_t>(behind)}, out.integers.zero_point);
  }
  for (std::int64_t group = 0; group < axes.groups; ++group)
    for (std::int64_t c = 0; c < channels; ++c) {
      out.scales.push_back(
          out.integers.scales[out.integers.axis ? static_cast<std::size_t>(by_group ? group : c) : 0]);
      out.sums.push_back(sums[static_cast<std::size_t>(c)]);
    }
  return out;
}

// False if rounding to units of the sums moves a bias by more than 1/16 of the scale of eventual_qparams().
bool is_fine(const NodeView& node, const std::vector<double>& numbers,
             const std::vector<std::int64_t>& rounded, const std::vector<double>& scales) {
  const std::optional<QParams> to = node.eventual_qparams();
  if (!to) return true;
  for (std::size_t c = 0; c < numbers.size(); ++c) {
    const double unit = scales[scales.size() > 1 ? c : 0];
    if (std::abs(numbers[c] - static_cast<double>(rounded[c]) * unit) > to->scales.front() / 16) return false;
  }
  return true;
}

// The bias in units of the sums. Returns nothing if the bias cannot be part of them: because it is not a
// constant, does not fit, or would be rounded too much. Throws NoIntegerForm if it has NaN.
std::optional<std::vector<std::int64_t>> bias_values(const RuleContext& ctx, std::size_t i,
                                                     const std::vector<double>& scales, DType sums) {
  if (!ctx.is_known(i)) return std::nullopt;
  const std::vector<double> numbers = ctx.numbers(i);
  const std::vector<float> values(numbers.begin(), numbers.end());
  const quant::QuantizedBias bias = quant::quantize_bias(values, scales, sums);
  if (bias.counts.nans != 0) throw NoIntegerForm("its bias is not a number");
  if (bias.counts.saturated != 0) return std::nullopt;
  const ConstantRef& stored = ctx.node.graph().value(ctx.node.operand(i)).constant;
  if (!stored || !ctx.node.operand_type(i).qparams || stored->dtype != DType::kI32) {
    return is_fine(ctx.node, numbers, bias.values, scales) ? std::optional(bias.values) : std::nullopt;
  }
  // A bias quantized to the unit of the sums, up to rounding of the scales by 2^-20, stays as it is.
  const QParams& qparams = *ctx.node.operand_type(i).qparams;
  const Elements elements(*stored);
  std::vector<std::int64_t> out = bias.values;
  for (std::size_t c = 0; c < out.size(); ++c) {
    const std::size_t k = qparams.axis ? c : 0, s = scales.size() > 1 ? c : 0;
    if (std::abs(qparams.scales[k] / scales[s] - 1) <= 0x1p-20)
      out[c] = elements.as_int(c) - qparams.zero_points[k];
  }
  return out;
}

struct Sums {
  std::vector<double> scales;
  ValueId bias;  // invalid: no bias
  ValueRange range;
  std::vector<ValueRange> ranges;  // by channel, each with 0
};

// Scales, bias and range of the sums of `channels` result channels. Returns nothing if the bias cannot be
// part of them, or if they may overflow with it. Throws NoIntegerForm if they may overflow without it.
std::optional<Sums> sums_of(const RuleContext& ctx, const ScaledInteger& x, const Weight& weight,
                            std::size_t channels, DType dtype, Bias with) {
  Sums out;
  out.scales = quant::accumulator_scales(x.scale(), weight.scales);
  std::vector<std::int64_t> bias(channels, 0);
  if (with == Bias::kInSums && ctx.node.has(2)) {
    std::optional<std::vector<std::int64_t>> known = bias_values(ctx, 2, out.scales, dtype);
    if (!known) return std::nullopt;
    bias = std::move(*known);
    out.bias = ctx.build.constant(dtype, {static_cast<std::int64_t>(bias.size())}, bias);
  }
  const ValueRange limits = dtype == DType::kI32 ? kInt32Values : kInt48Values;
  for (std::size_t c = 0; c < channels; ++c) {
    __int128_t most = static_cast<__int128_t>(weight.sums[c]) * x.magnitude();
    const __int128_t low = bias[c] - most, high = bias[c] + most;
    if (most > limits.high)
      throw NoIntegerForm("the sums of channel " + std::to_string(c) + " may leave " +
                          std::string(to_string(dtype)));
    if (low < limits.low || high > limits.high) return std::nullopt;
    out.ranges.push_back({std::min<std::int64_t>(0, static_cast<std::int64_t>(low)),
                          std::max<std::int64_t>(0, static_cast<std::int64_t>(high))});
    out.range.low = std::min(out.range.low, out.ranges.back().low);
    out.range.high = std::max(out.range.high, out.ranges.back().high);
  }
  // Equal scales of all channels become one.
  const auto same = [&](double scale) { return scale == out.scales.front(); };
  if (std::all_of(out.scales.begin(), out.scales.end(), same)) out.scales.resize(1);
  return out;
}

ScaledInteger scaled_sums(ValueId id, Sums sums, std::size_t axis) {
  ScaledInteger out{id, std::move(sums.scales), 0, sums.range};
  if (out.scales.size() > 1) {
    out.axis = static_cast<std::int64_t>(axis);
    out.channel_ranges = {id, std::move(sums.ranges)};
  }
  return out;
}

// The sum of contract(left, right, bias) over all pairs of parts. The sums of the first pair include the bias
// if `first` is Bias::kInSums. Returns nothing if the bias cannot be part of the sums.
template <class Contract>
std::optional<ScaledInteger> over_parts(IntegerBuilder& build, const std::vector<ScaledInteger>& lefts,
                                        const std::vector<ScaledInteger>& rights, Bias first,
                                        Contract&& contract) {
  std::optional<ScaledInteger> sum = contract(lefts.front(), rights.front(), first);
  if (!sum) return std::nullopt;
  for (std::size_t i = 0; i < lefts.size(); ++i)
    for (std::size_t j = i == 0 ? 1 : 0; j < rights.size(); ++j)
      sum = total(build, *sum, *contract(lefts[i], rights[j], Bias::kNone));
  return sum;
}

// Clamps the sums to a range outside of which the result saturates, whatever the bias is. Without the clamp,
// the bias could be lost in the unit of large sums.
ScaledInteger within_result(const RuleContext& ctx, ScaledInteger sums) {
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  if (!to) return sums;
  ScaledInteger out = within_32_bits(ctx.build, sums);
  const double most = largest_number(*to) + term_of(ctx, 2).magnitude();
  const double end = std::ceil(most / std::ranges::min(out.scales)) + 1;
  if (end >= static_cast<double>(out.magnitude())) return sums;
  const auto limit = static_cast<std::int64_t>(end);
  const ValueRange within{std::max(out.range.low, -limit), std::min(out.range.high, limit)};
  out.id = ctx.build.bounded(out.id, out.range, within);
  out.range = within;
  return out;
}

// over_parts() of operands 0 and 1, with the bias (operand 2) in the sums or, if it cannot be part of them,
// added to them in another unit. `own` is the shape in which the bias broadcasts to the result.
template <class Contract>
ScaledInteger with_bias(const RuleContext& ctx, const Shape& own, const WeightAxes& axes,
                        Contract&& contract) {
  const std::int64_t depth = products_per_sum(ctx.node.operand_type(1).shape, axes);
  const std::vector<ScaledInteger> lefts = parts_of(ctx, 0, depth),
                                   rights = weight_parts(ctx, 1, axes, depth);
  if (std::optional<ScaledInteger> sums = over_parts(ctx.build, lefts, rights, Bias::kInSums, contract))
    return std::move(*sums);
  return plus(ctx, within_result(ctx, *over_parts(ctx.build, lefts, rights, Bias::kNone, contract)), 2, own);
}

// A convolution with i48 sums, group by group, because TOSA cannot concatenate i48. The sums of each group
// are first converted to i32, all divided by the same power of two.
ScaledInteger convolved_by_group(IntegerBuilder& build, const IntegerConvAttrs& whole,
                                 const std::vector<ValueId>& operands, const Sums& sums) {
  IntegerConvAttrs attrs = whole;
  attrs.conv.groups = 1;
  const auto part = [&](ValueId id, std::int64_t axis, std::int64_t group) {
    const std::int64_t size = build.type(id).shape[static_cast<std::size_t>(axis)] / whole.conv.groups;
    return build.emit(Op::kSlice, SliceAttrs{axis, group * size, (group + 1) * size, 1}, {id});
  };
  std::vector<ValueId> made;
  ScaledInteger narrow;
  for (std::int64_t group = 0; group < whole.conv.groups; ++group) {
    std::vector<ValueId> own{part(operands[0], 1, group), part(operands[1], 0, group)};
    if (operands.size() > 2) own.push_back(part(operands[2], 0, group));
    narrow = within_32_bits(build, {build.emit(Op::kIntegerConv, attrs, own), {1.0}, 0, sums.range});
    made.push_back(narrow.id);
  }
  ScaledInteger out{build.emit(Op::kCat, AxisAttrs{1}, made), sums.scales, 0, narrow.range};
  for (double& scale : out.scales) scale *= narrow.scale();
  if (out.scales.size() > 1) out.axis = 1;
  return out;
}

// Returns nothing if the bias cannot be part of the sums, as does row_products().
std::optional<ScaledInteger> convolved(const RuleContext& ctx, const ScaledInteger& x,
                                       const ScaledInteger& filters, Bias bias) {
  const auto& attrs = ctx.node.attrs<ConvAttrs>();
  const Weight weight = weight_of(ctx.build, filters, conv_axes(attrs, ctx.build.type(filters.id).shape));
  const DType dtype = accumulator(ctx.build.type(x.id).dtype);
  const auto channels = static_cast<std::size_t>(ctx.node.result_type().shape[1]);
  const std::optional<Sums> sums = sums_of(ctx, x, weight, channels, dtype, bias);
  if (!sums) return std::nullopt;
  const IntegerConvAttrs conv{attrs, x.zero_point, weight.integers.zero_point};
  std::vector<ValueId> operands{x.id, weight.integers.id};
  if (sums->bias.valid()) operands.push_back(sums->bias);
  if (dtype == DType::kI48 && attrs.groups > 1 &&
      !layout::is_depthwise(ctx.build.type(x.id).shape, ctx.build.type(weight.integers.id).shape, attrs))
    return convolved_by_group(ctx.build, conv, operands, *sums);
  return scaled_sums(ctx.build.emit(Op::kIntegerConv, conv, operands), *sums, 1);
}

// Multiplies rows (.., I) by a weight (O, I), with I input channels and O result channels. This is a 1x1
// convolution over an image of one row of pixels, since Ethos-U computes several columns at once.
std::optional<ScaledInteger> row_products(const RuleContext& ctx, const ScaledInteger& x,
                                          const ScaledInteger& rows_of_weight, Bias bias) {
  const Shape shape = ctx.build.type(rows_of_weight.id).shape;
  const Weight weight = weight_of(ctx.build, rows_of_weight, {0, 1, false});
  const DType dtype = accumulator(ctx.build.type(x.id).dtype);
  const std::int64_t out = shape[0], in = shape[1];
  const Shape& result = ctx.node.result_type().shape;
  const std::int64_t rows = num_elements(result) / std::max<std::int64_t>(out, 1);
  std::optional<Sums> sums = sums_of(ctx, x, weight, static_cast<std::size_t>(out), dtype, bias);
  if (!sums) return std::nullopt;
  if (!sums->bias.valid()) sums->bias = ctx.build.constant(dtype, {1}, {0});
  const TosaConvAttrs conv{{0, 0, 0, 0}, {1, 1}, {1, 1}, x.zero_point, weight.integers.zero_point,
                           dtype,        false};
  const ValueId pixels = ctx.build.reshape(x.id, {1, 1, rows, in});
  const ValueId filters = ctx.build.reshape(weight.integers.id, {out, 1, 1, in});
  const ValueId product = ctx.build.emit(Op::kTosaConv2d, conv, {pixels, filters, sums->bias});
  if (dtype == DType::kI32) return scaled_sums(ctx.build.reshape(product, result), *sums, result.size() - 1);
  ScaledInteger wide = scaled_sums(product, *sums, 3);
  wide.pending_shape = result;
  return wide;
}

ScaledInteger matrix_product(const RuleContext& ctx, const ScaledInteger& a, const ScaledInteger& b) {
  const auto as_i16 = [&](const ScaledInteger& x) {
    return ctx.build.type(x.id).dtype == DType::kI16 ? x : rescaled(ctx.build, x, DType::kI16, x.scale());
  };
  const bool wide = ctx.build.type(a.id).dtype == DType::kI16 || ctx.build.type(b.id).dtype == DType::kI16;
  const ScaledInteger left = wide ? as_i16(a) : a, right = wide ? as_i16(b) : b;
  Shape a_shape = ctx.build.type(left.id).shape, b_shape = ctx.build.type(right.id).shape;
  if (a_shape.size() == 1) a_shape = {1, a_shape[0]};
  if (b_shape.size() == 1) b_shape = {b_shape[0], 1};
  const auto batch_of = [](const Shape& shape) { return Shape(shape.span().first(shape.size() - 2)); };
  const Shape batch = broadcast(batch_of(a_shape), batch_of(b_shape));
  const auto flat = [&](ValueId x, const Shape& own) {
    Shape whole = batch;
    whole.push_back(own[own.size() - 2]);
    whole.push_back(own.back());
    return ctx.build.reshape(ctx.build.expand(ctx.build.reshape(x, own), whole),
                             {num_elements(batch), own[own.size() - 2], own.back()});
  };
  const std::int64_t depth = a_shape.back();
  const DType dtype = wide ? DType::kI48 : DType::kI32;
  const __int128_t most = static_cast<__int128_t>(left.magnitude()) * right.magnitude() * depth;
  const ValueRange limits = wide ? kInt48Values : kInt32Values;
  if (most > limits.high) throw NoIntegerForm("its sums may leave " + std::string(to_string(dtype)));
  ValueId x, y;
  if (num_elements(batch_of(b_shape)) == 1) {  // one right matrix: the batch becomes rows
    x = ctx.build.reshape(left.id, {1, num_elements(a_shape) / std::max<std::int64_t>(depth, 1), depth});
    y = ctx.build.reshape(right.id, {1, depth, b_shape.back()});
  } else {
    x = flat(left.id, a_shape);
    y = flat(right.id, b_shape);
  }
  const TosaMatmulAttrs attrs{left.zero_point, right.zero_point, std::nullopt};
  const ValueId product = ctx.build.emit(Op::kTosaMatmul, attrs, {x, y});
  const auto bound = static_cast<std::int64_t>(most);
  ScaledInteger sums{product, {left.scale() * right.scale()}, 0, {-bound, bound}};
  if (wide)
    sums.pending_shape = ctx.node.result_type().shape;
  else
    sums.id = ctx.build.reshape(product, ctx.node.result_type().shape);
  return sums;
}

// Splits x into digits that add up to it, the highest digit first. If `wide`, the digits are i16. There are
// at most two of them, which hold 30 bits. Otherwise the digits are i8: two, which hold 14 bits, or three,
// which hold 21 bits. Three are used if two cannot hold the range of x. Two would then lose too much: the
// range is a proven bound and may be a hundred times larger than the numbers of a run, which would have only
// 7 of the 14 bits.
std::vector<ScaledInteger> parts_below(IntegerBuilder& build, const ScaledInteger& x, bool wide) {
  const DType dtype = build.type(x.id).dtype;
  if (dtype == DType::kI8 || (dtype == DType::kI16 && wide)) return {x};
  const DType narrow = wide ? DType::kI16 : DType::kI8;
  const int bits = wide ? 15 : 7;  // bits of a digit without its sign
  const std::int64_t base = std::int64_t{1} << bits, top = base - 1;
  if (wide && x.magnitude() <= top) return {rescaled(build, x, narrow, x.scale())};
  IntegerMath m(build);
  ScaledInteger y = widened(build, x);
  int digits = 2;
  std::int64_t most = top * base + base / 2 - 1;
  if (!wide && y.magnitude() > most) {
    digits = 3;
    most = top * base * base + (base / 2 - 1) * (base + 1);
  }
  if (wide && y.magnitude() >= std::int64_t{1} << 30) {  // a rescale by nearly 1 is not defined there
    const int fewer = bits_to(y.magnitude()) - 29;
    y = {m.right(y.id, fewer, true),
         {std::ldexp(y.scale(), fewer)},
         0,
         {-(std::int64_t{1} << 29), std::int64_t{1} << 29}};
  } else {
    const double ratio = static_cast<double>(y.magnitude()) / static_cast<double>(most);
    y = rescaled(build, y, DType::kI32, y.scale() * std::max(1.0, ratio));
  }
  std::vector<ScaledInteger> parts;
  ValueId rest = y.id;
  // The largest magnitude of the rest. If two digits easily hold a number, its upper digit is small.
  std::int64_t largest = y.magnitude();
  double scale = y.scale();
  for (int digit = 1; digit < digits; ++digit) {
    const ValueId upper = m.right(m.add(rest, base / 2), bits);
    const ValueId lower = m.sub(rest, m.left(upper, bits));
    parts.push_back({build.cast(lower, narrow), {scale}, 0, {-base / 2, base / 2 - 1}});
    rest = upper;
    largest = (largest + base / 2) >> bits;
    scale = std::ldexp(scale, bits);
  }
  largest = std::min(largest, top);
  parts.push_back({build.cast(rest, narrow), {scale}, 0, {-largest, largest}});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<ScaledInteger> narrow_parts(IntegerBuilder& build, const ScaledInteger& x) {
  return parts_below(build, x, build.rules().wide_integers);
}

RuleResult integer_conv(const RuleContext& ctx) {
  const Shape& shape = ctx.node.operand_type(1).shape;
  if (shape.size() == 3 || ctx.node.operand_type(0).rank() != shape.size() ||
      (ctx.node.attrs<ConvAttrs>().transposed && shape.size() == 5))
    return Refusal{"its rank"};  // the expansion has a rank that has a rule
  const auto& attrs = ctx.node.attrs<ConvAttrs>();
  const WeightAxes axes = conv_axes(attrs, shape);
  const bool is_whole = !attrs.transposed || attrs.groups == 1;  // axis 0 of others has several weights
  if (const std::optional<GroupedWeight> weight =
          is_whole ? grouped_weight(ctx, 1, attrs.transposed ? 1 : 0, attrs.transposed ? 0 : 1)
                   : std::nullopt)
    return grouped_convolution(ctx, parts_of(ctx, 0, products_per_sum(shape, axes)), *weight, attrs.groups,
                               [&](const ScaledInteger& x, const ScaledInteger& filters) {
                                 return *convolved(ctx, x, filters, Bias::kNone);
                               });
  Shape own = Dims::filled(shape.size() - 1, 1);
  own[0] = ctx.node.result_type().shape[1];
  return with_bias(ctx, own, axes, [&](const ScaledInteger& x, const ScaledInteger& w, Bias bias) {
    return convolved(ctx, x, w, bias);
  });
}

RuleResult integer_linear(const RuleContext& ctx) {
  if (const std::optional<GroupedWeight> weight = grouped_weight(ctx, 1, 0, 1))
    return grouped_row_products(ctx, parts_of(ctx, 0, ctx.node.operand_type(1).shape[1]), *weight);
  return with_bias(ctx, {ctx.node.operand_type(1).shape[0]}, {0, 1, false},
                   [&](const ScaledInteger& x, const ScaledInteger& w, Bias bias) {
                     return row_products(ctx, x, w, bias);
                   });
}

namespace {

// The right operand of a matmul as a weight (O, I): a constant i8 matrix, with scales per tensor or per
// column. Returns nothing for other operands.
std::optional<ScaledInteger> transposed_weight(const RuleContext& ctx) {
  if (is_float_constant(ctx.node, 1) || ctx.by_group(1) || ctx.node.operand_type(0).rank() < 2)
    return std::nullopt;
  ScaledInteger matrix = ctx.scaled(1);
  const TensorType& type = ctx.build.type(matrix.id);
  if (!ctx.build.known(matrix.id) || type.rank() != 2 || type.dtype != DType::kI8 ||
      (matrix.axis && *matrix.axis != 1))
    return std::nullopt;
  matrix.id = ctx.build.emit(Op::kPermute, PermuteAttrs{{1, 0}}, {matrix.id});
  if (matrix.axis) matrix.axis = 0;
  return matrix;
}

}  // namespace

RuleResult integer_matmul(const RuleContext& ctx) {
  const std::int64_t depth = ctx.node.operand_type(0).shape.back();
  if (ctx.node.operand_type(0).rank() >= 2 && ctx.node.operand_type(1).rank() == 2)
    if (const std::optional<GroupedWeight> weight = grouped_weight(ctx, 1, 1, 0))
      return grouped_row_products(ctx, parts_of(ctx, 0, depth), *weight);
  if (const std::optional<ScaledInteger> weight = transposed_weight(ctx))
    return *over_parts(ctx.build, parts_of(ctx, 0, depth), {*weight}, Bias::kNone,
                       [&](const ScaledInteger& x, const ScaledInteger& w, Bias bias) {
                         return row_products(ctx, x, w, bias);
                       });
  return *over_parts(ctx.build, parts_of(ctx, 0, depth), parts_of(ctx, 1, depth), Bias::kNone,
                     [&](const ScaledInteger& a, const ScaledInteger& b, Bias) {
                       return std::optional(matrix_product(ctx, a, b));
                     });
}

}  // namespace tosaic::passes
