#include "tosaic/passes/lower_to_integer/integer_function.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/op_table.h"
#include "tosaic/passes/lower_to_integer/evaluation.h"
#include "tosaic/passes/lower_to_integer/function_samples.h"
#include "tosaic/passes/lower_to_integer/function_table.h"
#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/integer_quotient.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/whole_numbers.h"

namespace tosaic::passes {
namespace {

// True for a function of integers of the program, which are exact.
bool reads_count(const NodeView& node) {
  const TensorType& type = node.operand_type(0);
  return is_integer(type.dtype) && !type.qparams;
}

// f(x) for a function of integers of the program with a pole at zero: f(0) saturates where the result is
// quantized in the end. `sign` is the sign of the pole.
ScaledInteger with_pole(const RuleContext& ctx, const ScaledInteger& x, ScaledInteger f, int sign) {
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  if (!reads_count(ctx.node) || !to || x.range.low > 0) return f;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  IntegerMath m(ctx.build);
  const int fewer = std::max(0, std::ilogb(2 * largest_number(*to) / f.scale()) + 1 - 30);
  f.id = m.right(f.id, fewer, true);
  f.scales = {std::ldexp(f.scale(), fewer)};
  const ValueId is_zero = ctx.build.binary(Op::kTosaEqual, x.id, m.number(x.id, 0));
  f.id = ctx.build.elementwise(Op::kTosaSelect, NoAttrs{}, {is_zero, m.number(f.id, sign * kMost), f.id});
  f.range = {std::min(f.range.low, sign * kMost), std::max(f.range.high, sign * kMost)};
  return f;
}

// The function f has a pole at zero, and x may be off by one unit, which changes f much near the pole. Throws
// NoIntegerForm if x may be below 8 units, unless f(8 units) is beyond the range of the qparams to which the
// reader quantizes.
void require_distance(const NodeView& node, const ScaledInteger& x, const IntegerMath::Function& f) {
  constexpr int kFewUnits = 8;
  if (x.range.low >= kFewUnits) return;
  const std::optional<QParams> to = node.eventual_qparams();
  if (to && reads_count(node)) return;  // see with_pole()
  if (!to || std::abs(f(kFewUnits * x.scale())) < largest_number(*to))
    throw NoIntegerForm("its operand may be closer to zero than its bits can tell");
}

// A mask that is true where a number in i32 is negative. Returns nothing if it never is.
std::optional<ValueId> below_zero(IntegerBuilder& build, const ScaledInteger& x) {
  if (x.range.low >= 0) return std::nullopt;
  return build.binary(Op::kTosaGreater, IntegerMath(build).number(x.id, 0), x.id);
}

// 1 / sqrt(x), in a unit in which the largest possible result has 30 bits. For an integer v of x, the result
// is the integer 2^(44.5 - most_shift / 2) / sqrt(v); most_shift is IntegerMath::Positive's.
std::optional<ScaledInteger> rsqrt(const RuleContext& ctx, const ScaledInteger& x) {
  IntegerMath m(ctx.build);
  require_distance(ctx.node, x, [](double v) { return 1 / std::sqrt(v); });
  const IntegerMath::Positive v = m.positive(x, true);
  const ValueId root = m.of_mantissa(
      v.scaled.mantissa, [](double at) { return std::ldexp(std::sqrt(0x1p29 / at), 30); }, true);
  const ValueId made = m.right(root, m.right(m.sub(v.most_shift, v.scaled.shift), 1), true);
  const int half = v.most_shift / 2;
  const double scale = std::pow(2.0, half - 44.5) / std::sqrt(x.scale());
  ScaledInteger out = with_pole(ctx, x, {made, {scale}, 0, {0, std::int64_t{1} << 30}}, 1);
  out.nan_mask = below_zero(ctx.build, x);
  return out;
}

std::optional<ScaledInteger> sqrt(const RuleContext& ctx, const ScaledInteger& x) {
  IntegerMath m(ctx.build);
  const IntegerMath::Positive v = m.positive(x, true);
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
  const IntegerMath::Positive v = m.positive(x);
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
  out = with_pole(ctx, x, std::move(out), -1);
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
  constexpr double kLeast =
      -60;  // the unit is that of exp(-60) or a coarser one: finer units would be subnormal
  top = std::max(top, static_cast<std::int64_t>(std::max(std::ceil(kLeast / x.scale()), -0x1p30)));
  const double largest = std::exp(static_cast<double>(top) * x.scale());
  if (!std::isfinite(largest)) throw NoIntegerForm("it may be infinite");
  ScaledInteger below = x;
  below.id = m.add(top < x.range.high ? m.minimum(x.id, top) : x.id, -top);
  below.range = {x.range.low - top, 0};
  ScaledInteger out{
      m.exp30(below), {std::ldexp(largest, -IntegerMath::kExpBits)}, 0, {0, std::int64_t{1} << 30}};
  require_fine_counts(ctx, ctx.node.operand(0), x, out.scale());
  out.error = out.scale() + largest * std::min(x.error, 1.0);
  return out;
}

// x - trunc(x / y) * y (fmod) or x - floor(x / y) * y (remainder) for a constant y. A number near a multiple
// of y counts as that multiple, as in in_whole_numbers(). Returns nothing if y varies, is 0 or is not finite.
// For remainder, also returns nothing if y is negative.
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

// fmod and remainder of x and y, with d = |y|. fmod is the rest of |x| / d, with the sign of x. remainder is
// the rest of v / d, with the sign of y, where v is x if y is positive, and -x if y is negative.
std::optional<ScaledInteger> remainder_of_two(const RuleContext& ctx) {
  const ScaledInteger x = widened(ctx.build, ctx.with_one_scale(0));
  const ScaledInteger y = widened(ctx.build, ctx.with_one_scale(1));
  if (x.error > 0 || y.error > 0 || x.minus_infinity || y.minus_infinity) return std::nullopt;
  const double size = static_cast<double>(x.magnitude()) * x.scale();
  const double largest = size / (static_cast<double>(std::max<std::int64_t>(y.range.low, 1)) * y.scale());
  IntegerMath m(ctx.build);
  const auto below_zero_of = [&](const ScaledInteger& of) {
    return of.range.low < 0 ? ctx.build.binary(Op::kTosaGreater, m.number(of.id, 0), of.id) : ValueId();
  };
  const bool floors = ctx.node.op() == Op::kRemainder;
  const ValueId negative = below_zero_of(floors ? y : x);
  ScaledInteger v = x, d = y;
  v.id = m.with_sign(x.id, negative);
  v.range = {floors ? -x.magnitude() : 0, x.magnitude()};
  d.id = m.with_sign(y.id, below_zero_of(y));
  d.range = {0, y.magnitude()};
  const std::optional<Division> made = division_of(ctx.build, v, d, largest);
  if (!made) return std::nullopt;
  ScaledInteger out = made->rest;
  out.id = m.with_sign(out.id, negative);
  out.range = {negative.valid() ? -out.range.high : 0, out.range.high};
  if (y.range.low <= 0 && y.range.high >= 0)
    out.nan_mask = ctx.build.binary(Op::kTosaEqual, y.id, m.number(y.id, 0));
  return out;
}

// Lowers floor, ceil, trunc and round.
std::optional<ScaledInteger> whole_number(const RuleContext& ctx, const ScaledInteger& x) {
  return in_whole_numbers(ctx.build, x, ctx.node.op());
}

// Does the same as require_distance() for an inexact x. If `is_odd`, also refuses an x of both signs: f has
// poles of both signs at zero, and the sign of x is lost near zero.
void require_pole(const NodeView& node, const ScaledInteger& x, bool is_odd, const IntegerMath::Function& f) {
  if (x.error == 0 || x.range.low > 0 || x.range.high < 0) return;
  if (is_odd && x.range.low < 0 && x.range.high > 0)
    throw NoIntegerForm("its operand may be closer to zero than its bits can tell");
  require_distance(node, x, f);
}

// 1 / x in a unit for results up to `most`: results beyond are larger than `most`, and saturate in the end.
ScaledInteger bounded_reciprocal(IntegerBuilder& build, const ScaledInteger& x, double most) {
  const std::size_t rank = build.type(x.id).rank();
  QParams to;
  to.scales = {most};
  to.zero_points = {0};
  to.qmin = -1, to.qmax = 1;
  return quotient_of(build, {build.number(1, rank), {1.0}, 0, {1, 1}}, x, to);
}

std::optional<ScaledInteger> reciprocal(const RuleContext& ctx, const ScaledInteger& x) {
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  const bool may_be_zero = x.range.low <= 0 && x.range.high >= 0;
  require_pole(ctx.node, x, true, [](double v) { return 1 / v; });
  return to && may_be_zero ? bounded_reciprocal(ctx.build, x, largest_number(*to))
                           : reciprocal_of(ctx.build, x);
}

constexpr double kMostFactors = 16;

// True for x ** -n with a whole number n.
bool is_inverse_power(const RuleContext& ctx) {
  if (ctx.node.op() != Op::kPow || !ctx.node.is_constant(1)) return false;
  const std::vector<double> exponents = ctx.numbers(1);
  return exponents.size() == 1 && exponents[0] < 0 && exponents[0] >= -kMostFactors &&
         exponents[0] == std::trunc(exponents[0]);
}

// (1 / x) ^ n. The pole would be lost between the points of by_samples(), and with it the sign next to it.
// Numbers that saturate in the end are bounded after each product, so that the other results keep their bits.
std::optional<ScaledInteger> inverse_power(const RuleContext& ctx, const ScaledInteger& x) {
  const int factors = static_cast<int>(-ctx.numbers(1)[0]);
  require_pole(ctx.node, x, factors % 2 != 0, [&](double v) { return std::pow(v, -factors); });
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  const double most = to ? std::pow(largest_number(*to), 1.0 / factors) : 0;
  const ScaledInteger inverse = to ? bounded_reciprocal(ctx.build, x, most) : reciprocal_of(ctx.build, x);
  ScaledInteger power = inverse;
  for (int i = 1; i <= factors; ++i) {
    if (i > 1) power = product_of(ctx.build, power, inverse);
    if (!to) continue;
    const double enough = std::ceil(4 * std::pow(most, i) / power.scale());
    if (enough >= 0x1p31) continue;
    const auto limit = static_cast<std::int64_t>(enough);
    const ValueRange within{std::max(power.range.low, -limit), std::min(power.range.high, limit)};
    power.id = ctx.build.bounded(power.id, power.range, within);
    power.range = within;
  }
  return power;
}

std::optional<ScaledInteger> sign(const RuleContext& ctx, const ScaledInteger& x) {
  return ScaledInteger{ctx.build.bounded(x.id, x.range, {-1, 1}), {1.0}, 0, {-1, 1}};
}

// A sine or cosine of so many turns that the samples of function_samples.h are too far apart. x is converted
// to turns, whose fraction is the position in a table of one turn. Returns nothing for few turns or few
// integers, for which samples are more exact.
std::optional<ScaledInteger> sine(const RuleContext& ctx, const ScaledInteger& x) {
  constexpr double kTurn = 6.283185307179586477, kCoarsest = 0x1p-14;
  constexpr int kLineBits = 12, kResultBits = 29, kFewTurns = 8;
  constexpr std::int64_t kFewIntegers = 65536;
  const double turns = static_cast<double>(x.magnitude()) * x.scale() / kTurn;
  if (turns <= kFewTurns || x.range.high - x.range.low <= kFewIntegers) return std::nullopt;
  if (x.minus_infinity) throw NoIntegerForm(kNoInfinity);
  const int bits = 28 - std::ilogb(turns);
  const double unit = std::ldexp(kTurn, -bits);
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  if (bits < kLineBits || unit > (to ? to->scales.front() : kCoarsest))
    throw NoIntegerForm("it turns more often than 32 bits of its operand can tell");
  IntegerMath m(ctx.build);
  const ScaledInteger fine = rescaled(ctx.build, x, DType::kI32, unit);
  std::vector<std::int64_t> knots;
  for (int k = 0; k <= 1 << kLineBits; ++k) {
    const double at = std::ldexp(kTurn * k, -kLineBits);
    knots.push_back(
        std::llround(std::ldexp(ctx.node.op() == Op::kSin ? std::sin(at) : std::cos(at), kResultBits)));
  }
  const ValueId fraction = m.bits(fine.id, (std::int64_t{1} << bits) - 1);
  const std::int64_t most = (std::int64_t{1} << kResultBits) + 1;
  ScaledInteger out{
      m.on_lines(fraction, bits - kLineBits, knots), {std::ldexp(1.0, -kResultBits)}, 0, {-most, most}};
  out.error = x.error + unit + 0x1p-20;
  out.nan_mask = x.nan_mask;
  return out;
}

// The functions of a number x in i32 that have arithmetic of their own. A function returns nothing if it has
// none for the node.
struct FunctionRule {
  std::optional<ScaledInteger> (*rule)(const RuleContext& ctx, const ScaledInteger& x);
  bool steep_at_zero = false;  // the function changes much within few units of the operand near zero
  bool or_samples = false;     // by_samples() computes the node if the rule returns nothing
};

constexpr OpTable<FunctionRule> kFunctions = {
    {Op::kRsqrt, {rsqrt, true}},
    {Op::kSqrt, {sqrt, true}},
    {Op::kReciprocal, {reciprocal, true}},
    {Op::kPow, {inverse_power, true}},
    {Op::kLog, {log, true}},
    {Op::kExp, {exp}},
    {Op::kFloor, {whole_number}},
    {Op::kCeil, {whole_number}},
    {Op::kTrunc, {whole_number}},
    {Op::kRound, {whole_number}},
    {Op::kRemainder, {remainder}},
    {Op::kFmod, {remainder}},
    {Op::kSign, {sign}},
    {Op::kSin, {sine, false, true}},
    {Op::kCos, {sine, false, true}},
};

// True if x has few integers, and they are integers of the source program: a quantized value, integers, or a
// function or a view of them that no arithmetic has rounded. Then a table has the function at each of these
// integers, poles included.
bool has_exact_integers(const RuleContext& ctx, ValueId id, const ScaledInteger& x) {
  constexpr std::int64_t kMost = 65536;
  const Graph& graph = ctx.node.graph();
  if (x.error != 0 || x.range.high - x.range.low >= kMost) return false;
  while (is_float(graph.type(id).dtype) && !graph.type(id).qparams) {
    const Node* const producer = graph.producer(id);
    const OpInfo* const row = producer == nullptr ? nullptr : &info(producer->op);
    if (row == nullptr || !(row->has(kElementwise) || row->has(kView) || row->has(kMovement))) return false;
    ValueId next;
    for (const ValueId operand : graph.operands(*producer)) {
      if (!operand.valid() || graph.value(operand).kind == ValueKind::kConstant) continue;
      if (next.valid() && next != operand) return false;
      next = operand;
    }
    if (!next.valid()) return false;
    id = next;
  }
  return true;
}

}  // namespace

std::optional<RuleResult> integer_function(const RuleContext& ctx) {
  if (ctx.node.op() == Op::kCast && ctx.is_scaled(0) && is_integer(ctx.node.result_type().dtype)) {
    const ScaledInteger whole = in_whole_numbers(ctx.build, ctx.with_one_scale(0), Op::kTrunc);
    // Casts of floats saturate. The range of 32 bits changes no value, but without the clamp,
    // narrow_integers.cpp would not know it. Indices are computed from i64, other integers from i32.
    const ValueRange limits = *integer_limits(ctx.node.result_type().dtype);
    const ClampAttrs within{Scalar(std::max(whole.range.low, limits.low)),
                            Scalar(std::min(whole.range.high, limits.high))};
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
  const bool is_remainder = ctx.node.op() == Op::kRemainder || ctx.node.op() == Op::kFmod;
  if (is_remainder && !ctx.node.is_constant(0) && !ctx.node.is_constant(1)) {
    const std::optional<ScaledInteger> made = remainder_of_two(ctx);
    return made ? std::optional<RuleResult>(*made) : std::nullopt;
  }
  const OpInfo& row = info(ctx.node.op());
  const bool is_number =
      ctx.node.result_qparams() != nullptr || has_integer_form(ctx.node.result_type().dtype);
  if (!row.has(kElementwise) || row.is_tosa || !is_number) return std::nullopt;
  const DType from = ctx.node.operand_type(0).dtype;
  if (ctx.node.result_qparams() == nullptr && !has_integer_form(from) && !is_integer(from))
    return std::nullopt;
  std::optional<FunctionOperands> operands = function_operands(ctx);
  if (!operands || operands->variables.size() != 1) return std::nullopt;
  const std::size_t variable = operands->variables.front().front();
  const ScaledInteger x = widened(ctx.build, ctx.with_one_scale(variable));
  const bool has_rule = ctx.node.op() != Op::kPow || is_inverse_power(ctx);
  const FunctionRule* const function = has_rule ? kFunctions.find(ctx.node.op()) : nullptr;
  if (function != nullptr && function->steep_at_zero && is_vague_near_zero(x))
    if (std::optional<RuleResult> made = smooth_composition(ctx)) return made;
  if (function != nullptr) {
    const auto by_rule = [&]() -> std::optional<RuleResult> {
      const std::optional<ScaledInteger> made = function->rule(ctx, x);
      return made ? std::optional<RuleResult>(*made) : std::nullopt;
    };
    const bool is_exact = has_exact_integers(ctx, ctx.node.operand(variable), x);
    const std::optional<RuleResult> made = is_exact ? attempt(by_rule) : by_rule();
    const bool is_refused = made && std::holds_alternative<Refusal>(*made);
    if (made ? !is_refused : !function->or_samples) return made;
  }
  return by_samples(ctx, ctx.node.operand(variable), x);
}

}  // namespace tosaic::passes
