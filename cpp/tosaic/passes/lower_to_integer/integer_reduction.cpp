// integer_reduction: lowers sums, means, products, extrema and pools.
//
//   sum, mean, avg_pool      sums are exact up to 30 bits; a mean divides by changing the scale, so the only
//                            rounding is the rounding of the result
//   amax, argmax, max_pool   work on the integers unchanged, as they have the order of the numbers; a pool
//                            of integers that MAX_POOL2D does not take compares the slices that its windows
//                            read
//   prod                     works on mantissas and exponents
//
// Sums over windows, and over a whole image, are one operator: a depthwise convolution by ones. The sum,
// average and maximum of an image do not depend on the places of its elements. If a window as large as the
// image is more than a device takes (target/device_windows.h), the elements are therefore arranged in rows:
//
//   i8[1,8,112,112]  reshape  ->  [1,8,4,3136]  sums of windows of 1 x 3136  ->  [1,8,4,1]  sum of axis 2
//   i8[1,8,300,3]    reshape  ->  [1,8,1,900]   average of a window of 1 x 900

#include <algorithm>
#include <cmath>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/passes/lower_to_integer/backend_forms.h"
#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"
#include "tosaic/passes/lower_to_integer/integer_contraction.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/target/device_windows.h"

namespace tosaic::passes {
namespace {

// Sums over windows of the last two axes of (N, C, H, W), as a depthwise convolution by ones.
ScaledInteger window_sums(IntegerBuilder& build, const ScaledInteger& x, const ConvAttrs& windows,
                          const Dims& kernel) {
  const std::int64_t channels = build.type(x.id).shape[1], count = num_elements(kernel);
  IntegerConvAttrs attrs{windows, x.zero_point, 0};
  attrs.conv.groups = channels;
  const Shape shape{channels, 1, kernel[0], kernel[1]};
  const ValueId ones = build.constant(
      DType::kI8, shape, std::vector<std::int64_t>(static_cast<std::size_t>(num_elements(shape)), 1));
  const DType dtype = build.type(x.id).dtype == DType::kI8 ? DType::kI32 : DType::kI48;
  const ValueRange centred = x.centred();
  const ValueRange range{std::min<std::int64_t>(centred.low, 0) * count,
                         std::max<std::int64_t>(centred.high, 0) * count};
  if (dtype == DType::kI32 && (range.low < kInt32Values.low || range.high > kInt32Values.high))
    throw NoIntegerForm("its sums may leave i32");
  return {build.emit(Op::kIntegerConv, attrs, {x.id, ones}), x.scales, 0, range};
}

// True for the last two axes of a narrow value of rank 4.
bool is_over_image(const IntegerBuilder& build, const ScaledInteger& x, const Dims& axes) {
  const Shape& shape = build.type(x.id).shape;
  return is_narrow(build, x) && shape.size() == 4 && axes.size() == 2 && axes.contains(2) && axes.contains(3);
}

// The sum along axes that keep extent 1. It is rounded if it has more than 30 bits.
ScaledInteger sum_along(IntegerBuilder& build, const ScaledInteger& wide, const Dims& axes) {
  IntegerMath m(build);
  ScaledInteger x = within_bits(build, wide, 30);
  for (const std::int64_t axis : axes) {
    const std::int64_t count = build.type(x.id).shape[static_cast<std::size_t>(axis)];
    if (count == 1) continue;
    const int fewer = std::max(0, bits_to(x.magnitude()) + bits_to(count) - 30);
    x.id = m.sum_less(x.id, axis, count, fewer);
    x.scales = {std::ldexp(x.scale(), fewer)};
    const int rounds = fewer > 0 ? 1 : 0;
    x.range = {std::min<std::int64_t>(x.range.low >> fewer, 0) * count,
               std::max<std::int64_t>((x.range.high >> fewer) + rounds, 0) * count};
  }
  return x;
}

// `count` rows of `length` elements, from element `first` of an image on.
struct Rows {
  std::int64_t first, count, length;
};

// Rows for windows of 1 x length that all devices take: the fewest that divide the elements, unless these are
// twice as many as rows of the greatest length. Then the rows have that length, and one more has the rest.
std::vector<Rows> rows_of(std::int64_t elements) {
  constexpr std::int64_t kLongest = target::kConvolutionWindows.product;
  const std::int64_t fewest = (elements + kLongest - 1) / kLongest;
  for (std::int64_t count = fewest; count <= 2 * fewest; ++count)
    if (elements % count == 0) return {{0, count, elements / count}};
  const std::int64_t whole = elements / kLongest;
  return {{0, whole, kLongest}, {whole * kLongest, 1, elements - whole * kLongest}};
}

ValueId in_rows(IntegerBuilder& build, ValueId image, const Rows& rows) {
  const Shape shape = build.type(image).shape;
  const std::int64_t elements = shape[2] * shape[3], count = rows.count * rows.length;
  if (count != elements) {
    image = build.reshape(image, {shape[0], shape[1], 1, elements});
    image = build.emit(Op::kSlice, SliceAttrs{3, rows.first, rows.first + count, 1}, {image});
  }
  return build.reshape(image, {shape[0], shape[1], rows.count, rows.length});
}

ConvAttrs whole_window() { return {{1, 1}, {0, 0}, {0, 0}, {1, 1}, {0, 0}, 1, false}; }

ScaledInteger sums_of_rows(IntegerBuilder& build, const ScaledInteger& x, const std::vector<Rows>& parts) {
  const auto sum_of = [&](const Rows& rows) {
    ScaledInteger part = x;
    part.id = in_rows(build, x.id, rows);
    part = window_sums(build, part, whole_window(), {1, rows.length});
    return rows.count > 1 ? sum_along(build, part, {2}) : part;
  };
  ScaledInteger sum = sum_of(parts.front());
  for (std::size_t i = 1; i < parts.size(); ++i) sum = total(build, sum, sum_of(parts[i]));
  return sum;
}

// The sums of whole images of (N, C, H, W). Returns nothing if they have no form that is exact and that all
// devices take: sums of 16 bits have 48, and no operator adds these.
std::optional<ScaledInteger> image_sums(IntegerBuilder& build, const ScaledInteger& x) {
  const Shape shape = build.type(x.id).shape;
  if (target::kConvolutionWindows.take(shape[2], shape[3]))
    return window_sums(build, x, whole_window(), {shape[2], shape[3]});
  const std::vector<Rows> parts = rows_of(shape[2] * shape[3]);
  const bool is_one_row = parts.size() == 1 && parts[0].count == 1;
  if (build.type(x.id).dtype == DType::kI8 || is_one_row) return sums_of_rows(build, x, parts);
  constexpr std::int64_t kLargestKernel = 8192;  // of TOSA's level 8K
  const bool is_exact = bits_to(x.magnitude()) + bits_to(shape[2] * shape[3]) <= 30;
  if (is_exact || shape[2] > kLargestKernel || shape[3] > kLargestKernel) return std::nullopt;
  return window_sums(build, x, whole_window(), {shape[2], shape[3]});
}

ScaledInteger sum_over(IntegerBuilder& build, const ScaledInteger& from, const Dims& axes) {
  if (is_over_image(build, from, axes))
    if (std::optional<ScaledInteger> sums = image_sums(build, from)) return *std::move(sums);
  const ScaledInteger x = within_bits(build, widened(build, from), 30);
  return build.type(x.id).rank() == 0 ? x : sum_along(build, x, axes);
}

bool has_qparams_of_result(const RuleContext& ctx, const ScaledInteger& x) {
  const QParams* to = ctx.node.result_qparams();
  return to != nullptr && to->storage == ctx.build.type(x.id).dtype && !x.axis && to->scales == x.scales &&
         to->zero_points.front() == x.zero_point;
}

bool is_raw(const IntegerBuilder& build) {
  return build.rules().semantics.average == target::AverageForm::kRawSum;
}

// Emits AVG_POOL2D. It divides by the number of elements of a window that are inside the image, and its
// result has the qparams of x. AVG_POOL2D needs channels last, so permutes are emitted. If the values are
// stored channels last, the layout plan makes them no-ops.
ValueId pooled(IntegerBuilder& build, const ScaledInteger& x, const Dims& kernel, const Dims& stride,
               const Dims& before, const Shape& out) {
  ValueId image = build.emit(Op::kPermute, PermuteAttrs{{0, 2, 3, 1}}, {x.id});
  // AVG_POOL2D rounds halves away from zero after it subtracts the zero point. With zero point 0, it rounds
  // the average of the integers themselves.
  const std::int64_t zero_point = is_raw(build) ? 0 : x.zero_point;
  TosaAvgPoolAttrs pool{kernel, stride, {}, zero_point, zero_point, DType::kI32};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t extent = build.type(image).shape[i + 1];
    const std::int64_t after = (out[i + 2] - 1) * stride[i] + kernel[i] - extent - before[i];
    if (after < 0)
      image =
          build.emit(Op::kSlice, SliceAttrs{static_cast<std::int64_t>(i) + 1, 0, extent + after, 1}, {image});
    pool.pad.push_back(before[i]);
    pool.pad.push_back(std::max<std::int64_t>(after, 0));
  }
  return build.emit(Op::kPermute, PermuteAttrs{{0, 3, 1, 2}},
                    {build.emit(Op::kTosaAvgPool2d, pool, {image})});
}

// The average of whole images by AVG_POOL2D. Returns nothing if there is a device that takes no such pool.
std::optional<ValueId> pooled_images(IntegerBuilder& build, ScaledInteger x) {
  const Shape in = build.type(x.id).shape;
  std::int64_t height = in[2], width = in[3];
  if (!is_raw(build) && !target::kAvgPoolWindows.take(height, width, in[0])) {
    width *= std::exchange(height, 1);
    if (!target::kAvgPoolWindows.take(height, width, in[0])) return std::nullopt;
    x.id = in_rows(build, x.id, {0, height, width});
  }
  return pooled(build, x, {height, width}, {1, 1}, {0, 0}, {in[0], in[1], 1, 1});
}

// avg_pool with count_include_pad, for AverageForm::kRawSum: the image is padded with the zero point, and
// then pooled without padding.
ValueId padded_and_pooled(IntegerBuilder& build, const ScaledInteger& x, const PoolAttrs& attrs,
                          const Shape& out) {
  const Dims pads{0, 0, attrs.padding[0], attrs.padding[1]};
  ScaledInteger image = x;
  image.id = build.emit(Op::kPad, PadAttrs{pads, pads, PadMode::kConstant, x.zero_point}, {x.id});
  return pooled(build, image, attrs.kernel, attrs.stride, {0, 0}, out);
}

ValueId without_kept_axes(const RuleContext& ctx, ValueId x) {
  return ctx.build.reshape(x, ctx.node.result_type().shape);
}

}  // namespace

RuleResult integer_sum(const RuleContext& ctx) {
  const auto& attrs = ctx.node.attrs<ReduceAttrs>();
  const ScaledInteger x = ctx.with_one_scale(0);
  if (ctx.node.op() == Op::kMean && is_over_image(ctx.build, x, attrs.axes) && has_qparams_of_result(ctx, x))
    if (const std::optional<ValueId> images = pooled_images(ctx.build, x))
      return without_kept_axes(ctx, *images);
  ScaledInteger sum = sum_over(ctx.build, x, attrs.axes);
  if (ctx.node.op() == Op::kMean) {
    std::int64_t count = 1;
    for (const std::int64_t axis : attrs.axes)
      if (ctx.node.operand_type(0).rank() > 0)
        count *= ctx.node.operand_type(0).shape[static_cast<std::size_t>(axis)];
    sum.scales = {sum.scale() / static_cast<double>(count)};
  }
  if (ctx.build.type(sum.id).dtype == DType::kI48)
    sum.pending_shape = ctx.node.result_type().shape;
  else
    sum.id = without_kept_axes(ctx, sum.id);
  return sum;
}

// Lowers avg_pool. The divisor of a window is the number of its elements inside the image. With
// count_include_pad, elements in the requested padding count too. If divisors differ, each sum is multiplied
// by a factor of its own.
RuleResult integer_avg_pool(const RuleContext& ctx) {
  const auto& attrs = ctx.node.attrs<PoolAttrs>();
  const Shape& in = ctx.node.operand_type(0).shape;
  const Shape& out = ctx.node.result_type().shape;
  if (attrs.kernel.size() != 2 || in.size() != 4)
    return Refusal{"its rank"};  // the expansion has a rank that has a rule
  const ScaledInteger x = ctx.with_one_scale(0);
  const bool pads = attrs.padding[0] != 0 || attrs.padding[1] != 0;
  const bool same_qparams = is_narrow(ctx.build, x) && has_qparams_of_result(ctx, x);
  if (ctx.build.rules().semantics.average == target::AverageForm::kRawSum && same_qparams && pads &&
      attrs.count_include_pad && !attrs.divisor_override)
    return padded_and_pooled(ctx.build, x, attrs, out);
  Dims kernel = attrs.kernel, before = attrs.padding, after;
  std::vector<std::int64_t> counts{1};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t extent = in[i + 2], size = attrs.kernel[i], pad = attrs.padding[i];
    if (out[i + 2] == 1) {  // one window: only its part inside the image
      kernel[i] = std::min(size - pad, extent);
      before[i] = 0;
    }
    after.push_back(
        std::max<std::int64_t>((out[i + 2] - 1) * attrs.stride[i] + kernel[i] - extent - before[i], 0));
    std::vector<std::int64_t> each;
    for (const std::int64_t count : counts)
      for (std::int64_t at = 0; at < out[i + 2]; ++at) {
        const std::int64_t start = at * attrs.stride[i] - pad;
        const std::int64_t low = attrs.count_include_pad ? start : std::max<std::int64_t>(start, 0);
        const std::int64_t high = std::min(start + size, extent + (attrs.count_include_pad ? pad : 0));
        each.push_back(count * (high - low));
      }
    counts = std::move(each);
  }
  if (attrs.divisor_override) std::fill(counts.begin(), counts.end(), *attrs.divisor_override);
  const bool counts_image = !attrs.divisor_override && (!attrs.count_include_pad || !pads);
  const bool covers_image = out[2] == 1 && out[3] == 1 && kernel == Dims{in[2], in[3]};
  if (counts_image && same_qparams) {
    if (!covers_image) return pooled(ctx.build, x, kernel, attrs.stride, before, out);
    if (const std::optional<ValueId> images = pooled_images(ctx.build, x)) return *images;
  }
  const ConvAttrs windows{attrs.stride, before, after, {1, 1}, {0, 0}, 1, false};
  const std::vector<ScaledInteger> parts = narrow_parts(ctx.build, x);
  const auto sums_of = [&](const ScaledInteger& part) {
    return covers_image ? sum_over(ctx.build, part, {2, 3}) : window_sums(ctx.build, part, windows, kernel);
  };
  ScaledInteger sums = sums_of(parts.front());
  for (std::size_t k = 1; k < parts.size(); ++k) sums = total(ctx.build, sums, sums_of(parts[k]));
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  if (*least <= 0) return Refusal{"a window of it counts no element"};
  if (*least == *most) {
    sums.scales = {sums.scale() / static_cast<double>(*least)};
    return sums;
  }
  // Each sum is multiplied by least / count, a factor of 30 bits. `least` is the smallest count of all
  // windows, by which the scale is divided. The product is in a unit that is finer by 2^-finer, so it has a
  // fraction.
  constexpr int kBits = 30;
  const ScaledInteger small = with_one_scale(ctx.build, sums);
  const int finer = std::clamp(kBits - 1 - bits_to(small.magnitude() + 1), 0, kBits - 1);
  std::vector<std::int64_t> factors;
  for (const std::int64_t count : counts)
    factors.push_back(
        std::llround(std::ldexp(static_cast<double>(*least) / static_cast<double>(count), kBits)));
  const ValueId factor = ctx.build.constant(DType::kI32, {1, 1, out[2], out[3]}, factors);
  const ValueId product = ctx.build.emit(Op::kTosaMul, TosaMulAttrs{kBits - finer}, {small.id, factor});
  return ScaledInteger{product,
                       {std::ldexp(small.scale(), -finer) / static_cast<double>(*least)},
                       0,
                       {small.range.low << finer, small.range.high << finer}};
}

std::optional<RuleResult> whole_image_average(const RuleContext& ctx) {
  const Shape& out = ctx.node.result_type().shape;
  if (ctx.build.rules().semantics.average != target::AverageForm::kRawSum || out.size() != 4 || out[2] != 1 ||
      out[3] != 1 || !ctx.is_scaled(0))
    return std::nullopt;
  const ScaledInteger x = ctx.scaled(0);
  if (x.axis || !is_over_image(ctx.build, x, {2, 3}) || !has_qparams_of_result(ctx, x)) return std::nullopt;
  return *pooled_images(ctx.build, x);
}

namespace {

// Numbers as mantissa * 2^exponent, with the mantissa in [2^29, 2^30).
struct Floating {
  ValueId mantissa, exponent;
};

// Converts i32 numbers in [1, 2^30) to Floating.
Floating floating(IntegerMath& m, ValueId positive) {
  const ValueId shift = m.add(m.clz(positive), -2);
  return {m.left(positive, shift), m.sub(0, shift)};
}

// The product along an axis. Pairs are multiplied until one element is left.
Floating multiplied_along(IntegerBuilder& build, Floating x, std::int64_t axis) {
  IntegerMath m(build);
  const auto part = [&](ValueId id, std::int64_t from, std::int64_t to) {
    return build.emit(Op::kSlice, SliceAttrs{axis, from, to, 1}, {id});
  };
  for (;;) {
    const std::int64_t count = build.type(x.mantissa).shape[static_cast<std::size_t>(axis)], half = count / 2;
    if (count == 1) return x;
    const ValueId product =
        m.mul(part(x.mantissa, 0, half), part(x.mantissa, half, 2 * half), 30);  // in [2^28, 2^30)
    const ValueId shift = m.add(m.clz(product), -2);
    const ValueId exponent = m.add(part(x.exponent, 0, half), part(x.exponent, half, 2 * half));
    Floating next{m.left(product, shift), m.sub(m.add(exponent, 30), shift)};
    if (count % 2 != 0) {
      const AxisAttrs along{axis};
      next.mantissa = build.emit(Op::kCat, along, {next.mantissa, part(x.mantissa, count - 1, count)});
      next.exponent = build.emit(Op::kCat, along, {next.exponent, part(x.exponent, count - 1, count)});
    }
    x = next;
  }
}

}  // namespace

// The product of the magnitudes as mantissa and exponent, shifted to a unit for the largest possible result.
// The number of negative factors decides the sign; if the least magnitude is 0, the result is 0.
RuleResult integer_prod(const RuleContext& ctx) {
  const auto& attrs = ctx.node.attrs<ReduceAttrs>();
  IntegerMath m(ctx.build);
  ScaledInteger x = widened(ctx.build, ctx.with_one_scale(0));
  if (ctx.build.type(x.id).rank() == 0) return x;
  ValueId size = ctx.build.emit(Op::kTosaAbs, NoAttrs{}, {x.id});
  ValueId least = size;
  ValueId negative = ctx.build.cast(ctx.build.binary(Op::kTosaGreater, m.number(x.id, 0), x.id), DType::kI32);
  Floating product = floating(m, m.maximum(size, 1));
  std::int64_t count = 1;
  for (const std::int64_t axis : attrs.axes) {
    count *= ctx.build.type(x.id).shape[static_cast<std::size_t>(axis)];
    product = multiplied_along(ctx.build, product, axis);
    least = ctx.build.emit(Op::kTosaReduceMin, TosaAxisNanAttrs{axis, NanMode::kPropagate}, {least});
    negative = m.sum(negative, axis);
  }
  // `top` is log2 of the largest result, since that result itself may be beyond the range of a double.
  double top = static_cast<double>(count) *
               std::log2(static_cast<double>(std::max<std::int64_t>(x.magnitude(), 1)) * x.scale());
  if (const std::optional<QParams> to = ctx.node.eventual_qparams()) {
    top = std::min(top, std::log2(largest_number(*to)) + 1);
  }
  const double unit = std::ceil(top) - 29;  // log2 of the unit: results up to 2^top have at most 29 bits
  const double units = unit - static_cast<double>(count) * std::log2(x.scale());
  if (!(std::abs(unit) <= 900 && std::abs(units) <= 1e6)) return Refusal{"its results are out of all range"};
  const auto whole = static_cast<std::int64_t>(std::floor(units));
  const ValueId drop = m.minimum(m.maximum(m.sub(whole, product.exponent), 0), 31);
  ValueId value = m.right(product.mantissa, drop, true);
  const ValueId odd = ctx.build.cast(m.bits(negative, 1), DType::kBool);
  value = ctx.build.emit(Op::kTosaSelect, NoAttrs{}, {odd, m.sub(0, value), value});
  const ValueId is_zero = ctx.build.binary(Op::kTosaGreater, m.number(least, 1), least);
  value = ctx.build.emit(Op::kTosaSelect, NoAttrs{}, {is_zero, m.number(value, 0), value});
  const std::int64_t most = std::int64_t{1} << 30;
  const double scale =
      std::exp2(static_cast<double>(whole) + static_cast<double>(count) * std::log2(x.scale()));
  return ScaledInteger{ctx.build.reshape(value, ctx.node.result_type().shape), {scale}, 0, {-most, most}};
}

// Lowers any and all of numbers. An element is true if it is not 0.
RuleResult integer_any(const RuleContext& ctx) {
  const auto& attrs = ctx.node.attrs<ReduceAttrs>();
  const ScaledInteger x = ctx.with_one_scale(0);
  const ValueId zero = ctx.build.number(x.zero_point, ctx.build.type(x.id).rank());
  ValueId found = ctx.build.emit(Op::kTosaLogicalNot, NoAttrs{},
                                 {ctx.build.binary(Op::kTosaEqual, in_32_bits(ctx.build, x.id), zero)});
  const Op op = ctx.node.op() == Op::kAny ? Op::kTosaReduceAny : Op::kTosaReduceAll;
  for (const std::int64_t axis : attrs.axes)
    if (ctx.build.type(found).rank() > 0) found = ctx.build.emit(op, AxisAttrs{axis}, {found});
  return without_kept_axes(ctx, found);
}

namespace {

// The maxima of windows of the last two axes of i32 (N, C, H, W).
ScaledInteger window_maxima(IntegerBuilder& build, ScaledInteger x, const PoolAttrs& pool, const Shape& out) {
  for (std::size_t i = 0; i < 2; ++i) {
    const auto axis = static_cast<std::int64_t>(i) + 2;
    const std::int64_t count = out[i + 2], steps = (count - 1) * pool.stride[i] + 1;
    const std::int64_t extent = build.type(x.id).shape[i + 2];
    const std::int64_t end = steps + (pool.kernel[i] - 1) * pool.dilation[i];
    Dims before = Dims::filled(4, 0), after = Dims::filled(4, 0);
    before[i + 2] = pool.padding[i];
    after[i + 2] = std::max<std::int64_t>(end - extent - pool.padding[i], 0);
    if (before[i + 2] + after[i + 2] > 0)
      x.id = build.emit(Op::kPad, PadAttrs{before, after, PadMode::kConstant, Scalar(x.range.low)}, {x.id});
    ValueId most;
    for (std::int64_t k = 0; k < pool.kernel[i]; ++k) {
      const std::int64_t from = k * pool.dilation[i];
      const ValueId part =
          build.emit(Op::kSlice, SliceAttrs{axis, from, from + steps, pool.stride[i]}, {x.id});
      most = most.valid() ? build.binary(Op::kTosaMaximum, most, part) : part;
    }
    x.id = most;
  }
  return x;
}

// The maxima of whole images, if a window as large as these is more than a device takes, but not one row.
std::optional<ValueId> maxima_of_images(const RuleContext& ctx, ValueId x) {
  const auto& pool = ctx.node.attrs<PoolAttrs>();
  const Shape in = ctx.node.operand_type(0).shape;
  const std::int64_t count = in[2] * in[3];
  const bool covers_image = pool.kernel == Dims{in[2], in[3]} && pool.padding == Dims{0, 0};
  if (!covers_image || target::kMaxPoolWindows.take(in[2], in[3]) || !target::kMaxPoolWindows.take(1, count))
    return std::nullopt;
  PoolAttrs row = pool;
  row.kernel = {1, count};
  row.stride = {1, 1};
  return ctx.build.emit(Op::kMaxPool, row, {in_rows(ctx.build, x, {0, 1, count})});
}

}  // namespace

RuleResult integer_choice(const RuleContext& ctx) {
  const Node& node = ctx.node.node();
  ScaledInteger x = ctx.with_one_scale(0);
  if (node.op == Op::kMaxPool || node.op == Op::kAdaptiveMaxPool) {
    const PoolAttrs* const pool = node.op == Op::kMaxPool ? &ctx.node.attrs<PoolAttrs>() : nullptr;
    if (pool == nullptr || pool->kernel.size() != 2 || ctx.node.operand_type(0).rank() != 4)
      return Refusal{"its windows"};  // the expansion has windows that have a rule
    const bool is_dense = pool->dilation == Dims::filled(2, 1);
    if (is_dense) x = narrowed(ctx.build, x);
    if (!is_narrow(ctx.build, x))
      return window_maxima(ctx.build, widened(ctx.build, x), *pool, ctx.node.result_type().shape);
    if (!is_dense) return Refusal{"its windows"};
    const std::optional<ValueId> images = maxima_of_images(ctx, x.id);
    x.id = images ? *images : ctx.build.emit(node.op, *node.attrs, {x.id});
    return x;
  }
  if (node.op == Op::kArgmax) return ctx.build.emit(node.op, *node.attrs, {x.id});
  const auto& attrs = ctx.node.attrs<ReduceAttrs>();
  const Op op = node.op == Op::kAmax ? Op::kTosaReduceMax : Op::kTosaReduceMin;
  const Shape shape = ctx.build.type(x.id).shape;
  for (const std::int64_t axis : attrs.axes)  // Vela 5.2 crashes at some extrema of one element
    if (!shape.empty() && shape[static_cast<std::size_t>(axis)] != 1)
      x.id = ctx.build.emit(op, TosaAxisNanAttrs{axis, NanMode::kPropagate}, {x.id});
  x.id = without_kept_axes(ctx, x.id);
  return x;
}

}  // namespace tosaic::passes
