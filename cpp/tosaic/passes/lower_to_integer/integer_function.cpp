// integer_function: elementwise functions of one number of more than 16 bits. Such numbers are sums and
// products that an expansion does not round.
//
//   sqrt, rsqrt, reciprocal, log   by mantissa and exponent: small operands are normalized, lose no bits
//   exp                            errors are relative to the largest possible result
//   floor, ceil, trunc, round      exact, except that an operand counts as being at a step if f32, or its own
//                                  error, cannot separate it from the step; the same holds for quotients that
//                                  are rounded, and remainders, of a division by a constant
//   any other                      by samples of the float kernels: integer_samples.cpp
//
// Results have about 30 bits below their largest magnitude. The error of log is about 2^-22, absolute.

#include <algorithm>
#include <cmath>

#include "tosaic/passes/lower_to_integer/integer_math.h"

namespace tosaic::passes {
namespace {

// A number, at least one unit, as mantissa and shift; `most_shift` is the largest shift that can occur.
struct Positive {
  IntegerMath::Scaled scaled;
  int most_shift = 30;
};

Positive positive(IntegerLowering& l, const Real& x, bool even) {
  IntegerMath m(l);
  const std::int64_t least = std::max<std::int64_t>(x.range.low, 1);
  const ValueId v = x.range.low >= 1 ? x.id : m.maximum(x.id, 1);
  int most = 30;
  while (most > 0 && (least >> (31 - most)) != 0) --most;  // clz(least) - 1
  return {m.normalized(v, even), even ? most & ~1 : most};
}

// For a function f with a pole at zero, where an operand may be off by one unit. Throws NoIntegerForm for
// operands that may be below 8 units, unless f(8 units) saturates the qparams of the reader.
void require_distance(const IntegerLowering& l, const Real& x, const IntegerMath::Function& f) {
  constexpr int kFewUnits = 8;
  if (x.range.low >= kFewUnits) return;
  const std::optional<QParams> to = l.goal();
  if (!to || std::abs(f(kFewUnits * x.scale())) < largest_number(*to))
    throw NoIntegerForm("its operand may be closer to zero than its bits can tell");
}

// Masks that are true where a number in i32 is zero, or negative. Nothing if it never is.
std::optional<ValueId> at_zero(IntegerLowering& l, const Real& x) {
  if (x.range.low > 0 || x.range.high < 0) return std::nullopt;
  return l.binary(Op::kTosaEqual, x.id, IntegerMath(l).number(x.id, 0));
}
std::optional<ValueId> below_zero(IntegerLowering& l, const Real& x) {
  if (x.range.low >= 0) return std::nullopt;
  return l.binary(Op::kTosaGreater, IntegerMath(l).number(x.id, 0), x.id);
}

// 1 / sqrt(x), in a unit in which the largest possible result has 30 bits: the results for the integers v of
// x are 2^(44.5 - most_shift / 2) / sqrt(v).
Real rsqrt(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  require_distance(l, x, [](double v) { return 1 / std::sqrt(v); });
  const Positive v = positive(l, x, true);
  const ValueId root = m.of_mantissa(
      v.scaled.mantissa, [](double at) { return std::ldexp(std::sqrt(0x1p29 / at), 30); }, true);
  const ValueId made = m.right(root, m.right(m.sub(v.most_shift, v.scaled.shift), 1), true);
  const int half = v.most_shift / 2;
  const double scale = std::pow(2.0, half - 44.5) / std::sqrt(x.scale());
  Real out{made, {scale}, 0, {0, std::int64_t{1} << 30}};
  out.undefined = below_zero(l, x);
  return out;
}

Real sqrt(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  const Positive v = positive(l, x, true);
  const ValueId root = m.of_mantissa(
      v.scaled.mantissa, [](double at) { return std::ldexp(std::sqrt(at / 0x1p31), 30); }, true);
  ValueId made = m.right(root, m.right(v.scaled.shift, 1), true);
  if (x.range.low < 1) {
    const ValueId is_positive = l.binary(Op::kTosaGreater, x.id, m.number(x.id, 0));
    made = l.emit(Op::kTosaSelect, NoAttrs{}, {is_positive, made, m.number(made, 0)});
  }
  const double scale = std::pow(2.0, 15.5 - 30) * std::sqrt(x.scale());
  Real out{made, {scale}, 0, {0, std::int64_t{1} << 30}};
  const auto least = static_cast<double>(std::max<std::int64_t>(x.range.low, 0)) * x.scale();
  out.error = scale + (least == 0 ? std::sqrt(x.error) : x.error / (2 * std::sqrt(least)));
  out.undefined = below_zero(l, x);
  return out;
}

Real log(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  constexpr int kBits = 23;
  require_distance(l, x, [](double v) { return std::log(v); });
  const Positive v = positive(l, x, false);
  const double unit = std::ldexp(1.0, -kBits);
  const double base = std::log(x.scale()) + 30 * std::log(2.0);
  if (std::abs(base) > 100) throw NoIntegerForm("its operand has an extreme scale");
  const ValueId mantissa =
      m.of_mantissa(v.scaled.mantissa, [&](double at) { return (std::log(at / 0x1p30) + base) / unit; });
  const ValueId octaves =
      l.binary(Op::kTosaMul, v.scaled.shift, m.number(v.scaled.shift, std::llround(std::log(2.0) / unit)));
  const auto most = static_cast<std::int64_t>((std::abs(base) + 22) / unit);
  Real out{m.sub(mantissa, octaves), {unit}, 0, {-most, most}};
  out.error = 2 * unit + x.error / (static_cast<double>(std::max<std::int64_t>(x.range.low, 1)) * x.scale());
  out.undefined = below_zero(l, x);
  return out;
}

Real exp(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  std::int64_t top = x.range.high;
  if (const std::optional<QParams> to = l.goal()) {  // operands above `top` saturate
    const double enough = std::ceil(std::log(2 * largest_number(*to)) / x.scale());
    if (enough < static_cast<double>(top))
      top = std::max(x.range.low, static_cast<std::int64_t>(std::max(enough, -0x1p31)));
  }
  const double largest = std::exp(static_cast<double>(top) * x.scale());
  if (!std::isfinite(largest)) throw NoIntegerForm("it may be infinite");
  Real below = x;
  below.id = m.add(top < x.range.high ? m.minimum(x.id, top) : x.id, -top);
  below.range = {x.range.low - top, 0};
  Real out{m.exp30(below), {std::ldexp(largest, -IntegerMath::kExpBits)}, 0, {0, std::int64_t{1} << 30}};
  out.error = out.scale() + largest * std::min(x.error, 1.0);
  return out;
}

// ---- quotients ----

struct Magnitude {
  Real size;
  ValueId negative;  // mask of the negative numbers; invalid if there are none
};

Magnitude magnitude_of(IntegerLowering& l, const Real& x) {
  if (x.range.low >= 0) return {x, ValueId()};
  IntegerMath m(l);
  Magnitude out{x, l.binary(Op::kTosaGreater, m.number(x.id, 0), x.id)};
  out.size.id = l.emit(Op::kTosaAbs, NoAttrs{}, {x.id});
  out.size.range = {x.range.high < 0 ? -x.range.high : 0, x.magnitude()};
  return out;
}

// 2^60 / mantissa: a table, and one Newton step r * (2 - m * r).
ValueId inverse_of(IntegerLowering& l, ValueId mantissa) {
  IntegerMath m(l);
  const ValueId coarse = m.of_mantissa(mantissa, [](double at) { return 0x1p60 / at; });
  const ValueId one = m.mul(mantissa, coarse, 30);  // 2^30, nearly
  return m.mul(coarse, m.sub(m.number(one, 2147483647), one), 30);
}

ValueId with_sign(IntegerLowering& l, ValueId size, ValueId negative) {
  if (!negative.valid()) return size;
  IntegerMath m(l);
  return l.elementwise(Op::kTosaSelect, NoAttrs{}, {negative, m.sub(0, size), size});
}

}  // namespace

// All results share one unit: a result has one bit less for each power of two below the largest. Throws
// NoIntegerForm if fewer than 16 bits may remain.
Real reciprocal_of(IntegerLowering& l, const Real& x) {
  constexpr int kFewest = 16;
  IntegerMath m(l);
  const auto [size, negative] = magnitude_of(l, x);
  const Positive v = positive(l, size, false);
  if (30 - v.most_shift < kFewest) throw NoIntegerForm("its results span too many orders of magnitude");
  const ValueId made = m.right(inverse_of(l, v.scaled.mantissa), m.sub(v.most_shift, v.scaled.shift), true);
  const std::int64_t most = std::int64_t{1} << 30;
  return {with_sign(l, made, negative),
          {std::ldexp(1.0, v.most_shift - 60) / x.scale()},
          0,
          {negative.valid() ? -most : 0, most}};
}

// a / b, by mantissas and exponents, in a unit for the largest result: of the qparams of the reader (goal()),
// or the largest possible. x / 0 is infinite, a number that saturates; 0 / 0 is NaN.
Real quotient_of(IntegerLowering& l, const Real& a, const Real& b) {
  IntegerMath m(l);
  const auto [dividend, a_negative] = magnitude_of(l, a);
  const auto [divisor, b_negative] = magnitude_of(l, b);
  const Positive v = positive(l, divisor, false);
  const ValueId room = m.add(m.clz(m.maximum(dividend.id, 1)), -2);
  const ValueId filled = m.left(dividend.id, m.maximum(room, 0));  // 30 bits, or 31 if it has 31 already
  const ValueId product = m.mul(filled, inverse_of(l, v.scaled.mantissa), 31);
  const double ratio = a.scale() / b.scale();
  double top = static_cast<double>(a.magnitude()) * a.scale() /
               (static_cast<double>(std::max<std::int64_t>(divisor.range.low, 1)) * b.scale());
  if (const std::optional<QParams> to = l.goal()) {
    top = std::min(top, 2 * largest_number(*to));
  } else if (30 - v.most_shift < 16) {
    throw NoIntegerForm("its results span too many orders of magnitude");
  }
  if (top == 0) top = ratio;  // the dividend is always 0
  const std::optional<ValueId> by_zero = at_zero(l, divisor);
  if (const std::optional<QParams> to = l.goal(); by_zero && to)
    top = std::max(top, largest_number(*to) / 2);  // 2^30 units, the result of x / 0, are at least 8 * top
  // product = filled * 2^29 / mantissa, so the quotient is product * 2^(shift - room - 29)
  const int unit = static_cast<int>(std::ceil(std::log2(top / ratio))) - 27;
  const ValueId drop = m.sub(m.add(m.maximum(room, 0), 29 + unit), v.scaled.shift);
  ValueId made = m.right(product, m.minimum(m.maximum(drop, 0), 31), true);
  const std::int64_t most = std::int64_t{1} << 30;
  if (by_zero) made = l.elementwise(Op::kTosaSelect, NoAttrs{}, {*by_zero, m.number(made, most), made});
  made = with_sign(l, with_sign(l, made, a_negative), b_negative);
  Real out{made, {std::ldexp(ratio, unit)}, 0, {-most, most}};
  if (by_zero) out.undefined = l.both(by_zero, at_zero(l, dividend));
  return out;
}

namespace {

// A number in a unit of 2^-n, with n as large as 30 bits allow. For numbers below 1/8, n is above 31.
struct Binary {
  Real real;
  int bits;  // n, at most 31: a right shift by 31 leaves only the sign
  // How far, in units, the number may be from torch's f32. So close to a step it counts as at the step.
  std::int64_t near;
};

Binary in_binary(IntegerLowering& l, const Real& x) {
  const double size = static_cast<double>(x.magnitude()) * x.scale();
  if (size >= 0x1p30) throw NoIntegerForm("its operand has too many bits");
  const int bits = std::max(28 - (size == 0 ? 0 : std::ilogb(size)), 0);
  const double unit = std::ldexp(1.0, -bits);
  Real fine = l.rescaled(x, DType::kI32, unit);
  const double error = std::max(fine.error, std::ldexp(size, -25));
  const auto near = static_cast<std::int64_t>(std::min(error, 0.25) / unit);
  return {std::move(fine), std::min(bits, 31), near};
}

}  // namespace

Real in_whole_numbers(IntegerLowering& l, const Real& x, Op op) {
  IntegerMath m(l);
  const auto [fine, bits, near] = in_binary(l, x);
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
      const ValueId up = near == 0 ? odd : l.binary(Op::kTosaMul, odd, m.number(odd, 2 * near + 1));
      made = floor(m.add(m.add(made, (std::int64_t{1} << (bits - 1)) - 1 - near), up));
    }
  } else {
    const ValueId negative = l.binary(Op::kTosaGreater, m.number(fine.id, 0), fine.id);
    made = with_sign(l, floor(m.add(l.emit(Op::kTosaAbs, NoAttrs{}, {fine.id}), near)), negative);
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
std::optional<Real> remainder(IntegerLowering& l, const Real& x) {
  if (!l.is_constant(1)) return std::nullopt;
  const double divisor = l.numbers(1).front();
  const bool floors = l.node().op == Op::kRemainder;
  if (!std::isfinite(divisor) || divisor == 0 || (floors && divisor < 0)) return std::nullopt;
  Real quotient = x;
  quotient.scales = {x.scale() / std::abs(divisor)};
  Real whole = in_whole_numbers(l, quotient, floors ? Op::kFloor : Op::kTrunc);
  whole.scales = {std::abs(divisor)};
  return difference(l, x, whole);
}

}  // namespace

std::optional<Lowered> integer_function(IntegerLowering& l) {
  if (l.node().op == Op::kCast && l.is_real(0) &&
      (l.result_type().dtype == DType::kI32 || l.result_type().dtype == DType::kI64)) {
    const Real whole = in_whole_numbers(l, l.real_with_one_scale(0), Op::kTrunc);
    // The clamp changes no value. It shows the range to narrow_integers.cpp, which does not know it
    // otherwise. Indices are computed from i64, other integers from i32.
    const ClampAttrs within{Scalar(whole.range.low), Scalar(whole.range.high)};
    const ValueId bounded = l.emit(Op::kClamp, within, {whole.id});
    return l.result_type().dtype == DType::kI32 ? bounded : l.emit(Op::kCast, *l.node().attrs, {bounded});
  }
  if (l.node().op == Op::kCast && !is_float(l.operand_type(0).dtype) &&
      stands_for_number(l.result_type().dtype) && !l.is_real(0))
    return l.real(0);
  if (l.node().op == Op::kCast && l.is_real(0) && l.target() == nullptr &&
      stands_for_number(l.result_type().dtype))
    return l.real(0);
  const OpInfo& row = info(l.node().op);
  if (!row.has(kElementwise) || row.is_tosa || !stands_for_number(l.result_type().dtype)) return std::nullopt;
  if (l.target() == nullptr && !stands_for_number(l.operand_type(0).dtype)) return std::nullopt;
  std::optional<FunctionOperands> operands = function_operands(l);
  if (!operands || operands->variables.size() != 1) return std::nullopt;
  const std::size_t variable = operands->variables.front().front();
  const Real x = l.widened(l.real_with_one_scale(variable));
  if (is_steep_at_zero(l.node().op) && is_vague_near_zero(x))
    if (std::optional<Lowered> made = smooth_composition(l)) return made;
  switch (l.node().op) {  // NOLINT: the functions with a rule of their own
    case Op::kRsqrt:
      return rsqrt(l, x);
    case Op::kSqrt:
      return sqrt(l, x);
    case Op::kReciprocal:
      return reciprocal_of(l, x);
    case Op::kLog:
      return log(l, x);
    case Op::kExp:
      return exp(l, x);
    case Op::kFloor:
    case Op::kCeil:
    case Op::kTrunc:
    case Op::kRound:
      return in_whole_numbers(l, x, l.node().op);
    case Op::kRemainder:
    case Op::kFmod:
      if (const std::optional<Real> made = remainder(l, x)) return *made;
      return std::nullopt;
    case Op::kSign:
      return Real{l.bounded(x.id, x.range, {-1, 1}), {1.0}, 0, {-1, 1}};
    default:
      return by_samples(l, l.operand(variable), x);
  }
}

}  // namespace tosaic::passes
