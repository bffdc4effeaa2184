// integer_order: lowers extrema, clamps and comparisons of two numbers, in i32.
//
//   maximum   rescales both operands to one unit, as add does; so do minimum and the comparisons
//   clamp     rounds its bounds to the unit of the operand, or to a finer one
//
// Numbers that a comparison or an extremum cannot choose are clamped first, so that the unit is finer.

#include <algorithm>
#include <cmath>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/lower_to_integer/terms.h"

namespace tosaic::passes {
namespace {

bool bounds_are_whole(const ClampAttrs& attrs, const ScaledInteger& x) {
  const auto is_whole = [&](const std::optional<Scalar>& bound) {
    const double units = bound ? as_double(*bound) / x.scale() : 0;
    return !std::isfinite(units) || std::abs(units) > static_cast<double>(x.magnitude()) ||
           std::abs(units - std::nearbyint(units)) < 0x1p-12;
  };
  return is_whole(attrs.min) && is_whole(attrs.max);
}

// The same numbers, exactly, in a finer unit: the scale is divided by the power of two with which the
// integers have 29 bits.
ScaledInteger finest(IntegerBuilder& build, const ScaledInteger& x) {
  const int more = 29 - bits_to(x.magnitude() + 1);
  return more <= 0 ? widened(build, x) : rescaled(build, x, DType::kI32, std::ldexp(x.scale(), -more));
}

// ---- the same unit for two operands ----

enum class Between { kMaximum, kMinimum, kOrder };

// Makes the common unit of two operands finer if it is coarser than 1/8 of the finer scale: clamps each
// operand to the numbers that affect the result. These are in the range of the other operand (a maximum has
// no upper limit, a minimum no lower one) and in that of `saturation`.
void bring_closer(IntegerBuilder& build, std::vector<Term>& terms, const std::optional<QParams>& saturation,
                  Between between) {
  if (!terms[0].scaled || !terms[1].scaled) return;
  const double finest = std::min(terms[0].scaled->scale(), terms[1].scaled->scale());
  if (common_unit(terms) <= finest / 8) return;
  const auto low = [](const ScaledInteger& x) { return static_cast<double>(x.centred().low) * x.scale(); };
  const auto high = [](const ScaledInteger& x) { return static_cast<double>(x.centred().high) * x.scale(); };
  const ScaledInteger a = *terms[0].scaled, b = *terms[1].scaled;
  for (Term& term : terms) {
    ScaledInteger& x = *term.scaled;
    const ScaledInteger& other = &term == &terms.front() ? b : a;
    double least = low(other), most = high(other);
    if (between == Between::kMaximum) most = HUGE_VAL;
    if (between == Between::kMinimum) least = -HUGE_VAL;
    if (saturation) {
      least = std::max(least, -largest_number(*saturation));
      most = std::min(most, largest_number(*saturation));
    }
    // A number just beyond all numbers of the other operand must not become equal to one of them in the
    // common unit.
    const double beside = between == Between::kOrder ? std::max(a.scale(), b.scale()) : 0;
    least -= beside, most += beside;
    const auto units = [&](double number) { return std::clamp(number / x.scale(), -0x1p31, 0x1p31); };
    const ValueRange to{static_cast<std::int64_t>(std::floor(units(least))) - 1,
                        static_cast<std::int64_t>(std::ceil(units(most))) + 1};
    x = widened(build, x);
    const ValueRange within{std::max(x.range.low, to.low), std::min(x.range.high, to.high)};
    if (within.low > within.high) continue;
    x.id = build.bounded(x.id, x.range, within);
    x.range = within;
  }
}

// The error of the bounds that limit magnitudes after rounding to a unit; 0 if it is at most 1/64 of the
// bound. Bounds beyond the numbers of x do not count.
double error_of_bounds(const ClampAttrs& attrs, const ScaledInteger& x, double unit) {
  const auto error = [&](double bound, double most) {
    const double off = std::abs(bound - std::max(std::nearbyint(bound / unit), 1.0) * unit);
    return bound > 0 && bound < most && off > 0x1p-6 * bound ? off : 0;
  };
  const double lowest = static_cast<double>(x.centred().low) * x.scale();
  const double highest = static_cast<double>(x.centred().high) * x.scale();
  return std::max(attrs.max ? error(as_double(*attrs.max), highest) : 0,
                  attrs.min ? error(-as_double(*attrs.min), -lowest) : 0);
}

// x in a unit in which rounding hardly changes the bounds. If x has too many bits for such a unit, x is
// clamped near the bounds first.
ScaledInteger in_unit_of_bounds(IntegerBuilder& build, const ClampAttrs& attrs, const ScaledInteger& x) {
  if (bounds_are_whole(attrs, x)) return widened(build, x);
  const int more = std::max(29 - bits_to(x.magnitude() + 1), 0);
  if (x.minus_infinity || error_of_bounds(attrs, x, std::ldexp(x.scale(), -more)) == 0)
    return finest(build, x);
  const auto units = [&](const std::optional<Scalar>& bound, double none) {
    return std::clamp(bound ? as_double(*bound) / x.scale() : none, -0x1p31, 0x1p31);
  };
  const ValueRange to{static_cast<std::int64_t>(std::floor(units(attrs.min, -0x1p31))) - 1,
                      static_cast<std::int64_t>(std::ceil(units(attrs.max, 0x1p31))) + 1};
  ScaledInteger out = widened(build, x);
  const ValueRange within{std::max(out.range.low, to.low), std::min(out.range.high, to.high)};
  if (within.low > within.high) return finest(build, x);
  out.id = build.bounded(out.id, out.range, within);
  out.range = within;
  return finest(build, out);
}

// Moves the integers that represent minus infinity below the finite numbers of both terms. Returns the
// `least` that with_lower_infinity() was given, or nothing if no term hides minus infinity.
std::optional<double> lower_infinity(IntegerBuilder& build, std::vector<Term>& terms) {
  double finite = 0;
  for (const Term& term : terms)
    finite = std::max(finite, term.scaled ? finite_magnitude(*term.scaled) : term.magnitude());
  const double least = finite + hidden_below(finite);
  bool hides = false;
  for (Term& term : terms)
    if (term.is_hiding()) {
      term.scaled = with_lower_infinity(build, *term.scaled, least);
      hides = true;
    }
  return hides ? std::optional(least) : std::nullopt;
}

// x with a range that excludes the integers of minus infinity.
ScaledInteger finite_part(const ScaledInteger& x) {
  ScaledInteger out = x;
  if (x.minus_infinity) out.range.low = std::min(std::max(x.range.low, *x.minus_infinity + 1), x.range.high);
  return out;
}

// The number that the clamp makes of every number of x, if one of its bounds is beyond them all. In torch,
// the upper bound wins.
std::optional<double> only_number(const ClampAttrs& attrs, const ScaledInteger& x) {
  const double lowest = static_cast<double>(x.centred().low) * x.scale();
  const double highest = static_cast<double>(x.centred().high) * x.scale();
  const double most = attrs.max ? as_double(*attrs.max) : HUGE_VAL;
  if (most <= lowest) return most;
  if (attrs.min && as_double(*attrs.min) >= std::min(highest, most))
    return std::min(as_double(*attrs.min), most);
  return std::nullopt;
}

// A number in a unit of its own, in the shape of the result.
RuleResult constant(const RuleContext& ctx, double number, const ScaledInteger& x) {
  if (!std::isfinite(number)) return Refusal{"its bounds are no numbers"};
  const double unit = number == 0 ? x.scale() : unit_for(std::abs(number));
  if (unit < 0x1p-126) return Refusal{"its bounds are below the numbers of floats"};
  const std::int64_t units = std::llround(number / unit);
  const Shape& shape = ctx.node.result_type().shape;
  ScaledInteger out{ctx.build.broadcast_to(ctx.build.number(units, shape.size()), shape),
                    {unit},
                    0,
                    ValueRange::only(units)};
  out.error = unit;
  out.nan_mask = x.nan_mask;
  return out;
}

// If x has so many bits that the bounds would have no finer unit, as integers of the program may: clamps x
// one unit beyond the bounds, or beyond the numbers that saturate in the end.
ScaledInteger near_bounds(const RuleContext& ctx, const ClampAttrs& attrs, const ScaledInteger& x) {
  constexpr std::int64_t kMany = std::int64_t{1} << 29;
  if (x.minus_infinity || x.zero_point != 0 || x.magnitude() < kMany) return x;
  const std::optional<QParams> to = ctx.node.qparams_behind_movement();
  const double enough = to ? largest_number(*to) : HUGE_VAL;
  const double low = attrs.min ? as_double(*attrs.min) : -enough,
               high = attrs.max ? as_double(*attrs.max) : enough;
  ScaledInteger out = x;
  const auto in_units = [&](double number) { return std::clamp(number / x.scale(), -0x1p32, 0x1p32); };
  out.range.low = std::max(x.range.low, static_cast<std::int64_t>(std::floor(in_units(low))) - 1);
  out.range.high = std::min(x.range.high, static_cast<std::int64_t>(std::ceil(in_units(high))) + 1);
  if (out.range.low > out.range.high) return x;
  out.id = ctx.build.bounded(x.id, x.range, out.range);
  return out;
}

// Lowers relu and clamp.
RuleResult clamped(const RuleContext& ctx) {
  ScaledInteger x = ctx.with_one_scale(0);
  ValueRange to;
  if (ctx.node.op() == Op::kClamp) {
    const auto& attrs = ctx.node.attrs<ClampAttrs>();
    // A clamp may make another number of minus infinity than of the other numbers.
    const std::optional<double> only = x.minus_infinity ? std::nullopt : only_number(attrs, x);
    if (only) return constant(ctx, *only, x);
    if (x.minus_infinity) {
      const double low = attrs.min ? std::abs(as_double(*attrs.min)) : 0;
      if (const double finite = std::max(finite_magnitude(x), std::isfinite(low) ? low : 0);
          -finite < static_cast<double>(*x.minus_infinity) * x.scale()) {
        const ScaledInteger visible = finite_part(x);
        x = with_lower_infinity(ctx.build, x, finite + hidden_below(finite));
        ctx.require_bits(0, visible, x.scale());
      }
    }
    x = in_unit_of_bounds(ctx.build, attrs, near_bounds(ctx, attrs, x));
    const double scale = x.scale();
    if (const double off = error_of_bounds(attrs, x, scale); off > 0) {
      const std::optional<analysis::RelevantNumbers> noticed = ctx.values.noticed(ctx.node.node());
      if (noticed && noticed->step < off)
        return Refusal{"its bounds are far below the unit of its operand, in which they would be rounded"};
    }
    double error = x.error;
    const auto bound = [&](const std::optional<Scalar>& limit, std::int64_t none) {
      if (!limit) return none;
      const double units = as_double(*limit) / scale;
      double nearest = std::clamp(std::nearbyint(units), -0x1p31, 0x1p31);
      // A positive bound does not round to 0: it may protect a divisor or a root.
      if (nearest == 0 && units > 0) nearest = 1;
      if (std::abs(nearest) <= static_cast<double>(x.magnitude()))
        error = std::max(error, std::abs(nearest - units) * scale);
      return static_cast<std::int64_t>(nearest);
    };
    to = {bound(attrs.min, x.range.low), bound(attrs.max, x.range.high)};
    x.error = error;
  } else {
    x = widened(ctx.build, x);
    to = {0, x.range.high};
  }
  to = {std::max(to.low, x.range.low), std::min(to.high, x.range.high)};
  if (to.low > to.high)
    to = to.low > x.range.high ? ValueRange{to.low, to.low} : ValueRange{to.high, to.high};
  x.id = ctx.build.bounded(x.id, x.range, to);
  x.range = to;
  x.minus_infinity.reset();
  return x;
}

}  // namespace

RuleResult integer_extremum(const RuleContext& ctx) {
  if (!has_integer_form(ctx.node.result_type().dtype) && ctx.node.result_qparams() == nullptr)
    return Refusal{"its result is no number"};
  const Op op = ctx.node.op();
  if (op == Op::kRelu || op == Op::kClamp) return clamped(ctx);
  std::vector<Term> terms{term_of(ctx, 0), term_of(ctx, 1)};
  for (const Term& term : terms) require_finite(term);
  const bool larger = op == Op::kMaximum;
  std::vector<Term> finite = terms;
  for (Term& term : finite)
    if (term.scaled) term.scaled = finite_part(*term.scaled);
  const std::optional<double> least = lower_infinity(ctx.build, terms);
  if (!least)
    bring_closer(ctx.build, terms, ctx.node.eventual_qparams(),
                 larger ? Between::kMaximum : Between::kMinimum);
  const double unit = common_unit(terms);
  require_bits(ctx, least ? finite : terms, unit);
  const Integers a = in_unit(ctx.build, terms[0], unit), b = in_unit(ctx.build, terms[1], unit);
  const auto pick = [&](std::int64_t x, std::int64_t y) { return larger ? std::max(x, y) : std::min(x, y); };
  const ValueRange range{pick(a.range.low, b.range.low), pick(a.range.high, b.range.high)};
  ScaledInteger out{
      ctx.build.binary(larger ? Op::kTosaMaximum : Op::kTosaMinimum, a.id, b.id), {unit}, 0, range};
  out.error = std::max(a.error, b.error);
  // The minimum is minus infinity where either operand is, the maximum where both are.
  if (least && (!larger || (terms[0].is_hiding() && terms[1].is_hiding())))
    out.minus_infinity = static_cast<std::int64_t>(-*least / unit);
  return out;
}

namespace {

// Replaces each infinity of a constant by a finite number that is beyond all numbers of the other operand, so
// that comparisons have the same result. `others` is the largest magnitude of the other operand's numbers.
void bring_near(Term& term, double others) {
  for (double& x : term.numbers)
    if (std::isinf(x)) x = std::copysign(2 * others + 1, x);
}

// `hiding` hides minus infinity (scaled_integer.h). All its integers that represent minus infinity become the
// largest of these integers. If `other` is a constant, its minus infinity becomes the same number, and its
// other elements become at least kBetween units more.
void bring_together(IntegerBuilder& build, Term& hiding, Term& other) {
  constexpr int kBetween = 16;  // units; finite numbers of `hiding` are further away from `least`
  ScaledInteger& x = *hiding.scaled;
  const std::int64_t least = *x.minus_infinity;
  if (other.is_hiding() && (other.scaled->scales != x.scales || other.scaled->zero_point != x.zero_point ||
                            *other.scaled->minus_infinity != least))
    throw NoIntegerForm("its operands have each a minus infinity of their own");
  x.id = build.bounded(widened(build, x).id, x.range, {least, x.range.high});
  x.range.low = std::max(x.range.low, least);
  const double number = static_cast<double>(least) * x.scale();
  for (double& y : other.numbers)
    y = is_minus_infinity(y) ? number : std::max(y, number + kBetween * x.scale());
}

// The result of x == y if x hides minus infinity and y is the constant minus infinity: true where the integer
// of x represents minus infinity. Returns nothing for other operands.
std::optional<ValueId> hidden(IntegerBuilder& build, const Term& x, const Term& y) {
  if (!x.is_hiding() || y.scaled || y.numbers.size() != 1 || !is_minus_infinity(y.numbers[0]) ||
      y.shape.size() > x.shape.size())
    return std::nullopt;
  const ValueId id = x.scaled->id;
  const ValueId least = build.number(*x.scaled->minus_infinity, build.type(id).rank(), build.type(id).dtype);
  return build.binary(Op::kTosaGreaterEqual, least, id);
}

}  // namespace

RuleResult integer_comparison(const RuleContext& ctx) {
  std::vector<Term> terms{term_of(ctx, 0), term_of(ctx, 1)};
  const Op op = ctx.node.op();
  if (op == Op::kEq || op == Op::kNe) {
    std::optional<ValueId> found = hidden(ctx.build, terms[0], terms[1]);
    if (!found) found = hidden(ctx.build, terms[1], terms[0]);
    if (found) return op == Op::kEq ? *found : ctx.build.emit(Op::kTosaLogicalNot, NoAttrs{}, {*found});
  }
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    if (terms[i].is_hiding()) bring_together(ctx.build, terms[i], terms[1 - i]);
  bring_near(terms[0], terms[1].scaled ? terms[1].magnitude() : 0);
  bring_near(terms[1], terms[0].scaled ? terms[0].magnitude() : 0);
  for (const Term& term : terms) require_finite(term);
  bring_closer(ctx.build, terms, std::nullopt, Between::kOrder);
  const double unit = common_unit(terms);
  require_bits(ctx, terms, unit);
  const Integers first = in_unit(ctx.build, terms[0], unit), second = in_unit(ctx.build, terms[1], unit);
  const ValueId a = first.id, b = second.id;
  // Numbers that differ by no more than their errors are equal: a clamped number still equals its bound,
  // although both were rounded.
  IntegerMath m(ctx.build);
  const auto near = static_cast<std::int64_t>(std::min((first.error + second.error) / unit, 0x1p28));
  const auto equal = [&] {
    if (near == 0) return ctx.build.binary(Op::kTosaEqual, a, b);
    const ValueId apart = ctx.build.emit(Op::kTosaAbs, NoAttrs{}, {m.sub(a, b)});
    return ctx.build.binary(Op::kTosaGreaterEqual, m.number(apart, near), apart);
  };
  if (op == Op::kEq) return equal();
  if (op == Op::kNe) return ctx.build.emit(Op::kTosaLogicalNot, NoAttrs{}, {equal()});
  const bool is_less = op == Op::kLt || op == Op::kLe;  // x < y is y > x
  const ValueId x = is_less ? b : a, y = is_less ? a : b;
  if (op == Op::kGt || op == Op::kLt) return ctx.build.binary(Op::kTosaGreater, x, m.add(y, near));
  return ctx.build.binary(Op::kTosaGreaterEqual, m.add(x, near), y);
}

}  // namespace tosaic::passes
