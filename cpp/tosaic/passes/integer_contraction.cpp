// Contractions: sums of products of integers less their zero points, worth s_x * s_w[c] each.
//
// 8 bit operands are summed in 32 bits, 16 by 8 bits in 48. The bias is rounded to that unit. A bound of each
// channel's sum, from the weights where they are known, shows that none overflows.

#include <algorithm>
#include <cmath>

#include "tosaic/layout/ways.h"
#include "tosaic/passes/integer_math.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::passes {
namespace {

// A bias that is computed, or beyond what the sums can hold in their unit: it is added to them in another.
class BiasApart : public NoIntegerForm {
  using NoIntegerForm::NoIntegerForm;
};

struct Weight {
  Real real;
  std::vector<double> scales;      // by result channel
  std::vector<std::int64_t> sums;  // by result channel: a bound of the sum of |w - zero point|
};

DType accumulator(DType input) { return input == DType::kI8 ? DType::kI32 : DType::kI48; }

// Constant operand i is rounded to multiples of `unit`, and each sum of the result has `depth` products. True
// if this rounding can change the result by more than 2^-7 of a unit of 8 bits, or by more than two units of
// 16 bits if the result has these. (There are 2^8 units of 16 bits in one of 8 bits.)
bool rounds_too_far(IntegerLowering& l, std::size_t i, std::int64_t depth, double unit) {
  const std::optional<QParams> goal = l.goal();
  if (!goal || !l.is_real(1 - i)) return false;
  const Real other = l.real(1 - i);
  const double largest =
      static_cast<double>(other.magnitude()) * *std::max_element(other.scales.begin(), other.scales.end());
  const double allowed = goal->storage == DType::kI8 ? 0x1p-7 : 2.0;
  return static_cast<double>(depth) * unit / 2 * largest > allowed * goal->scales.front();
}

// Splits a constant of floats into parts of 8 bits that add up to it: digits to base 128, of either sign.
// There are three digits if the other operand may have 16 bits or if rounds_too_far() is true of two, else
// two.
std::vector<Real> constant_parts(IntegerLowering& l, std::size_t i, std::int64_t depth) {
  const std::vector<double> numbers = l.numbers(i);
  double largest = 0;
  for (const double x : numbers) {
    if (!std::isfinite(x)) throw NoIntegerForm("a constant operand is not finite");
    largest = std::max(largest, std::abs(x));
  }
  const bool three = l.options().wide_integers || rounds_too_far(l, i, depth, largest / std::ldexp(127, 7));
  const int digits = three ? 3 : 2;
  const double most = std::ldexp(127, 7 * (digits - 1));
  const double unit = largest == 0 ? 1.0 : largest / most;
  std::vector<std::int64_t> rest;
  for (const double x : numbers) rest.push_back(std::llround(x / unit));
  const Shape& shape = l.operand_type(i).shape;
  std::vector<Real> parts;
  for (int digit = 0; digit < digits; ++digit) {
    const bool last = digit + 1 == digits;
    std::vector<std::int64_t> values;
    for (std::int64_t& q : rest) {
      const std::int64_t upper = last ? 0 : (q + 64) >> 7;
      values.push_back(q - upper * 128);
      q = upper;
    }
    const ValueRange range = last ? ValueRange{-127, 127} : ValueRange{-64, 63};
    parts.push_back({l.constant(DType::kI8, shape, values), {std::ldexp(unit, 7 * digit)}, 0, range});
  }
  return parts;
}

bool is_float_constant(const IntegerLowering& l, std::size_t i) {
  return l.is_constant(i) && is_float(l.operand_type(i).dtype);
}

// Splits operand i, constant or computed. Each sum of the result has `depth` products.
std::vector<Real> parts_of(IntegerLowering& l, std::size_t i, std::int64_t depth) {
  return is_float_constant(l, i) ? constant_parts(l, i, depth) : narrow_parts(l, l.real_with_one_scale(i));
}

// The axes of a weight by which its sums may have scales of their own.
struct WeightAxes {
  std::size_t channels;    // of the result, which repeat for each group
  std::int64_t groups;     // how often
  bool leading_is_groups;  // axis 0 counts the groups, too
};

WeightAxes conv_axes(const ConvAttrs& attrs, const Shape& weight) {
  if (!attrs.transposed) return {0, 1, false};
  return {1, attrs.groups, weight[0] == attrs.groups};
}

// How many products of a weight's elements each sum has, at most: a transposed convolution may have fewer.
std::int64_t products_per_sum(const Shape& weight, const WeightAxes& axes) {
  return num_elements(weight) / std::max<std::int64_t>(weight[axes.channels], 1);
}

// Known integers as two digits, in scales of their own.
std::vector<Real> exact_parts(IntegerLowering& l, const Real& x) {
  const Elements elements(*l.out().value(x.id).constant);
  std::vector<std::int64_t> upper, lower;
  for (std::size_t k = 0; k < elements.size(); ++k) {
    const std::int64_t q = elements.as_int(k) - x.zero_point;
    upper.push_back((q + 64) >> 7);
    lower.push_back(q - upper.back() * 128);
  }
  const Shape shape = l.type(x.id).shape;
  Real high{l.constant(DType::kI8, shape, upper), x.scales, 0, {-127, 127}, x.axis};
  for (double& scale : high.scales) scale *= 128;
  return {{l.constant(DType::kI8, shape, lower), x.scales, 0, {-64, 63}, x.axis}, high};
}

std::vector<Real> parts_below(IntegerLowering& l, const Real& x, bool wide);

// Weights have 8 bits and may have scales by channel; known ones that have not are taken as numbers.
std::vector<Real> weight_parts(IntegerLowering& l, std::size_t i, const WeightAxes& axes,
                               std::int64_t depth) {
  if (is_float_constant(l, i)) return constant_parts(l, i, depth);
  const Real weight = l.real(i);
  const bool scaled_by_channel = !weight.axis || *weight.axis == static_cast<std::int64_t>(axes.channels) ||
                                 (*weight.axis == 0 && axes.leading_is_groups);
  const bool narrow = l.type(weight.id).dtype == DType::kI8;
  if (narrow && scaled_by_channel) return {weight};
  if (scaled_by_channel && l.is_known(i) && weight.magnitude() <= 127 * 128) return exact_parts(l, weight);
  if (l.is_known(i)) return constant_parts(l, i, depth);
  return narrow ? std::vector{weight} : parts_below(l, l.real_with_one_scale(i), false);
}

// Of the values less their zero point; in pieces whose sums have 32 bits.
std::int64_t sum_of_magnitudes(std::span<const std::int8_t> values, std::int64_t zero_point) {
  constexpr std::size_t kPiece = 1 << 20;
  std::int64_t sum = 0;
  for (std::size_t at = 0; at < values.size(); at += kPiece) {
    std::int32_t part = 0;
    for (const std::int8_t value : values.subspan(at, std::min(kPiece, values.size() - at)))
      part += std::abs(value - static_cast<std::int32_t>(zero_point));
    sum += part;
  }
  return sum;
}

Weight weight_of(IntegerLowering& l, const Real& real, const WeightAxes& axes) {
  const std::size_t axis = axes.channels;
  Weight out{real, {}, {}};
  const TensorType& type = l.type(out.real.id);
  if (type.dtype != DType::kI8) throw NoIntegerForm("its weight has more than 8 bits");
  const bool by_group = axes.leading_is_groups && out.real.axis && *out.real.axis == 0;
  if (out.real.axis && !by_group && *out.real.axis != static_cast<std::int64_t>(axis))
    throw NoIntegerForm("its weight is quantized along axis " + std::to_string(*out.real.axis) +
                        ", not by result channel");
  const std::int64_t channels = type.shape[axis], each = products_per_sum(type.shape, axes);
  std::vector<std::int64_t> sums(static_cast<std::size_t>(channels), each * out.real.magnitude());
  const ConstantRef& constant = l.out().value(out.real.id).constant;
  if (constant && constant->storage.bound()) {
    std::int64_t behind = 1;
    for (std::size_t k = axis + 1; k < type.shape.size(); ++k) behind *= type.shape[k];
    std::fill(sums.begin(), sums.end(), 0);
    const auto* values = reinterpret_cast<const std::int8_t*>(constant->bytes().data());
    for (std::int64_t run = 0; run < num_elements(type.shape) / std::max<std::int64_t>(behind, 1); ++run)
      sums[static_cast<std::size_t>(run % channels)] +=
          sum_of_magnitudes({values + run * behind, static_cast<std::size_t>(behind)}, out.real.zero_point);
  }
  for (std::int64_t group = 0; group < axes.groups; ++group)
    for (std::int64_t c = 0; c < channels; ++c) {
      out.scales.push_back(
          out.real.scales[out.real.axis ? static_cast<std::size_t>(by_group ? group : c) : 0]);
      out.sums.push_back(sums[static_cast<std::size_t>(c)]);
    }
  return out;
}

// A float bias, rounded to units of the sums, has to be as good as the result can tell.
void require_fine(const IntegerLowering& l, const std::vector<double>& numbers,
                  const std::vector<std::int64_t>& rounded, const std::vector<double>& scales) {
  const std::optional<QParams> goal = l.goal();
  if (!goal) return;
  for (std::size_t c = 0; c < numbers.size(); ++c) {
    const double unit = scales[scales.size() > 1 ? c : 0];
    if (std::abs(numbers[c] - static_cast<double>(rounded[c]) * unit) > goal->scales.front() / 16)
      throw BiasApart("its bias is rounded further than the result's unit");
  }
}

// The bias in units of the sums.
std::vector<std::int64_t> bias_values(IntegerLowering& l, std::size_t i, const std::vector<double>& scales,
                                      DType sums) {
  if (!l.is_known(i)) throw BiasApart("its bias is computed");
  const std::vector<double> numbers = l.numbers(i);
  const std::vector<float> values(numbers.begin(), numbers.end());
  const quant::QuantizedBias bias = quant::quantize_bias(values, scales, sums);
  if (bias.counts.nans != 0) throw NoIntegerForm("its bias is not a number");
  if (bias.counts.saturated != 0) throw BiasApart("its bias does not fit " + std::string(to_string(sums)));
  const ConstantRef& stored = l.source().value(l.operand(i)).constant;
  if (!stored || !l.operand_type(i).qparams || stored->dtype != DType::kI32) {
    require_fine(l, numbers, bias.values, scales);
    return bias.values;
  }
  // Integers whose unit is that of the sums, but for rounding of scales, are taken as they are.
  const QParams& label = *l.operand_type(i).qparams;
  const Elements elements(*stored);
  std::vector<std::int64_t> out = bias.values;
  for (std::size_t c = 0; c < out.size(); ++c) {
    const std::size_t k = label.axis ? c : 0, s = scales.size() > 1 ? c : 0;
    if (std::abs(label.scales[k] / scales[s] - 1) <= 0x1p-20)
      out[c] = elements.as_int(c) - label.zero_points[k];
  }
  return out;
}

struct Sums {
  std::vector<double> scales;
  ValueId bias;  // none: 0
  ValueRange range;
};

// Scales, bias and range of the sums; `channels` result channels.
Sums sums_of(IntegerLowering& l, const Real& x, const Weight& weight, std::size_t channels, DType dtype,
             bool with_bias) {
  Sums out;
  out.scales = quant::accumulator_scales(x.scale(), weight.scales);
  std::vector<std::int64_t> bias(channels, 0);
  if (with_bias && l.has(2)) {
    bias = bias_values(l, 2, out.scales, dtype);
    out.bias = l.constant(dtype, {static_cast<std::int64_t>(bias.size())}, bias);
  }
  const ValueRange limits = dtype == DType::kI32 ? kInt32Values : kInt48Values;
  for (std::size_t c = 0; c < channels; ++c) {
    __int128_t most = static_cast<__int128_t>(weight.sums[c]) * x.magnitude();
    const __int128_t low = bias[c] - most, high = bias[c] + most;
    const std::string channel = "the sums of channel " + std::to_string(c) + " may leave ";
    if (most > limits.high) throw NoIntegerForm(channel + std::string(to_string(dtype)));
    if (low < limits.low || high > limits.high) throw BiasApart(channel + std::string(to_string(dtype)));
    out.range.low = std::min(out.range.low, static_cast<std::int64_t>(low));
    out.range.high = std::max(out.range.high, static_cast<std::int64_t>(high));
  }
  // One scale for all channels is no scale by channel.
  const auto same = [&](double scale) { return scale == out.scales.front(); };
  if (std::all_of(out.scales.begin(), out.scales.end(), same)) out.scales.resize(1);
  return out;
}

Real as_real(ValueId id, Sums sums, std::size_t axis) {
  Real out{id, std::move(sums.scales), 0, sums.range};
  if (out.scales.size() > 1) out.axis = static_cast<std::int64_t>(axis);
  return out;
}

// The sum of what `contract` makes of each pair of parts; the bias joins the first.
template <class Contract>
Real over_parts(IntegerLowering& l, const std::vector<Real>& lefts, const std::vector<Real>& rights,
                Contract&& contract) {
  Real sum = contract(lefts.front(), rights.front(), true);
  for (std::size_t i = 0; i < lefts.size(); ++i)
    for (std::size_t j = i == 0 ? 1 : 0; j < rights.size(); ++j)
      sum = total(l, sum, contract(lefts[i], rights[j], false));
  return sum;
}

// The same with the bias inside, or behind where it is too large; `own`: as it lies in the result's shape.
template <class Contract>
Real with_bias(IntegerLowering& l, const Shape& own, const WeightAxes& axes, Contract&& contract) {
  const std::int64_t depth = products_per_sum(l.operand_type(1).shape, axes);
  const std::vector<Real> lefts = parts_of(l, 0, depth), rights = weight_parts(l, 1, axes, depth);
  try {
    return over_parts(l, lefts, rights, contract);
  } catch (const BiasApart&) {
    const auto without = [&](const Real& x, const Real& w, bool) { return contract(x, w, false); };
    return plus(l, over_parts(l, lefts, rights, without), 2, own);
  }
}

// Group by group: TOSA joins no values of 48 bits, so the sums of each are brought to 32, all by as many
// bits.
Real convolved_by_group(IntegerLowering& l, const IntegerConvAttrs& whole,
                        const std::vector<ValueId>& operands, const Sums& sums) {
  IntegerConvAttrs attrs = whole;
  attrs.conv.groups = 1;
  const auto part = [&](ValueId id, std::int64_t axis, std::int64_t group) {
    const std::int64_t size = l.type(id).shape[static_cast<std::size_t>(axis)] / whole.conv.groups;
    return l.emit(Op::kSlice, SliceAttrs{axis, group * size, (group + 1) * size, 1}, {id});
  };
  std::vector<ValueId> made;
  Real narrow;
  for (std::int64_t group = 0; group < whole.conv.groups; ++group) {
    std::vector<ValueId> own{part(operands[0], 1, group), part(operands[1], 0, group)};
    if (operands.size() > 2) own.push_back(part(operands[2], 0, group));
    narrow = l.within_32_bits({l.emit(Op::kIntegerConv, attrs, own), {1.0}, 0, sums.range});
    made.push_back(narrow.id);
  }
  Real out{l.emit(Op::kCat, AxisAttrs{1}, made), sums.scales, 0, narrow.range};
  for (double& scale : out.scales) scale *= narrow.scale();
  if (out.scales.size() > 1) out.axis = 1;
  return out;
}

Real convolved(IntegerLowering& l, const Real& x, const Real& filters, bool with_bias) {
  const auto& attrs = l.attrs<ConvAttrs>();
  const Weight weight = weight_of(l, filters, conv_axes(attrs, l.type(filters.id).shape));
  const DType dtype = accumulator(l.type(x.id).dtype);
  const auto channels = static_cast<std::size_t>(l.result_type().shape[1]);
  const Sums sums = sums_of(l, x, weight, channels, dtype, with_bias);
  const IntegerConvAttrs conv{attrs, x.zero_point, weight.real.zero_point};
  std::vector<ValueId> operands{x.id, weight.real.id};
  if (sums.bias.valid()) operands.push_back(sums.bias);
  if (dtype == DType::kI48 && attrs.groups > 1 &&
      !layout::is_depthwise(l.type(x.id).shape, l.type(weight.real.id).shape, attrs))
    return convolved_by_group(l, conv, operands, sums);
  return as_real(l.emit(Op::kIntegerConv, conv, operands), sums, 1);
}

// (.., I) x (O, I) as a convolution of pixels.
Real row_products(IntegerLowering& l, const Real& x, const Real& rows_of_weight, bool with_bias) {
  const Shape shape = l.type(rows_of_weight.id).shape;
  const Weight weight = weight_of(l, rows_of_weight, {0, 1, false});
  const DType dtype = accumulator(l.type(x.id).dtype);
  const std::int64_t out = shape[0], in = shape[1];
  const Shape& result = l.result_type().shape;
  const std::int64_t rows = num_elements(result) / std::max<std::int64_t>(out, 1);
  Sums sums = sums_of(l, x, weight, static_cast<std::size_t>(out), dtype, with_bias);
  if (!sums.bias.valid()) sums.bias = l.constant(dtype, {1}, {0});
  const TosaConvAttrs conv{{0, 0, 0, 0}, {1, 1}, {1, 1}, x.zero_point, weight.real.zero_point, dtype, false};
  const ValueId pixels = l.reshape(x.id, {1, rows, 1, in});
  const ValueId filters = l.reshape(weight.real.id, {out, 1, 1, in});
  const ValueId product = l.emit(Op::kTosaConv2d, conv, {pixels, filters, sums.bias});
  if (dtype == DType::kI32) return as_real(l.reshape(product, result), sums, result.size() - 1);
  Real pending = as_real(product, sums, 3);
  pending.shape = result;
  return pending;
}

Real matrix_product(IntegerLowering& l, const Real& a, const Real& b) {
  const auto as_i16 = [&](const Real& x) {
    return l.type(x.id).dtype == DType::kI16 ? x : l.rescaled(x, DType::kI16, x.scale());
  };
  const bool wide = l.type(a.id).dtype == DType::kI16 || l.type(b.id).dtype == DType::kI16;
  const Real left = wide ? as_i16(a) : a, right = wide ? as_i16(b) : b;
  Shape a_shape = l.type(left.id).shape, b_shape = l.type(right.id).shape;
  if (a_shape.size() == 1) a_shape = {1, a_shape[0]};
  if (b_shape.size() == 1) b_shape = {b_shape[0], 1};
  const auto batch_of = [](const Shape& shape) { return Shape(shape.span().first(shape.size() - 2)); };
  const Shape batch = broadcast(batch_of(a_shape), batch_of(b_shape));
  const auto flat = [&](ValueId x, const Shape& own) {
    Shape whole = batch;
    whole.push_back(own[own.size() - 2]);
    whole.push_back(own.back());
    return l.reshape(l.expand(l.reshape(x, own), whole),
                     {num_elements(batch), own[own.size() - 2], own.back()});
  };
  const std::int64_t depth = a_shape.back();
  const DType dtype = wide ? DType::kI48 : DType::kI32;
  const __int128_t most = static_cast<__int128_t>(left.magnitude()) * right.magnitude() * depth;
  const ValueRange limits = wide ? kInt48Values : kInt32Values;
  if (most > limits.high) throw NoIntegerForm("its sums may leave " + std::string(to_string(dtype)));
  ValueId x, y;
  if (num_elements(batch_of(b_shape)) == 1) {  // one matrix: the batch is rows
    x = l.reshape(left.id, {1, num_elements(a_shape) / std::max<std::int64_t>(depth, 1), depth});
    y = l.reshape(right.id, {1, depth, b_shape.back()});
  } else {
    x = flat(left.id, a_shape);
    y = flat(right.id, b_shape);
  }
  const TosaMatmulAttrs attrs{left.zero_point, right.zero_point, std::nullopt};
  const ValueId product = l.emit(Op::kTosaMatmul, attrs, {x, y});
  const auto bound = static_cast<std::int64_t>(most);
  Real sums{product, {left.scale() * right.scale()}, 0, {-bound, bound}};
  if (wide)
    sums.shape = l.result_type().shape;
  else
    sums.id = l.reshape(product, l.result_type().shape);
  return sums;
}

// Splits x into digits that add up to it, the highest digit first. If `wide`, the digits are i16 and there
// are at most two, which hold 30 bits. Else they are i8; there are three, which hold 21 bits, if two cannot
// hold the range of x. Two would hold only 14 bits of that range. The range is a proven bound and may be a
// hundred times larger than the numbers of a run, which would then have only 7 bits.
std::vector<Real> parts_below(IntegerLowering& l, const Real& x, bool wide) {
  const DType dtype = l.type(x.id).dtype;
  if (dtype == DType::kI8 || (dtype == DType::kI16 && wide)) return {x};
  const DType narrow = wide ? DType::kI16 : DType::kI8;
  const int bits = wide ? 15 : 7;  // of a digit, either sign
  const std::int64_t base = std::int64_t{1} << bits, top = base - 1;
  if (wide && x.magnitude() <= top) return {l.rescaled(x, narrow, x.scale())};
  IntegerMath m(l);
  Real y = l.widened(x);
  int digits = 2;
  std::int64_t most = top * base + base / 2 - 1;
  if (!wide && y.magnitude() > most) {
    digits = 3;
    most = top * base * base + (base / 2 - 1) * (base + 1);
  }
  if (wide && y.magnitude() >= std::int64_t{1} << 30) {  // where a rescale by nearly 1 ends
    const int fewer = bits_to(y.magnitude()) - 29;
    y = {m.right(y.id, fewer, true),
         {std::ldexp(y.scale(), fewer)},
         0,
         {-(std::int64_t{1} << 29), std::int64_t{1} << 29}};
  } else {
    const double ratio = static_cast<double>(y.magnitude()) / static_cast<double>(most);
    y = l.rescaled(y, DType::kI32, y.scale() * std::max(1.0, ratio));
  }
  std::vector<Real> parts;
  ValueId rest = y.id;
  double scale = y.scale();
  for (int digit = 1; digit < digits; ++digit) {
    const ValueId upper = m.right(m.add(rest, base / 2), bits);
    const ValueId lower = m.sub(rest, m.left(upper, bits));
    parts.push_back({l.cast(lower, narrow), {scale}, 0, {-base / 2, base / 2 - 1}});
    rest = upper;
    scale = std::ldexp(scale, bits);
  }
  parts.push_back({l.cast(rest, narrow), {scale}, 0, {-top, top}});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<Real> narrow_parts(IntegerLowering& l, const Real& x) {
  return parts_below(l, x, l.options().wide_integers);
}

Lowered integer_conv(IntegerLowering& l) {
  const Shape& shape = l.operand_type(1).shape;
  if (shape.size() == 3 || l.operand_type(0).rank() != shape.size() ||
      (l.attrs<ConvAttrs>().transposed && shape.size() == 5))
    throw NoIntegerForm("its rank");  // expanded to one that has
  Shape own = Dims::filled(shape.size() - 1, 1);
  own[0] = l.result_type().shape[1];
  return with_bias(l, own, conv_axes(l.attrs<ConvAttrs>(), shape),
                   [&](const Real& x, const Real& w, bool first) { return convolved(l, x, w, first); });
}

Lowered integer_linear(IntegerLowering& l) {
  return with_bias(l, {l.operand_type(1).shape[0]}, {0, 1, false},
                   [&](const Real& x, const Real& w, bool first) { return row_products(l, x, w, first); });
}

namespace {

// A constant matrix of 8 bits is a weight.
std::optional<Real> transposed_weight(IntegerLowering& l) {
  if (is_float_constant(l, 1) || l.operand_type(0).rank() < 2) return std::nullopt;
  Real matrix = l.real(1);
  const TensorType& type = l.type(matrix.id);
  if (l.out().value(matrix.id).kind != ValueKind::kConstant || type.rank() != 2 || type.dtype != DType::kI8 ||
      (matrix.axis && *matrix.axis != 1))
    return std::nullopt;
  matrix.id = l.emit(Op::kPermute, PermuteAttrs{{1, 0}}, {matrix.id});
  if (matrix.axis) matrix.axis = 0;
  return matrix;
}

}  // namespace

Lowered integer_matmul(IntegerLowering& l) {
  const std::int64_t depth = l.operand_type(0).shape.back();
  if (const std::optional<Real> weight = transposed_weight(l))
    return over_parts(l, parts_of(l, 0, depth), {*weight},
                      [&](const Real& x, const Real& w, bool) { return row_products(l, x, w, false); });
  return over_parts(l, parts_of(l, 0, depth), parts_of(l, 1, depth),
                    [&](const Real& a, const Real& b, bool) { return matrix_product(l, a, b); });
}

}  // namespace tosaic::passes
