#include "tosaic/passes/lower_to_integer/rescaling.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/lower_to_integer/rule_result.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

MultiplierWidth width_of(const TosaRescaleAttrs& attrs) {
  return attrs.scale32 ? MultiplierWidth::k32 : MultiplierWidth::k16;
}

Multiplier multiplier_at(const TosaRescaleAttrs& attrs, std::size_t channel) {
  return {static_cast<std::int32_t>(attrs.multiplier[channel]),
          static_cast<std::int32_t>(attrs.shift[channel])};
}

// The results of a rescale for inputs in `range`, before the result dtype clips them.
ValueRange image_of(const TosaRescaleAttrs& attrs, std::size_t channel, ValueRange range) {
  const auto at = [&](std::int64_t value) {
    return apply_scale(value - attrs.input_zp, multiplier_at(attrs, channel), width_of(attrs),
                       attrs.rounding_mode) +
           attrs.output_zp;
  };
  return {at(range.low), at(range.high)};
}

ValueRange clipped(ValueRange range, ValueRange to) {
  return {std::clamp(range.low, to.low, to.high), std::clamp(range.high, to.low, to.high)};
}

ValueRange united(ValueRange a, ValueRange b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

// Clamps the integers of each channel to the range to[channel], if any of them may be outside.
ValueId bounded_by_channel(IntegerBuilder& build, const ScaledInteger& x, const std::vector<ValueRange>& to) {
  if (!x.axis) return build.bounded(x.id, x.range, to.front());
  bool cuts = false;
  for (std::size_t c = 0; c < to.size(); ++c) cuts = cuts || to[c] != x.range_of_channel(c);
  if (!cuts) return x.id;
  Shape shape = Dims::filled(build.type(x.id).rank(), 1);
  shape[static_cast<std::size_t>(*x.axis)] = static_cast<std::int64_t>(to.size());
  std::vector<std::int64_t> low, high;
  for (const ValueRange& range : to) {
    low.push_back(range.low);
    high.push_back(range.high);
  }
  const DType dtype = build.type(x.id).dtype;
  if (dtype != DType::kI32) throw NoIntegerForm("its sums of 48 bits cannot be bounded by channel");
  const ValueId above = build.binary(Op::kTosaMaximum, x.id, build.constant(dtype, shape, low));
  return build.binary(Op::kTosaMinimum, above, build.constant(dtype, shape, high));
}

// A TABLE of the results of dequantize and quantize for each i8 value. Returns nothing if RESCALE, with its
// multiplier and shift, computes the same.
std::optional<ValueId> requantized_bytes(IntegerBuilder& build, const ScaledInteger& x, const QParams& to) {
  const float inverse = inverse_scale(to.scales.front());
  const auto exact = [&](std::int64_t q) {
    const float real = dequantize_value(q, x.scale(), x.zero_point);
    return bound_quantized(quantize_unbounded(real, inverse, to.zero_points.front()), to.qmin, to.qmax);
  };
  const auto by_multiplier = [&] {
    const double ratio[] = {x.scale() / to.scales.front()};
    if (ratio[0] >= 0x1p28) return false;  // rescaled() caps such ratios; a table has any value
    const TosaRescaleAttrs attrs =
        quant::plan_rescale({DType::kI8, x.zero_point}, {DType::kI8, to.zero_points.front()}, ratio,
                            {.rounding_mode = build.rules().rounding_mode});
    for (std::int64_t q = x.range.low; q <= x.range.high; ++q) {
      const ValueRange image = clipped(image_of(attrs, 0, {q, q}), {to.qmin, to.qmax});
      if (!quant::defined_inputs(attrs, 0).contains(q) || image.low != exact(q)) return false;
    }
    return true;
  };
  if (by_multiplier()) return std::nullopt;
  std::vector<std::int64_t> entries;
  for (std::int64_t q = -128; q < 128; ++q) entries.push_back(exact(q));
  return build.emit(Op::kTosaTable, NoAttrs{}, {x.id, build.constant(DType::kI8, {256}, entries)});
}

}  // namespace

ScaledInteger rescaled(IntegerBuilder& build, const ScaledInteger& x, DType dtype, double scale,
                       std::int64_t zero_point) {
  const DType from = build.type(x.id).dtype;
  std::vector<double> ratios = quant::rescale_scales(x.scales, scale);
  // Ratios above 2^28 saturate 16 bits for every number but 0; they are capped, to fit a multiplier.
  const double most = x.magnitude() == 0 ? 1.0 : dtype == DType::kI32 ? HUGE_VAL : 0x1p28;
  for (double& ratio : ratios) ratio = std::min(ratio, most);
  if (from == dtype && !x.pending_shape && x.zero_point == zero_point && !x.axis && ratios.front() == 1.0)
    return x;
  RescaleAttrs attrs;
  // RESCALE has no double rounding for i48.
  const RoundingMode rounding =
      from == DType::kI48 ? RoundingMode::kSingleRound : build.rules().rounding_mode;
  attrs.rescale =
      quant::plan_rescale({from, x.zero_point}, {dtype, zero_point}, ratios, {.rounding_mode = rounding});
  attrs.axis = x.axis;
  attrs.rescale.per_channel = x.axis.has_value();
  const ValueRange limits = *integer_limits(dtype);
  std::vector<ValueRange> defined(ratios.size(), x.range);
  for (std::size_t c = 0; c < ratios.size(); ++c) {
    const ValueRange allowed = quant::defined_inputs(attrs.rescale, c);
    const ValueRange own = x.axis ? x.range_of_channel(c) : x.range;
    defined[c] = {std::max(own.low, allowed.low), std::min(own.high, allowed.high)};
    if (defined[c] == own) continue;
    // Inputs outside the range in which the multiplier is defined are clamped to it. The result at the
    // clamped input must be beyond the result dtype, so that it saturates as the right result does.
    const ValueRange image = image_of(attrs.rescale, c, defined[c]);
    if ((defined[c].low > own.low && image.low > limits.low) ||
        (defined[c].high < own.high && image.high < limits.high))
      throw NoIntegerForm("its values, " + std::to_string(own.low) + " to " + std::to_string(own.high) +
                          ", cannot be rescaled by " + std::to_string(ratios[c]) + " without overflow");
  }
  const ValueId id = bounded_by_channel(build, x, defined);
  ValueRange range{limits.high, limits.low};
  for (std::size_t c = 0; c < ratios.size(); ++c)
    range = united(range, clipped(image_of(attrs.rescale, c, defined[c]), limits));
  const ValueId made = build.emit(Op::kRescale, attrs, {id});
  ScaledInteger out{
      x.pending_shape ? build.reshape(made, *x.pending_shape) : made, {scale}, zero_point, range};
  out.nan_mask = x.nan_mask;
  const auto is_whole = [](double ratio) { return ratio == std::floor(ratio); };
  out.error = x.error + (std::all_of(ratios.begin(), ratios.end(), is_whole) ? 0 : scale / 2);
  return out;
}

// i48 rescales have multipliers of 15 bits only, so the sums are divided by a power of two, which loses
// nothing but the bits beyond 30.
ScaledInteger within_32_bits(IntegerBuilder& build, const ScaledInteger& x) {
  const int fewer = std::max(0, bits_to(x.magnitude()) - 30);
  const ScaledInteger made = rescaled(build, {x.id, {1.0}, 0, x.range}, DType::kI32, std::ldexp(1.0, fewer));
  ScaledInteger out = x;
  out.id = made.id;
  out.range = made.range;
  out.pending_shape.reset();
  for (double& scale : out.scales) scale = std::ldexp(scale, fewer);
  if (x.pending_shape && x.axis)
    out.pending_shape = x.pending_shape;
  else if (x.pending_shape)
    out.id = build.reshape(out.id, *x.pending_shape);
  return out;
}

ScaledInteger with_one_scale(IntegerBuilder& build, const ScaledInteger& x) {
  if (!x.axis && build.type(x.id).dtype != DType::kI48) return x;
  ScaledInteger y = build.type(x.id).dtype == DType::kI48 ? within_32_bits(build, x) : x;
  if (!y.axis) return y;
  const double largest = *std::max_element(y.scales.begin(), y.scales.end());
  // A shift by n takes numbers from -2^(n - 1), and below 2^(n - 1).
  const std::int64_t reach = std::max(y.magnitude(), y.centred().high + 1);
  return rescaled(build, y, DType::kI32, std::ldexp(largest, bits_to(reach) - 29));
}

ValueId in_32_bits(IntegerBuilder& build, ValueId id) {
  const DType dtype = build.type(id).dtype;
  if (dtype != DType::kI8 && dtype != DType::kI16) return build.cast(id, DType::kI32);
  RescaleAttrs attrs;
  const double one[] = {1.0};
  attrs.rescale =
      quant::plan_rescale({dtype, 0}, {DType::kI32, 0}, one, {.rounding_mode = build.rules().rounding_mode});
  return build.emit(Op::kRescale, attrs, {id});
}

ScaledInteger widened(IntegerBuilder& build, const ScaledInteger& x) {
  const DType dtype = build.type(x.id).dtype;
  if (dtype == DType::kI32 && x.zero_point == 0) return x;
  if (dtype == DType::kI48) throw NoIntegerForm("its sums have more than 32 bits");
  ScaledInteger out = x;
  if (x.zero_point == 0) {
    out.id = in_32_bits(build, x.id);
    return out;
  }
  ScaledInteger unscaled = x;  // the scales do not change, so all channels are multiplied by 1
  unscaled.scales = {1.0};
  unscaled.axis.reset();
  out.id = rescaled(build, unscaled, DType::kI32, 1.0).id;
  out.zero_point = 0;
  out.range = x.centred();
  return out;
}

bool is_narrow(const IntegerBuilder& build, const ScaledInteger& x) {
  const DType dtype = build.type(x.id).dtype;
  return dtype == DType::kI8 || (dtype == DType::kI16 && build.rules().wide_integers);
}

ScaledInteger narrowed(IntegerBuilder& build, const ScaledInteger& x) {
  constexpr std::int64_t kBytes = 256;
  if (is_narrow(build, x) || build.type(x.id).dtype == DType::kI48) return x;
  ScaledInteger wide = build.type(x.id).dtype == DType::kI16 ? widened(build, x) : x;
  if (wide.zero_point != 0 || wide.axis || wide.minus_infinity) return wide;
  for (const DType dtype : {DType::kI8, DType::kI16}) {
    const ValueRange limits = *integer_limits(dtype);
    ScaledInteger out = wide;
    if (!limits.contains(wide.range.low) || !limits.contains(wide.range.high)) {
      const bool is_unsigned = dtype == DType::kI8 && wide.range.low >= 0 && wide.range.high < kBytes;
      if (!is_unsigned) continue;
      out.zero_point = limits.low;
      out.range = {wide.range.low + limits.low, wide.range.high + limits.low};
      out.id = build.binary(Op::kTosaAdd, wide.id, build.number(limits.low, build.type(wide.id).rank()));
    }
    if (dtype == DType::kI16 && !build.rules().wide_integers) return wide;
    out.id = build.cast(out.id, dtype);
    return out;
  }
  return wide;
}

ScaledInteger within_bits(IntegerBuilder& build, const ScaledInteger& x, int bits) {
  if (x.zero_point == 0 && x.magnitude() <= (std::int64_t{1} << bits)) return x;
  const double ratio = std::ldexp(static_cast<double>(x.magnitude()), -bits);
  return rescaled(build, x, DType::kI32, x.scale() * std::max(1.0, ratio));
}

ValueId store(IntegerBuilder& build, const ScaledInteger& x, const QParams& to) {
  if (build.type(x.id).dtype == DType::kI8 && to.storage == DType::kI8 && !x.axis)
    if (const std::optional<ValueId> exact = requantized_bytes(build, x, to)) return *exact;
  const ScaledInteger y = rescaled(build, x, to.storage, to.scales.front(), to.zero_points.front());
  return build.bounded(y.id, y.range, {to.qmin, to.qmax});
}

ValueId requantize(IntegerBuilder& build, const ScaledInteger& x, const QParams& to) {
  const bool same = x.scale() == to.scales.front() && x.zero_point == to.zero_points.front() && !x.axis;
  if (same && build.type(x.id).dtype == to.storage) return build.bounded(x.id, x.range, {to.qmin, to.qmax});
  return store(build, x, to);
}

ValueId with_other_sign(IntegerBuilder& build, ValueId id, DType from, DType to) {
  RescaleAttrs attrs;
  const double one[] = {1.0};
  attrs.rescale = quant::plan_rescale({from, signed_offset(from)}, {to, signed_offset(to)}, one);
  return build.emit(Op::kRescale, attrs, {id});
}

QParams full_range_qparams(const IntegerBuilder& build, const ScaledInteger& x) {
  const DType dtype = build.type(x.id).dtype;
  const ValueRange all = *integer_limits(dtype);
  return {dtype,   all.low,  all.high,
          x.axis,  x.scales, std::vector<std::int64_t>(x.scales.size(), x.zero_point),
          x.groups};
}

}  // namespace tosaic::passes
