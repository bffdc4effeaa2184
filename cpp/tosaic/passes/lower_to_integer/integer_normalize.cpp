// integer_normalize: computes softmax, logsumexp and norms in integer arithmetic, without qparams of
// intermediate values.
//
//   softmax   e = exp(x - max), with 30 bits
//             sum(e) = m / 2^s, with the mantissa m normalized to 31 bits
//             result = e * r, shifted right; r = 2^61 / m by linear interpolation
//
//   norms     y = n * x - sum(x) for rows of n elements (rms_norm: y = x), exact except for long rows or
//             rows of many bits: these are x - max(x) first, so that equal numbers become 0
//             each row is shifted left until it fills 30 bits
//             v = mean(y^2) + eps, with eps shifted as y^2 is
//             result = y / sqrt(v), the reciprocal of the root by linear interpolation
//
// The numbers of a row are relative to its largest, so no range has to be known beforehand, and rows of any
// magnitude are equally precise. Relative errors are below 2^-20. The error of a logarithm is 2^-22,
// absolute. Rows of i8 numbers whose results become i8 need fewer bits: byte_rows.h.

#include <algorithm>
#include <cmath>
#include <functional>

#include "tosaic/ir/quantized.h"
#include "tosaic/passes/lower_to_integer/byte_rows.h"
#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/lower_to_integer/terms.h"

namespace tosaic::passes {
namespace {

constexpr int kExpBits = IntegerMath::kExpBits;
constexpr double kLn2 = 0.69314718055994530942;

struct Shares {
  ScaledInteger below;        // x - max
  ValueId exps;               // exp(x - max), in units of 2^-30
  IntegerMath::Scaled total;  // sum(exps) / 2^fewer
  int fewer = 0;
};

Shares shares_of(IntegerBuilder& build, const ScaledInteger& x, std::int64_t axis) {
  IntegerMath m(build);
  const ScaledInteger least = below(build, x, m.max(x.id, axis));
  const ValueId exps = m.exp30(least);
  const std::int64_t count = extent(build, x.id, axis);
  return {least, exps, m.normalized(m.sum30(exps, axis, count)), bits_to(count)};
}

// exps / sum(exps), in units of 2^-30. A share of 1 becomes 2^30 - 1, so that all shares have 30 bits.
ScaledInteger quotient(IntegerBuilder& build, const Shares& s) {
  IntegerMath m(build);
  const ValueId reciprocal = m.of_mantissa(
      s.total.mantissa, [](double v) { return std::min(std::ldexp(1.0, 61) / v, 2147483645.0); });
  // An exp e divided by the total m / 2^shift * 2^fewer is e * r * 2^(shift - fewer - 61), with r = 2^61 / m.
  const ValueId product = m.mul(s.exps, reciprocal, 31);  // at most 2^30
  const ValueId shares = m.right(product, m.sub(s.fewer, s.total.shift), true);
  return {shares, {std::ldexp(1.0, -kExpBits)}, 0, {0, (std::int64_t{1} << kExpBits) - 1}};
}

// log(v * 2^(fewer - 30)) in units of 2^-24, with v = mantissa / 2^shift. This is the logarithm of a sum of
// exps that is at least 1, so the result is not negative.
ScaledInteger logarithm(IntegerBuilder& build, const IntegerMath::Scaled& v, int fewer) {
  IntegerMath m(build);
  constexpr int kBits = 24;
  const ValueId log = m.of_mantissa(
      v.mantissa, [](double at) { return std::ldexp(std::log(std::ldexp(at, -kExpBits)), kBits); });
  const ValueId exponent = m.sub(fewer, v.shift);
  const ValueId octaves =
      build.binary(Op::kTosaMul, exponent, m.number(exponent, std::llround(std::ldexp(kLn2, kBits))));
  const auto most = static_cast<std::int64_t>(std::ldexp(31 * kLn2, kBits)) + 2;
  return {m.add(log, octaves), {std::ldexp(1.0, -kBits)}, 0, {0, most}};
}

// Divides each row by the root of its mean square plus eps. With norm.centred, the mean of the row is
// subtracted first. Without eps, a row of zeros becomes NaN: nan_mask has one element for each row.
ScaledInteger normalized_rows(IntegerBuilder& build, const ScaledInteger& from, const Norm& norm) {
  IntegerMath m(build);
  const std::int64_t axis = norm.axis, count = extent(build, from.id, axis);
  const auto in_28_bits = [&](ValueId id) {
    ScaledInteger same = from;
    same.id = id;
    return within_bits(build, widened(build, same), 28);
  };
  const ScaledInteger x = in_28_bits(from.id);
  ValueId y = x.id, size;
  double unit = x.scale();
  std::function<ValueId(ValueId)> step = [](ValueId wide) { return wide; };  // from x.id to y
  if (norm.centred && bits_to(x.magnitude()) + bits_to(count) <= 29) {
    const ValueId total = m.sum(x.id, axis);
    step = [&build, count, total](ValueId wide) {
      IntegerMath math(build);
      return math.sub(build.binary(Op::kTosaMul, wide, math.number(wide, count)), total);
    };
    y = step(x.id);
    unit /= static_cast<double>(count);
  } else if (norm.centred) {  // n * x has too many bits: y = d - sum(d) / n in 29 bits, with d = x - max(x)
    const ScaledInteger d = below(build, x, m.max(x.id, axis));  // 0 in a row of equal numbers, and so is y
    const int bits = bits_to(d.magnitude()), more = 29 - bits;
    int fewer = std::max(0, bits + bits_to(count) - 30);
    const auto most_of_sum = [&] { return ((d.magnitude() >> fewer) + 1) * count; };
    while (most_of_sum() >= std::int64_t{1} << 30) ++fewer;  // a rescale by 1/2 is defined below 2^30
    const double part = std::ldexp(unit, fewer) / static_cast<double>(count);
    unit = std::ldexp(unit, -more);
    const std::int64_t most = most_of_sum();
    const ScaledInteger sum{m.sum_less(d.id, axis, count, fewer), {part}, 0, {-most, most}};
    y = m.sub(m.left(d.id, more), rescaled(build, sum, DType::kI32, unit).id);
    size = m.max(m.abs(y), axis);
  }
  // Every step above is monotonic, so the largest |y| of a row is that of its largest or least x, which has
  // fewer bits.
  if (!size.valid() && build.type(from.id).dtype != DType::kI32) {
    const ValueId top = step(in_28_bits(m.max(from.id, axis)).id);
    const ValueId bottom = step(in_28_bits(m.min(from.id, axis)).id);
    size = build.binary(Op::kTosaMaximum, m.abs(top), m.abs(bottom));
  } else if (!size.valid()) {
    size = m.max(m.abs(y), axis);
  }
  // norm.eps is added to the integer `mean` below, so it is converted to the unit of `mean`: eps = norm.eps /
  // unit^2 * spread, stored as part * 2^-exponent. `unit` is the scale of y, and `spread` is the ratio of
  // `mean` to the mean of y^2. Both hold for a row that is not shifted left.
  const int fewer = bits_to(count);
  const double spread = static_cast<double>(count) * std::ldexp(1.0, -32 - fewer);  // `mean` / mean(y^2)
  const double eps = norm.eps / (unit * unit) * spread;
  constexpr int kEpsBits = 29;
  int exponent = 0;
  std::int64_t part = 0;
  if (eps > 0) {
    exponent = kEpsBits - std::ilogb(eps) - 1;  // eps * 2^exponent is in [2^28, 2^29)
    part = std::llround(std::ldexp(eps, exponent));
  }
  if (part != 0 && exponent < 0) throw NoIntegerForm("its epsilon is beyond the range of its operand");
  // Each row is shifted left as far as its largest element allows, but not so far that eps, which is shifted
  // by twice as much, has more than 29 bits.
  ValueId shift = m.add(m.clz(m.maximum(size, 1)), -1);
  if (part != 0 && exponent / 2 < 30) shift = m.minimum(shift, exponent / 2);
  const ValueId row = m.right(m.left(y, shift), 1);  // 30 bits and a sign
  const ValueId squares = m.mul(row, row, 30);
  ValueId mean = m.sum30(squares, axis, count);
  if (part != 0) {
    const ValueId by = m.minimum(m.maximum(m.sub(exponent, m.left(shift, 1)), 0), 31);
    mean = m.add(mean, m.right(m.number(mean, part), by));
  }
  // The least possible `mean` of a row that is not all zeros. If the shift is limited by the largest element,
  // that element has 30 bits and adds at least 2^(28 - fewer) to `mean`. If the shift is limited by eps, eps
  // adds at least 2^27.
  const std::int64_t least = std::int64_t{1} << std::max(27 - fewer, 0);
  const IntegerMath::Scaled power = m.normalized(m.maximum(mean, least), true);
  const ValueId root = m.of_mantissa(
      power.mantissa, [](double v) { return std::ldexp(std::sqrt(std::ldexp(1.0, 29) / v), 30); }, true);
  const ValueId product = m.mul(row, root, 30);
  const int drop = fewer / 2 + 2;  // half of power.shift for the least `mean`
  const ValueId result = m.right(product, m.sub(drop, m.right(power.shift, 1)), true);
  // row / sqrt(mean), with mean = sum(row^2) * 2^(-30 - fewer) and root = 2^(30 + 14.5) / sqrt(mantissa)
  const double scale =
      std::sqrt(static_cast<double>(count)) * std::pow(2.0, drop + 30 - 44.5 - (30 + fewer) / 2.0);
  const auto most = static_cast<std::int64_t>(
      std::min(std::ceil(std::sqrt(static_cast<double>(count)) / scale) + 2, 0x1p30));
  ScaledInteger out{result, {scale}, 0, {-most, most}};
  if (norm.eps == 0) out.nan_mask = build.binary(Op::kTosaEqual, size, m.number(size, 0));
  return out;
}

// With four axes, as the linear layers next to a norm have them (legalize_contraction.cpp): Vela copies a
// tensor that is read in two shapes.
ValueId as_rows(IntegerBuilder& build, const ScaledInteger& x, std::int64_t row) {
  const std::int64_t rows = num_elements(build.type(x.id).shape) / std::max<std::int64_t>(row, 1);
  return build.reshape(x.id, {1, 1, rows, row});
}

// A softmax often reads an add or a where with a constant mask. Returns false if that mask leaves at least
// one element of every row, and nothing else hides elements. Returns true in all other cases: the mask may
// then hide all elements of a row, and softmax of such a row is NaN.
bool may_hide_rows(const RuleContext& ctx) {
  const NodeView& node = ctx.node;
  const Graph& graph = node.graph();
  const Node* const masked = graph.producer(node.operand(0));
  if (masked == nullptr || (masked->op != Op::kAdd && masked->op != Op::kWhere)) return true;
  const std::int64_t axis = node.attrs<AxisDtypeAttrs>().axis,
                     rank = static_cast<std::int64_t>(node.operand_type(0).rank());
  const auto operands = graph.operands(*masked);
  if (std::ranges::any_of(operands, [&](ValueId operand) {
        const ScaledInteger* const scaled = ctx.values.scaled(operand);
        return scaled != nullptr && scaled->minus_infinity.has_value();
      }))
    return true;
  for (std::size_t i = 0; i < (masked->op == Op::kWhere ? 1 : operands.size()); ++i) {
    const Value& value = graph.value(operands[i]);
    if (value.kind != ValueKind::kConstant || !value.constant->storage.bound() || axis != rank - 1) continue;
    const bool hides_true = masked->op == Op::kWhere && graph.value(operands[1]).kind == ValueKind::kConstant;
    const auto row = static_cast<std::size_t>(value.type.shape.empty() ? 1 : value.type.shape.back());
    const Elements elements(*value.constant);
    const auto is_seen = [&](std::size_t k) {
      const double number = elements.as_double(k);
      return masked->op == Op::kAdd ? !is_minus_infinity(number) : (number != 0) != hides_true;
    };
    bool all = true;
    for (std::size_t k = 0; all && k < elements.size(); k += std::max<std::size_t>(row, 1)) {
      bool any = false;
      for (std::size_t j = k; j < k + row; ++j) any = any || is_seen(j);
      all = any;
    }
    if (all) return false;
  }
  return true;
}

// True if it makes a difference which elements of the result are NaN: its only reader quantizes it, or a
// reader replaces or tests NaN (nan_to_num, x != x), directly or after movement, elementwise operators or
// contractions. A contraction of NaN is then refused.
bool needs_nan(const NodeView& node) {
  const Graph& graph = node.graph();
  if (node.eventual_qparams() || is_tested_for_nan(graph, node.result())) return true;
  return std::ranges::any_of(graph.users(node.result()), [&](NodeId user) {
    const Node& reader = graph.node(user);
    return (reader.op == Op::kMatmul || reader.op == Op::kLinear || reader.op == Op::kBaddbmm) &&
           is_tested_for_nan(graph, graph.result(reader));
  });
}

// x - max, for a result that is rounded to `to`. A number so far below max that the result saturates,
// whatever the logarithm of the sum of `count` exponentials is, becomes the nearest such number. Otherwise
// the unit would be one for all numbers, in which the logarithm may be lost.
ScaledInteger within_result(IntegerBuilder& build, const ScaledInteger& below, const QParams& to) {
  const double least = -largest_number(to);
  ScaledInteger out = below;
  const auto low = static_cast<std::int64_t>(std::floor(std::max(least / below.scale(), -0x1p31)));
  if (low <= below.range.low) return below;
  out.range = {low, 0};
  out.id = build.bounded(below.id, below.range, out.range);
  if (low == -1) out.scales = {-least};
  return out;
}

// The logarithm of a softmax.
ScaledInteger log_shares(const RuleContext& ctx, const Shares& shares) {
  constexpr double kCoarsest = 0x1p-8;
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  const ScaledInteger below = to ? within_result(ctx.build, shares.below, *to) : shares.below;
  ScaledInteger out = difference(ctx.build, below, logarithm(ctx.build, shares.total, shares.fewer));
  if (!to && out.scale() > kCoarsest)
    throw NoIntegerForm("its operand has a range so large that the logarithm of the sum is lost next to it");
  return out;
}

// Refuses scores whose shares were lost, because one unit is for them and for far larger numbers.
void require_fine_scores(const ScaledInteger& x) {
  constexpr double kMostError = 0x1p-4;
  if (x.error > kMostError)
    throw NoIntegerForm(
        "its operand reaches numbers so large that their unit leaves nearly nothing of the others");
}

}  // namespace

RuleResult integer_softmax(const RuleContext& ctx) {
  const ScaledInteger x = ctx.with_one_scale(0);
  if (ctx.node.operand_type(0).rank() == 0) return Refusal{"its rank"};
  const std::int64_t axis = ctx.node.attrs<AxisDtypeAttrs>().axis;
  if (ctx.node.op() != Op::kLogSoftmax) require_fine_scores(x);
  if (ctx.node.op() != Op::kLogSoftmax) {
    const bool is_short = shares_fit_16_bits(ctx.build, x, axis, ctx.node.eventual_qparams());
    ScaledInteger out =
        is_short ? shares_of_bytes(ctx.build, x, axis) : quotient(ctx.build, shares_of(ctx.build, x, axis));
    const bool is_safe = ctx.node.op() == Op::kSafeSoftmax;
    // A row in which all elements are minus infinity becomes NaN, or 0 for safe_softmax. If nothing quantizes
    // the result or looks for NaN in it, all elements of such a row are equal instead of NaN: the usual
    // readers are contractions, which have no rule for NaN.
    if (x.minus_infinity && (is_safe || (needs_nan(ctx.node) && may_hide_rows(ctx)))) {
      IntegerMath m(ctx.build);
      const ValueId top = m.max(x.id, axis);
      const ValueId least =
          ctx.build.number(*x.minus_infinity, ctx.build.type(top).rank(), ctx.build.type(top).dtype);
      const ValueId hidden = ctx.build.binary(Op::kTosaGreaterEqual, least, top);
      if (is_safe)
        out.id = ctx.build.emit(Op::kTosaSelect, NoAttrs{}, {hidden, m.number(out.id, 0), out.id});
      else
        out.nan_mask = hidden;
    }
    return out;
  }
  return log_shares(ctx, shares_of(ctx.build, x, axis));
}

// max + log(sum(exp(x - max))) over some axes.
RuleResult integer_logsumexp(const RuleContext& ctx) {
  const auto& attrs = ctx.node.attrs<ReduceAttrs>();
  ScaledInteger x = ctx.with_one_scale(0);
  if (ctx.node.operand_type(0).rank() == 0) return x;
  IntegerMath m(ctx.build);
  ScaledInteger top = x;
  for (const std::int64_t axis : attrs.axes) top.id = m.max(top.id, axis);
  ValueId sum = m.exp30(below(ctx.build, x, top.id));
  int fewer = 0;
  for (const std::int64_t axis : attrs.axes) {
    const std::int64_t count = extent(ctx.build, x.id, axis);
    sum = m.sum30(sum, axis, count);
    fewer += bits_to(count);
  }
  ScaledInteger out = total(ctx.build, top, logarithm(ctx.build, m.normalized(sum), fewer));
  out.id = ctx.build.reshape(out.id, ctx.node.result_type().shape);
  return out;
}

RuleResult integer_norm(const RuleContext& ctx) {
  const Op op = ctx.node.op();
  const ScaledInteger x = ctx.with_one_scale(0);
  const Shape shape = ctx.node.operand_type(0).shape;
  std::int64_t row = 1;
  Norm norm{0, op != Op::kRmsNorm, 3};
  if (op == Op::kGroupNorm) {
    const auto& attrs = ctx.node.attrs<GroupNormAttrs>();
    norm.eps = attrs.eps;
    row = num_elements(shape) / std::max<std::int64_t>(1, shape[0] * attrs.groups);
  } else {
    const auto& attrs = ctx.node.attrs<NormAttrs>();
    norm.eps = attrs.eps.value_or(
        op == Op::kRmsNorm ? static_cast<double>(std::numeric_limits<float>::epsilon()) : 1e-5);
    for (std::size_t i = shape.size() - static_cast<std::size_t>(attrs.normalized_rank); i < shape.size();
         ++i)
      row *= shape[i];
  }
  ScaledInteger rows = x;
  rows.id = as_rows(ctx.build, x, row);
  // A group norm has a weight for each channel, not for each element of a row: its weights are multiplied
  // below.
  const bool is_affine = op != Op::kGroupNorm;
  const auto constant = [&](std::size_t i) {
    return ctx.node.has(i) && ctx.is_known(i) ? std::optional(ctx.numbers(i)) : std::nullopt;
  };
  const Affine affine{constant(1), constant(2)};
  const bool is_known = (affine.weight || !ctx.node.has(1)) && (affine.bias || !ctx.node.has(2));
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  const bool is_short = to && is_known && norm_fits_16_bits(ctx.build, rows, norm, affine, *to);
  const auto short_form = ctx.build.type(rows.id).dtype == DType::kI8 ? norm_of_bytes : norm_of_halfwords;
  ScaledInteger out = is_short ? short_form(ctx.build, rows, norm, is_affine ? affine : Affine{}, *to)
                               : normalized_rows(ctx.build, rows, norm);
  // As for softmax: the usual readers of a result that is not quantized have no rule for NaN.
  std::optional<ValueId> nan_mask;
  if (out.nan_mask && needs_nan(ctx.node))
    nan_mask = ctx.build.reshape(ctx.build.broadcast_to(*out.nan_mask, ctx.build.type(rows.id).shape), shape);
  out.id = ctx.build.reshape(out.id, shape);
  const auto along =
      [&](std::size_t i) {  // weight and bias: along the trailing axes, or (group_norm) the channels
        Shape own = ctx.node.operand_type(i).shape;
        if (op == Op::kGroupNorm)
          for (std::size_t k = 2; k < shape.size(); ++k) own.push_back(1);
        return own;
      };
  if (ctx.node.has(1) && !(is_short && is_affine)) out = times(ctx, out, 1, along(1));
  if (ctx.node.has(2) && !(is_short && is_affine)) out = plus(ctx, out, 2, along(2));
  out.nan_mask = nan_mask;
  return out;
}

}  // namespace tosaic::passes
