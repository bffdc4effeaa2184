#include "tosaic/passes/lower_to_integer/integer_function.h"

#include <algorithm>
#include <cmath>

#include "tosaic/passes/lower_to_integer/function_samples.h"
#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"

namespace tosaic::passes {
namespace {

// A number, at least one unit, as mantissa and shift; `most_shift` is the largest shift that can occur.
struct Positive {
  IntegerMath::Scaled scaled;
  int most_shift = 30;
};

Positive positive(IntegerBuilder& build, const ScaledInteger& x, bool even) {
  IntegerMath m(build);
  const std::int64_t least = std::max<std::int64_t>(x.range.low, 1);
  const ValueId v = x.range.low >= 1 ? x.id : m.maximum(x.id, 1);
  int most = 30;
  while (most > 0 && (least >> (31 - most)) != 0) --most;  // clz(least) - 1
  return {m.normalized(v, even), even ? most & ~1 : most};
}

// For a function f with a pole at zero, where an operand may be off by one unit. Throws NoIntegerForm for
// operands that may be below 8 units, unless f(8 units) saturates the qparams of the reader.
void require_distance(const NodeView& node, const ScaledInteger& x, const IntegerMath::Function& f) {
  constexpr int kFewUnits = 8;
  if (x.range.low >= kFewUnits) return;
  const std::optional<QParams> to = node.eventual_qparams();
  if (!to || std::abs(f(kFewUnits * x.scale())) < largest_number(*to))
    throw NoIntegerForm("its operand may be closer to zero than its bits can tell");
}

// Masks that are true where a number in i32 is zero, or negative. Nothing if it never is.
std::optional<ValueId> at_zero(IntegerBuilder& build, const ScaledInteger& x) {
  if (x.range.low > 0 || x.range.high < 0) return std::nullopt;
  return build.binary(Op::kTosaEqual, x.id, IntegerMath(build).number(x.id, 0));
}
std::optional<ValueId> below_zero(IntegerBuilder& build, const ScaledInteger& x) {
  if (x.range.low >= 0) return std::nullopt;
  return build.binary(Op::kTosaGreater, IntegerMath(build).number(x.id, 0), x.id);
}

// 1 / sqrt(x), in a unit in which the largest possible result has 30 bits: the results for the integers v of
// x are 2^(44.5 - most_shift / 2) / sqrt(v).
std::optional<ScaledInteger> rsqrt(const RuleContext& ctx, const ScaledInteger& x) {
  IntegerMath m(ctx.build);
  require_distance(ctx.node, x, [](double v) { return 1 / std::sqrt(v); });
  const Positive v = positive(ctx.build, x, true);
  const ValueId root = m.of_mantissa(
      v.scaled.mantissa, [](double at) { return std::ldexp(std::sqrt(0x1p29 / at), 30); }, true);
  const ValueId made = m.right(root, m.right(m.sub(v.most_shift, v.scaled.shift), 1), true);
  const int half = v.most_shift / 2;
  const double scale = std::pow(2.0, half - 44.5) / std::sqrt(x.scale());
  ScaledInteger out{made, {scale}, 0, {0, std::int64_t{1} << 30}};
  out.nan_mask = below_zero(ctx.build, x);
  return out;
}

std::optional<ScaledInteger> sqrt(const RuleContext& ctx, const ScaledInteger& x) {
  IntegerMath m(ctx.build);
  const Positive v = positive(ctx.build, x, true);
  const ValueId root = m.of_mantissa(
      v.scaled.mantissa, [](double at) { return std::ldexp(std::sqrt(at / 0x1p31), 30); }, true);
  ValueId made = m.right(root, m.right(v.scaled.shift, 1), true);
  if (x.range.low < 1) {
    const ValueId is_positive = ctx.build.binary(Op::kTosaGreater, x.id, m.number(x.id, 0));
    made = ctx.build.emit(Op::kTosaSelect, NoAttrs{}, {is_positive, made, m.number(made, 0)});
  }
  const double scale = std::pow(2.0, 15.5 - 30) * std::sqrt(x.scale());
  ScaledInteger out{made, {scale}, 0, {0, std::int64_t{1} << 30}};
  const auto least = static_cast<double>(std::max<std::int64_t>(x.range.low, 0)) * x.scale();
  out.error = scale + (least == 0 ? std::sqrt(x.error) : x.error / (2 * std::sqrt(least)));
  out.nan_mask = below_zero(ctx.build, x);
  return out;
}

std::optional<ScaledInteger> log(const RuleContext& ctx, const ScaledInteger& x) {
  IntegerMath m(ctx.build);
  constexpr int kBits = 23;
  require_distance(ctx.node, x, [](double v) { return std::log(v); });
  const Positive v = positive(ctx.build, x, false);
  const double unit = std::ldexp(1.0, -kBits);
  const double base = std::log(x.scale()) + 30 * std::log(2.0);
  if (std::abs(base) > 100) throw NoIntegerForm("its operand has an extreme scale");
  const ValueId mantissa =
      m.of_mantissa(v.scaled.mantissa, [&](double at) { return (std::log(at / 0x1p30) + base) / unit; });
  const ValueId octaves = ctx.build.binary(Op::kTosaMul, v.scaled.shift,
                                           m.number(v.scaled.shift, std::llround(std::log(2.0) / unit)));
  const auto most = static_cast<std::int64_t>((std::abs(base) + 22) / unit);
  ScaledInteger out{m.sub(mantissa, octaves), {unit}, 0, {-most, most}};
  out.error = 2 * unit + x.error / (static_cast<double>(std::max<std::int64_t>(x.range.low, 1)) * x.scale());
  out.nan_mask = below_zero(ctx.build, x);
  return out;
}

std::optional<ScaledInteger> exp(const RuleContext& ctx, const ScaledInteger& x) {
  IntegerMath m(ctx.build);
  std::int64_t top = x.range.high;
  if (const std::optional<QParams> to = ctx.node.eventual_qparams()) {  // operands above `top` saturate
    const double enough = std::ceil(std::log(2 * largest_number(*to)) / x.scale());
    if (enough < static_cast<double>(top))
      top = std::max(x.range.low, static_cast<std::int64_t>(std::max(enough, -0x1p31)));
  }
  const double largest = std::exp(static_cast<double>(top) * x.scale());
  if (!std::isfinite(largest)) throw NoIntegerForm("it may be infinite");
  ScaledInteger below = x;
  below.id = m.add(top < x.range.high ? m.minimum(x.id, top) : x.id, -top);
  below.range = {x.range.low - top, 0};
  ScaledInteger out{
      m.exp30(below), {std::ldexp(largest, -IntegerMath::kExpBits)}, 0, {0, std::int64_t{1} << 30}};
  out.error = out.scale() + largest * std::min(x.error, 1.0);
  return out;
}

// ---- quotients ----

struct Magnitude {
  ScaledInteger size;
  ValueId negative;  // mask of the negative numbers; invalid if there are none
};

Magnitude magnitude_of(IntegerBuilder& build, const ScaledInteger& x) {
  if (x.range.low >= 0) return {x, ValueId()};
  IntegerMath m(build);
  Magnitude out{x, build.binary(Op::kTosaGreater, m.number(x.id, 0), x.id)};
  out.size.id = build.emit(Op::kTosaAbs, NoAttrs{}, {x.id});
  out.size.range = {x.range.high < 0 ? -x.range.high : 0, x.magnitude()};
  return out;
}

// 2^60 / mantissa: a table, and one Newton step r * (2 - m * r).
ValueId inverse_of(IntegerBuilder& build, ValueId mantissa) {
  IntegerMath m(build);
  const ValueId coarse = m.of_mantissa(mantissa, [](double at) { return 0x1p60 / at; });
  const ValueId one = m.mul(mantissa, coarse, 30);  // 2^30, nearly
  return m.mul(coarse, m.sub(m.number(one, 2147483647), one), 30);
}

ValueId with_sign(IntegerBuilder& build, ValueId size, ValueId negative) {
  if (!negative.valid()) return size;
  IntegerMath m(build);
  return build.elementwise(Op::kTosaSelect, NoAttrs{}, {negative, m.sub(0, size), size});
}

// 1 / x. All results share one unit: a result has one bit less for each power of two below the largest. Throws
// NoIntegerForm if fewer than 16 bits may remain.
std::optional<ScaledInteger> reciprocal(const RuleContext& ctx, const ScaledInteger& x) {
  constexpr int kFewest = 16;
  IntegerMath m(ctx.build);
  const auto [size, negative] = magnitude_of(ctx.build, x);
  const Positive v = positive(ctx.build, size, false);
  if (30 - v.most_shift < kFewest) throw NoIntegerForm("its results span too many orders of magnitude");
  const ValueId made =
      m.right(inverse_of(ctx.build, v.scaled.mantissa), m.sub(v.most_shift, v.scaled.shift), true);
  const std::int64_t most = std::int64_t{1} << 30;
  return ScaledInteger{with_sign(ctx.build, made, negative),
                       {std::ldexp(1.0, v.most_shift - 60) / x.scale()},
                       0,
                       {negative.valid() ? -most : 0, most}};
}

}  // namespace

// a / b, by mantissas and exponents, in a unit for the largest result: of the qparams of the reader (eventual_qparams()),
// or the largest possible. x / 0 is infinite, a number that saturates; 0 / 0 is NaN.
ScaledInteger quotient_of(const RuleContext& ctx, const ScaledInteger& a, const ScaledInteger& b) {
  IntegerMath m(ctx.build);
  const auto [dividend, a_negative] = magnitude_of(ctx.build, a);
  const auto [divisor, b_negative] = magnitude_of(ctx.build, b);
  const Positive v = positive(ctx.build, divisor, false);
  const ValueId room = m.add(m.clz(m.maximum(dividend.id, 1)), -2);
  const ValueId filled = m.left(dividend.id, m.maximum(room, 0));  // 30 bits, or 31 if it has 31 already
  const ValueId product = m.mul(filled, inverse_of(ctx.build, v.scaled.mantissa), 31);
  const double ratio = a.scale() / b.scale();
  double top = static_cast<double>(a.magnitude()) * a.scale() /
               (static_cast<double>(std::max<std::int64_t>(divisor.range.low, 1)) * b.scale());
  if (const std::optional<QParams> to = ctx.node.eventual_qparams()) {
    top = std::min(top, 2 * largest_number(*to));
  } else if (30 - v.most_shift < 16) {
    throw NoIntegerForm("its results span too many orders of magnitude");
  }
  if (top == 0) top = ratio;  // the dividend is always 0
  const std::optional<ValueId> by_zero = at_zero(ctx.build, divisor);
  if (const std::optional<QParams> to = ctx.node.eventual_qparams(); by_zero && to)
    top = std::max(top, largest_number(*to) / 2);  // 2^30 units, the result of x / 0, are at least 8 * top
  // product = filled * 2^29 / mantissa, so the quotient is product * 2^(shift - room - 29)
  const int unit = static_cast<int>(std::ceil(std::log2(top / ratio))) - 27;
  const ValueId drop = m.sub(m.add(m.maximum(room, 0), 29 + unit), v.scaled.shift);
  ValueId made = m.right(product, m.minimum(m.maximum(drop, 0), 31), true);
  const std::int64_t most = std::int64_t{1} << 30;
  if (by_zero)
    made = ctx.build.elementwise(Op::kTosaSelect, NoAttrs{}, {*by_zero, m.number(made, most), made});
  made = with_sign(ctx.build, with_sign(ctx.build, made, a_negative), b_negative);
  ScaledInteger out{made, {std::ldexp(ratio, unit)}, 0, {-most, most}};
  if (by_zero) out.nan_mask = ctx.build.both(by_zero, at_zero(ctx.build, dividend));
  return out;
}

namespace {

// A number in a unit of 2^-n, with n as large as 30 bits allow. For numbers below 1/8, n is above 31.
struct Binary {
  ScaledInteger real;
  int bits;  // n, at most 31: a right shift by 31 leaves only the sign
  // How far, in units, the number may be from torch's f32. So close to a step it counts as at the step.
  std::int64_t near;
};

Binary in_binary(IntegerBuilder& build, const ScaledInteger& x) {
  const double size = static_cast<double>(x.magnitude()) * x.scale();
  if (size >= 0x1p30) throw NoIntegerForm("its operand has too many bits");
  const int bits = std::max(28 - (size == 0 ? 0 : std::ilogb(size)), 0);
  const double unit = std::ldexp(1.0, -bits);
  ScaledInteger fine = rescaled(build, x, DType::kI32, unit);
  const double error = std::max(fine.error, std::ldexp(size, -25));
  const auto near = static_cast<std::int64_t>(std::min(error, 0.25) / unit);
  return {std::move(fine), std::min(bits, 31), near};
}

}  // namespace

ScaledInteger in_whole_numbers(IntegerBuilder& build, const ScaledInteger& x, Op op) {
  IntegerMath m(build);
  const auto [fine, bits, near] = in_binary(build, x);
  const std::int64_t most = (fine.magnitude() >> bits) + 1;
  const auto floor = [&](ValueId id) { return m.right(id, bits); };
  ValueId made;
  if (op == Op::kFloor) {
    made = floor(m.add(fine.id, near));
  } else if (op == Op::kCeil) {
    made = m.sub(0, floor(m.sub(near, fine.id)));
  } else if (op == Op::kRound) {  // half to even: near a half, up if the integer below is odd
    made = fine.id;
    if (bits > 0) {
      const ValueId odd = m.bits(floor(made), 1);
      const ValueId up = near == 0 ? odd : build.binary(Op::kTosaMul, odd, m.number(odd, 2 * near + 1));
      made = floor(m.add(m.add(made, (std::int64_t{1} << (bits - 1)) - 1 - near), up));
    }
  } else {
    const ValueId negative = build.binary(Op::kTosaGreater, m.number(fine.id, 0), fine.id);
    made = with_sign(build, floor(m.add(build.emit(Op::kTosaAbs, NoAttrs{}, {fine.id}), near)), negative);
  }
  return {made, {1.0}, 0, {-most, most}};
}

namespace {

// True for functions that change much within few units of the operand near zero.
bool is_steep_at_zero(Op op) {
  return op == Op::kLog || op == Op::kSqrt || op == Op::kRsqrt || op == Op::kReciprocal;
}

// x - trunc(x / y) * y (fmod) or x - floor(x / y) * y (remainder) for a constant y; steps as in
// in_whole_numbers(). Nothing if y varies, is 0 or not finite, or is negative for remainder.
std::optional<ScaledInteger> remainder(const RuleContext& ctx, const ScaledInteger& x) {
  if (!ctx.node.is_constant(1)) return std::nullopt;
  const double divisor = ctx.numbers(1).front();
  const bool floors = ctx.node.op() == Op::kRemainder;
  if (!std::isfinite(divisor) || divisor == 0 || (floors && divisor < 0)) return std::nullopt;
  ScaledInteger quotient = x;
  quotient.scales = {x.scale() / std::abs(divisor)};
  ScaledInteger whole = in_whole_numbers(ctx.build, quotient, floors ? Op::kFloor : Op::kTrunc);
  whole.scales = {std::abs(divisor)};
  return difference(ctx.build, x, whole);
}

// floor, ceil, trunc and round.
std::optional<ScaledInteger> whole_number(const RuleContext& ctx, const ScaledInteger& x) {
  return in_whole_numbers(ctx.build, x, ctx.node.op());
}

std::optional<ScaledInteger> sign(const RuleContext& ctx, const ScaledInteger& x) {
  return ScaledInteger{ctx.build.bounded(x.id, x.range, {-1, 1}), {1.0}, 0, {-1, 1}};
}

// The functions with arithmetic of their own, of a number x in i32. Nothing if they have none for this node.
struct FunctionRule {
  Op op;
  std::optional<ScaledInteger> (*rule)(const RuleContext& ctx, const ScaledInteger& x);
};

constexpr FunctionRule kFunctions[] = {
    {Op::kRsqrt, rsqrt},
    {Op::kSqrt, sqrt},
    {Op::kReciprocal, reciprocal},
    {Op::kLog, log},
    {Op::kExp, exp},
    {Op::kFloor, whole_number},
    {Op::kCeil, whole_number},
    {Op::kTrunc, whole_number},
    {Op::kRound, whole_number},
    {Op::kRemainder, remainder},
    {Op::kFmod, remainder},
    {Op::kSign, sign},
};

}  // namespace

std::optional<RuleResult> integer_function(const RuleContext& ctx) {
  if (ctx.node.op() == Op::kCast && ctx.is_scaled(0) &&
      (ctx.node.result_type().dtype == DType::kI32 || ctx.node.result_type().dtype == DType::kI64)) {
    const ScaledInteger whole = in_whole_numbers(ctx.build, ctx.with_one_scale(0), Op::kTrunc);
    // The clamp changes no value. It shows the range to narrow_integers.cpp, which does not know it
    // otherwise. Indices are computed from i64, other integers from i32.
    const ClampAttrs within{Scalar(whole.range.low), Scalar(whole.range.high)};
    const ValueId bounded = ctx.build.emit(Op::kClamp, within, {whole.id});
    return ctx.node.result_type().dtype == DType::kI32
               ? bounded
               : ctx.build.emit(Op::kCast, ctx.node.attributes(), {bounded});
  }
  if (ctx.node.op() == Op::kCast && !is_float(ctx.node.operand_type(0).dtype) &&
      has_integer_form(ctx.node.result_type().dtype) && !ctx.is_scaled(0))
    return ctx.scaled(0);
  if (ctx.node.op() == Op::kCast && ctx.is_scaled(0) && ctx.node.result_qparams() == nullptr &&
      has_integer_form(ctx.node.result_type().dtype))
    return ctx.scaled(0);
  const OpInfo& row = info(ctx.node.op());
  if (!row.has(kElementwise) || row.is_tosa || !has_integer_form(ctx.node.result_type().dtype))
    return std::nullopt;
  if (ctx.node.result_qparams() == nullptr && !has_integer_form(ctx.node.operand_type(0).dtype))
    return std::nullopt;
  std::optional<FunctionOperands> operands = function_operands(ctx);
  if (!operands || operands->variables.size() != 1) return std::nullopt;
  const std::size_t variable = operands->variables.front().front();
  const ScaledInteger x = widened(ctx.build, ctx.with_one_scale(variable));
  if (is_steep_at_zero(ctx.node.op()) && is_vague_near_zero(x))
    if (std::optional<RuleResult> made = smooth_composition(ctx)) return made;
  for (const FunctionRule& function : kFunctions) {
    if (function.op != ctx.node.op()) continue;
    const std::optional<ScaledInteger> made = function.rule(ctx, x);
    return made ? std::optional<RuleResult>(*made) : std::nullopt;
  }
  return by_samples(ctx, ctx.node.operand(variable), x);
}

}  // namespace tosaic::passes
