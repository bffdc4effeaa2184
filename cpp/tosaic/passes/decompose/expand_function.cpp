// expand_function: expresses functions that TOSA lacks by exp, log, sin, cos, sqrt, reciprocal and
// arithmetic.
//
// Operands are f32, since narrower floats are widened before. Every formula holds over the whole range:
// cancellation is compensated, and a value that would overflow is scaled, or clamped in the branch that is
// not selected. With correctly rounded primitives, the error in ulp of f32 is below the bound that
// tests/test_function_accuracy.py lists next to the name of each function. In the table, a = |x|. If the
// function is odd, the result of a formula in a gets the sign of x at the end.
//
//   expm1   (u - 1) x / log(u), u = exp(x), for |x| <= 1: both factors see the same rounded u; else u - 1
//   log1p   log(u) + (x - (u - 1)) / u, u = 1 + x: the second term is what rounding u lost
//   cosh    h + 1 / (4h), h = exp(a / 2)^2 / 2
//   sinh    its series to x^11 for a <= 1; else h - 1 / (4h)
//   asinh   log1p(a + a^2 / (1 + sqrt(1 + a^2))); log(a) + ln 2 beyond 2^15
//   acosh   log1p(t + sqrt(t (t + 2))), t = x - 1; log(x) + ln 2 beyond 2^15
//   atanh   log1p(2a / (1 - a)) / 2
//   atan    A(x) = x + x^3 P(x^2) for a <= 1; else +-pi / 2 - A(1 / x)
//   asin    B(a) = a + a^3 Q(a^2) for a <= 1 / 2; else pi / 2 - 2 B(sqrt((1 - a) / 2))
//   erfc    1 - erf(x) for a < 15/32; else E(a) or 2 - E(a),
//           E(a) = exp(-a^2) T((a - 2.5) / (a + 2.5)) / (1 + 2a)
//   erfinv  x R(w - 2.5), w = -log(1 - x^2), for w < 5; else x S(sqrt(w) - 3)
//
// P, Q, R, S and T are minimax polynomials in relative error, found by Remez exchange with 40 digits. The
// comment at each of them states the relative error of the function with rounded coefficients.

#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "tosaic/passes/decompose/expansions.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kHalfPi = M_PI / 2.0;
constexpr double kFar = 32768.0;  // beyond it, asinh and acosh are log(2x) to the last bit

ValueId greater(Emitter& e, ValueId x, double y) {
  return e.binary(Op::kGt, x, e.number(y, e.type(x).dtype));
}
ValueId less(Emitter& e, ValueId x, double y) { return e.binary(Op::kLt, x, e.number(y, e.type(x).dtype)); }
ValueId equal(Emitter& e, ValueId x, double y) { return e.binary(Op::kEq, x, e.number(y, e.type(x).dtype)); }
ValueId number_like(Emitter& e, ValueId x, double y) { return e.number(y, e.type(x).dtype); }
ValueId subtract_from(Emitter& e, double y, ValueId x) { return e.sub(number_like(e, x, y), x); }
ValueId negate(Emitter& e, ValueId x) { return e.unary(Op::kNeg, x); }
ValueId reciprocal(Emitter& e, ValueId x) { return e.unary(Op::kReciprocal, x); }
ValueId exp(Emitter& e, ValueId x) { return e.unary(Op::kExp, x); }
ValueId log(Emitter& e, ValueId x) { return e.unary(Op::kLog, x); }
ValueId sqrt(Emitter& e, ValueId x) { return e.unary(Op::kSqrt, x); }
ValueId abs(Emitter& e, ValueId x) { return e.unary(Op::kAbs, x); }
ValueId minimum(Emitter& e, ValueId x, double y) { return e.binary(Op::kMinimum, x, number_like(e, x, y)); }
ValueId maximum(Emitter& e, ValueId x, double y) { return e.binary(Op::kMaximum, x, number_like(e, x, y)); }

// Operand 0 in the dtype of the result: integers become floats.
ValueId argument(Emitter& e) { return e.cast(e.operand(0), e.result_dtype()); }

// Horner's scheme. The coefficients begin with the constant term.
ValueId polynomial(Emitter& e, ValueId x, std::initializer_list<double> coefficients) {
  const double* c = coefficients.end() - 1;
  ValueId value = e.mul(x, *c--);
  for (; c != coefficients.begin(); --c) value = e.mul(e.add(value, *c), x);
  return e.add(value, *c);
}

// `magnitude` with the sign of x, where -0 counts as positive.
ValueId with_sign_of(Emitter& e, ValueId x, ValueId magnitude) {
  return e.where(less(e, x, 0.0), negate(e, magnitude), magnitude);
}

// expm1 by exp and log. A formula with tanh would have fewer operators, but TOSA bounds only the absolute
// error of tanh near zero, not the relative one.
ValueId expm1(Emitter& e, ValueId x) {
  const ValueId u = exp(e, x);
  const ValueId far = e.add(u, -1.0);
  const ValueId ratio = e.mul(far, reciprocal(e, log(e, u)));
  const ValueId near = e.where(equal(e, u, 1.0), x, e.mul(x, ratio));
  return e.where(greater(e, abs(e, x), 1.0), far, near);
}

// log1p(x) = log(u) + (x - (u - 1)) / u with u = 1 + x. The second term corrects the rounding of u. For
// x < 2^24, the difference u - 1 is exact; for larger x, the second term is negligible and replaced by 0. The
// divisor u has a lower bound because 0 * inf would be NaN for x = -1.
ValueId log1p(Emitter& e, ValueId x) {
  const ValueId u = e.add(x, 1.0);
  const ValueId lost = e.sub(x, e.add(u, -1.0));
  const ValueId rest = e.where(less(e, x, 0x1p24), lost, number_like(e, x, 0.0));
  return e.add(log(e, u), e.mul(rest, reciprocal(e, maximum(e, u, 0x1p-25))));
}

// log1p for 0 <= x <= 1, which needs no guards.
ValueId log1p_of_fraction(Emitter& e, ValueId x) {
  const ValueId u = e.add(x, 1.0);
  return e.add(log(e, u), e.mul(e.sub(x, e.add(u, -1.0)), reciprocal(e, u)));
}

// exp(size) / 2 for size = |x|, as a product of two factors: it is finite wherever sinh and cosh are.
ValueId half_exp(Emitter& e, ValueId size) {
  const ValueId root = exp(e, e.mul(size, 0.5));
  return e.mul(e.mul(root, 0.5), root);
}

// atan(z) for |z| <= 1. Relative error: 1.7e-8.
ValueId atan_near(Emitter& e, ValueId z) {
  const ValueId t = e.mul(z, z);
  const ValueId p = polynomial(e, t,
                               {-0x1.5554dcp-2, 0x1.9978f4p-3, -0x1.230adcp-3, 0x1.b4e124p-4, -0x1.3556a6p-4,
                                0x1.61fdb2p-5, -0x1.0c2be2p-6, 0x1.7ed1ccp-9});
  return e.add(z, e.mul(e.mul(z, t), p));
}

// asin(a) for a = |x|: the result is `angle` if a <= 1/2, and pi / 2 - 2 * angle if a > 1/2 (`far`).
struct ArcSine {
  ValueId far, angle;
};

// The ArcSine of a = `size`. The polynomial computes asin(z) for 0 <= z <= 1/2; its relative error is 4.9e-9.
ArcSine arc_sine(Emitter& e, ValueId size) {
  const ValueId far = greater(e, size, 0.5);
  const ValueId half = e.mul(subtract_from(e, 1.0, size), 0.5);
  const ValueId z = e.where(far, sqrt(e, half), size);
  const ValueId t = e.where(far, half, e.mul(size, size));
  const ValueId q =
      polynomial(e, t, {0x1.5555c8p-3, 0x1.3301e4p-4, 0x1.747e56p-5, 0x1.8c27d6p-6, 0x1.596d7ap-5});
  return {far, e.add(z, e.mul(e.mul(z, t), q))};
}

// Quotient and remainder of magnitudes: whole = floor(a / b), rest = a - whole * b. Both are exact up to
// whole = 2^kExactBits. Beyond that, `whole` may be wrong in its last bits, and `rest` may be 0. `rest` is
// NaN if b is 0 or a is infinite.
constexpr int kExactBits = 21;
struct Quotient {
  ValueId whole, rest;
};

// Splits x into high + low of 12 bits each (Veltkamp's split), so that products of halves are exact.
std::pair<ValueId, ValueId> halves(Emitter& e, ValueId x) {
  const ValueId scaled = e.mul(x, 4097.0);
  const ValueId high = e.sub(scaled, e.sub(scaled, x));
  return {high, e.sub(x, high)};
}

// The guess is never too small, because it is enlarged by more than its error, and it is too large by at most
// 1. guess * b is exactly product + error (Dekker's product), so the remainder a - guess * b is exact as
// well.
Quotient divide_exactly(Emitter& e, ValueId a, ValueId b) {
  const ValueId quotient = e.mul(a, reciprocal(e, b));
  const ValueId guess = minimum(e, e.unary(Op::kFloor, e.mul(quotient, 1.0 + 0x1p-22)), 0x1p64);
  const ValueId product = e.mul(guess, b);
  const auto [guess_high, guess_low] = halves(e, guess);
  const auto [b_high, b_low] = halves(e, b);
  ValueId error = e.sub(e.mul(guess_high, b_high), product);
  error = e.add(error, e.mul(guess_high, b_low));
  error = e.add(error, e.mul(guess_low, b_high));
  error = e.add(error, e.mul(guess_low, b_low));
  const ValueId rest = e.sub(e.sub(a, product), error);
  const ValueId too_large = less(e, rest, 0.0);
  const ValueId fitting = maximum(e, e.where(too_large, e.add(rest, b), rest), 0.0);
  const ValueId known = e.where(e.binary(Op::kLt, fitting, b), fitting, number_like(e, b, 0.0));
  return {e.where(too_large, e.add(guess, -1.0), guess), e.add(known, e.mul(quotient, 0.0))};
}

// The magnitude of a constant whose elements are all equal. Returns nothing for other values.
std::optional<double> known_magnitude(const Emitter& e, ValueId x) {
  const std::optional<double> value = splat_of(e.graph(), x);
  return value ? std::optional(std::fabs(*value)) : std::nullopt;
}

bool is_moderate(std::optional<double> size) { return size && *size >= 0x1p-60 && *size <= 0x1p60; }

bool is_power_of_two(std::optional<double> size) {
  int exponent = 0;
  return is_moderate(size) && std::frexp(*size, &exponent) == 0.5;
}

// divide_exactly for magnitudes whose products could leave the range of floats: both operands are scaled by a
// power of two, and the remainder is scaled back. The caller handles divisors greater than the dividend.
Quotient divide_scaled(Emitter& e, ValueId a, ValueId b) {
  const ValueId one = number_like(e, a, 1.0);
  const ValueId scale = e.where(greater(e, a, 0x1p100), number_like(e, a, 0x1p-32),
                                e.where(less(e, a, 0x1p-60), number_like(e, a, 0x1p64), one));
  const Quotient quotient = divide_exactly(e, e.mul(a, scale), e.mul(b, scale));
  return {quotient.whole, e.mul(quotient.rest, reciprocal(e, scale))};
}

Quotient divide_magnitudes(Emitter& e, ValueId a, ValueId b, std::optional<double> known_divisor) {
  const Quotient quotient = is_moderate(known_divisor) ? divide_exactly(e, a, b) : divide_scaled(e, a, b);
  const ValueId smaller = e.binary(Op::kLt, a, b);
  return {e.where(smaller, number_like(e, a, 0.0), quotient.whole), e.where(smaller, a, quotient.rest)};
}

ValueId differ_in_sign(Emitter& e, ValueId a, ValueId b) {
  return e.binary(Op::kLogicalXor, less(e, a, 0.0), less(e, b, 0.0));
}

// How many bits a quotient of magnitudes of these dtypes may have before its binary point.
int quotient_bits(DType dividend, DType divisor, std::optional<double> known_divisor) {
  const int top = !is_float(dividend) ? 63 : dividend == DType::kF16 ? 16 : 128;
  int bottom = !is_float(divisor) ? 0 : divisor == DType::kF16 ? -24 : -149;
  if (known_divisor && *known_divisor > 0.0) bottom = std::ilogb(*known_divisor);
  return std::max(0, top - bottom);
}

// The remainder of a / |b| by long division. Each digit has kExactBits - 1 bits, and the remainder of one
// digit is the dividend of the next one.
ValueId long_division_rest(Emitter& e, ValueId a, ValueId b) {
  constexpr int kDigit = kExactBits - 1;
  const std::optional<double> known = known_magnitude(e, b);
  const ValueId size = abs(e, b);
  const auto shifted = [&](int bits) {  // |b| * 2^bits, in several factors: 2^bits may overflow
    if (known) return number_like(e, b, std::ldexp(*known, bits));
    ValueId product = size;
    for (; bits > 100; bits -= 100) product = e.mul(product, 0x1p100);
    return e.mul(product, std::ldexp(1.0, bits));
  };
  const int bits = quotient_bits(e.source_type(0).dtype, e.source_type(1).dtype, known);
  ValueId rest = a;
  for (int digit = (bits - 1) / kDigit; digit > 0; --digit) {
    const int shift = digit * kDigit;
    const std::optional<double> step = known ? std::optional(std::ldexp(*known, shift)) : std::nullopt;
    if (step && *step > largest_finite(e.type(b).dtype)) continue;
    rest = divide_magnitudes(e, rest, shifted(shift), step).rest;
  }
  return divide_magnitudes(e, rest, size, known).rest;
}

ValueId fmod_of(Emitter& e, ValueId a, ValueId b) {
  const std::optional<double> known = known_magnitude(e, b);
  const ValueId size = abs(e, a);
  if (is_power_of_two(known)) {  // every step is exact; if |a| >= 2^24 * |b|, the remainder is 0
    const ValueId near = *known < 1.0 ? minimum(e, size, 0x1p24 * *known) : size;
    const ValueId whole = e.unary(Op::kFloor, e.mul(near, 1.0 / *known));
    const ValueId rest = e.sub(near, e.mul(whole, *known));
    return with_sign_of(e, a, *known < 1.0 ? e.add(rest, e.mul(size, 0.0)) : rest);
  }
  return with_sign_of(e, a, long_division_rest(e, size, b));
}

ValueId infinity_norm(Emitter& e, Op op, ValueId size, const VectorNormAttrs& attrs) {
  return e.reduce(op, size, attrs.axes, attrs.keepdim);
}

// The shape in which an axis with groups is two axes: the groups, and the positions of a group.
Shape with_axis_of_groups(const Shape& shape, const std::optional<Groups>& groups) {
  if (!groups) return shape;
  Shape out;
  for (std::size_t k = 0; k < shape.size(); ++k) {
    const bool has_groups = static_cast<std::int64_t>(k) == groups->axis;
    if (has_groups) out.push_back(shape[k] / groups->size);
    out.push_back(has_groups ? groups->size : shape[k]);
  }
  return out;
}

// Quantization parameters as a constant: one number, or a shape that broadcasts over a tensor of rank `rank`
// after with_axis_of_groups(): one number for each position of the axis and each group.
template <class A>
ValueId parameters(Emitter& e, const std::vector<double>& values, const A& attrs, std::size_t rank,
                   DType dtype) {
  if (!attrs.axis) return e.number(values.front(), dtype);
  auto axis = static_cast<std::size_t>(*attrs.axis);
  if (!attrs.groups) {
    Shape shape = Shape::filled(rank, 1);
    shape[axis] = static_cast<std::int64_t>(values.size());
    return e.constant(dtype, shape, values);
  }
  const auto along = static_cast<std::size_t>(attrs.groups->axis);
  const std::size_t channels = static_cast<std::size_t>(e.type(e.operand(0)).shape[axis]),
                    groups = values.size() / std::max<std::size_t>(channels, 1);
  if (axis > along) ++axis;
  Shape shape = Shape::filled(rank + 1, 1);
  shape[axis] = static_cast<std::int64_t>(channels);
  shape[along] = static_cast<std::int64_t>(groups);
  if (axis < along) return e.constant(dtype, shape, values);
  std::vector<double> by_group;
  for (std::size_t g = 0; g < groups; ++g)
    for (std::size_t c = 0; c < channels; ++c) by_group.push_back(values[c * groups + g]);
  return e.constant(dtype, shape, by_group);
}

bool all_zero(const std::vector<std::int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [](std::int64_t v) { return v == 0; });
}

std::vector<double> as_doubles(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

// ---- functions ----

ValueId expand_expm1(Emitter& e) { return expm1(e, argument(e)); }
ValueId expand_log1p(Emitter& e) { return log1p(e, argument(e)); }
ValueId expand_log2(Emitter& e) { return e.mul(log(e, argument(e)), M_LOG2E); }
ValueId expand_log10(Emitter& e) { return e.mul(log(e, argument(e)), M_LOG10E); }

ValueId expand_cosh(Emitter& e) {
  const ValueId half = half_exp(e, abs(e, argument(e)));
  return e.add(half, e.mul(reciprocal(e, half), 0.25));
}

ValueId expand_sinh(Emitter& e) {
  const ValueId x = argument(e);
  const ValueId size = abs(e, x);
  const ValueId inner = e.emit(Op::kClamp, ClampAttrs{-1.0, 1.0}, {x});
  const ValueId series =  // 1 + x^2 / 3! + x^4 / 5! + ...: the next term is below 2^-32
      polynomial(e, e.mul(inner, inner), {1.0, 1.0 / 6, 1.0 / 120, 1.0 / 5040, 1.0 / 362880, 1.0 / 39916800});
  const ValueId near = e.mul(inner, series);
  const ValueId half = half_exp(e, size);
  const ValueId far = with_sign_of(e, x, e.sub(half, e.mul(reciprocal(e, half), 0.25)));
  return e.where(greater(e, size, 1.0), far, near);
}

ValueId expand_tan(Emitter& e) {
  const ValueId x = argument(e);
  return e.mul(e.unary(Op::kSin, x), reciprocal(e, e.unary(Op::kCos, x)));
}

ValueId expand_asinh(Emitter& e) {
  const ValueId x = argument(e);
  const ValueId size = abs(e, x);
  const ValueId a = minimum(e, size, kFar);
  const ValueId square = e.mul(a, a);
  const ValueId root = sqrt(e, e.add(square, 1.0));
  const ValueId near = log1p(e, e.add(a, e.mul(square, reciprocal(e, e.add(root, 1.0)))));
  const ValueId far = e.add(log(e, size), M_LN2);
  return with_sign_of(e, x, e.where(greater(e, size, kFar), far, near));
}

// acosh has no number for x < 1: the square root has a negative operand then, so the result is NaN.
ValueId expand_acosh(Emitter& e) {
  const ValueId x = argument(e);
  const ValueId t = e.add(e.emit(Op::kClamp, ClampAttrs{Scalar(0.0), Scalar(kFar)}, {x}), -1.0);
  const ValueId near = log1p(e, e.add(t, sqrt(e, e.mul(t, e.add(t, 2.0)))));
  return e.where(greater(e, x, kFar), e.add(log(e, x), M_LN2), near);
}

ValueId expand_atanh(Emitter& e) {
  const ValueId x = argument(e);
  const ValueId size = abs(e, x);
  const ValueId ratio = e.mul(e.mul(size, 2.0), reciprocal(e, subtract_from(e, 1.0, size)));
  return with_sign_of(e, x, e.mul(log1p(e, ratio), 0.5));
}

ValueId expand_asin(Emitter& e) {
  const ValueId x = argument(e);
  const ArcSine arc = arc_sine(e, abs(e, x));
  const ValueId far = subtract_from(e, kHalfPi, e.mul(arc.angle, 2.0));
  return with_sign_of(e, x, e.where(arc.far, far, arc.angle));
}

ValueId expand_acos(Emitter& e) {
  const ValueId x = argument(e);
  const ArcSine arc = arc_sine(e, abs(e, x));
  const ValueId twice = e.mul(arc.angle, 2.0);
  const ValueId far = e.where(less(e, x, 0.0), subtract_from(e, M_PI, twice), twice);
  const ValueId near = subtract_from(e, kHalfPi, with_sign_of(e, x, arc.angle));
  return e.where(arc.far, far, near);
}

ValueId expand_atan(Emitter& e) {
  const ValueId x = argument(e);
  const ValueId far = greater(e, abs(e, x), 1.0);
  const ValueId angle = atan_near(e, e.where(far, reciprocal(e, x), x));
  const ValueId quarter = e.where(less(e, x, 0.0), number_like(e, x, -kHalfPi), number_like(e, x, kHalfPi));
  return e.where(far, e.sub(quarter, angle), angle);
}

// atan2 distinguishes -0 from 0, so the sign of a zero is found from its reciprocal.
ValueId expand_atan2(Emitter& e) {
  const DType dtype = e.result_dtype();
  const ValueId y = e.cast(e.operand(0), dtype), x = e.cast(e.operand(1), dtype);
  const auto negative = [&](ValueId v) {
    return e.binary(Op::kLogicalOr, less(e, v, 0.0), less(e, reciprocal(e, v), 0.0));
  };
  const ValueId height = abs(e, y), width = abs(e, x);
  const ValueId low = e.binary(Op::kMinimum, height, width), high = e.binary(Op::kMaximum, height, width);
  ValueId ratio = e.binary(Op::kDiv, low, high);
  ratio = e.where(e.binary(Op::kEq, low, high), number_like(e, x, 1.0), ratio);  // also for inf / inf
  ratio = e.where(equal(e, high, 0.0), number_like(e, x, 0.0), ratio);
  const ValueId acute = atan_near(e, ratio);
  const ValueId steep = e.binary(Op::kGt, height, width);
  const ValueId right = e.where(steep, subtract_from(e, kHalfPi, acute), acute);
  const ValueId angle = e.where(negative(x), subtract_from(e, M_PI, right), right);
  return e.where(negative(y), negate(e, angle), angle);
}

// sqrt(x^2 + y^2) = high * sqrt(1 + (low / high)^2), where low and high are the magnitudes in order: no
// square overflows. As in C, the result is infinite if an operand is, even if the other one is NaN.
ValueId expand_hypot(Emitter& e) {
  const DType dtype = e.result_dtype();
  const ValueId x = abs(e, e.cast(e.operand(0), dtype)), y = abs(e, e.cast(e.operand(1), dtype));
  const ValueId low = e.binary(Op::kMinimum, x, y), high = e.binary(Op::kMaximum, x, y);
  const ValueId ratio =
      e.where(equal(e, high, 0.0), number_like(e, high, 0.0), e.binary(Op::kDiv, low, high));
  const ValueId finite = e.mul(high, sqrt(e, e.add(e.mul(ratio, ratio), 1.0)));
  const double infinity = std::numeric_limits<double>::infinity();
  const ValueId is_infinite = e.binary(Op::kLogicalOr, equal(e, x, infinity), equal(e, y, infinity));
  return e.where(is_infinite, number_like(e, high, infinity), finite);
}

// E(x) for x >= 15/32 (see the table above). The square of the part of x with 7 fractional bits is exact, so
// the error of x^2 is not multiplied by x^2. The relative error of the polynomial is 3.2e-8. Beyond 10.2,
// erfc rounds to 0.
ValueId erfc_of_large(Emitter& e, ValueId x) {
  x = minimum(e, x, 10.25);
  const ValueId coarse = e.mul(e.unary(Op::kFloor, e.mul(x, 128.0)), 1.0 / 128.0);
  const ValueId rest = e.mul(e.sub(x, coarse), e.add(x, coarse));
  const ValueId power = e.mul(exp(e, negate(e, e.mul(coarse, coarse))), exp(e, negate(e, rest)));
  const ValueId t = e.mul(e.add(x, -2.5), reciprocal(e, e.add(x, 2.5)));
  const ValueId scaled =
      polynomial(e, t,
                 {0x1.43cc7p+0, -0x1.f52c5cp-4, -0x1.959a9ep-4, 0x1.42d366p-3, -0x1.a5c3e8p-4, 0x1.0c5f24p-5,
                  0x1.f4e7ep-11, -0x1.1e0062p-8, 0x1.b406cep-12, 0x1.215f76p-11});
  return e.mul(power, e.mul(scaled, reciprocal(e, e.add(e.mul(x, 2.0), 1.0))));
}

ValueId expand_erfc(Emitter& e) {
  const ValueId x = argument(e), size = abs(e, x);
  const ValueId near = subtract_from(e, 1.0, e.unary(Op::kErf, x));
  const ValueId tail = erfc_of_large(e, maximum(e, size, 15.0 / 32.0));
  const ValueId far = e.where(less(e, x, 0.0), subtract_from(e, 2.0, tail), tail);
  return e.where(less(e, size, 15.0 / 32.0), near, far);
}

// The relative error is 5.6e-9 for w < 5 and 9.8e-9 up to w = 16.7. The largest |x| below 1 is 1 - 2^-24,
// where w = 15.9.
ValueId expand_erfinv(Emitter& e) {
  const ValueId x = argument(e);
  const ValueId w = negate(e, log(e, e.mul(subtract_from(e, 1.0, x), e.add(x, 1.0))));
  const ValueId central =
      polynomial(e, e.add(w, -2.5),
                 {0x1.805c5ep+0, 0x1.f91e8ap-3, -0x1.11c4ecp-8, -0x1.486616p-10, 0x1.c9e6c8p-13,
                  -0x1.4d15bp-18, -0x1.d0c1a6p-19, 0x1.f48c06p-22, 0x1.8f227ep-26, -0x1.2e0eep-27});
  const ValueId tail =
      polynomial(e, e.add(sqrt(e, w), -3.0),
                 {0x1.6a9efcp+1, 0x1.006dc6p+0, 0x1.3580cep-7, -0x1.f48474p-8, 0x1.74b396p-8, -0x1.d784e2p-9,
                  0x1.854ed8p-10, -0x1.dc47a8p-15, -0x1.449c46p-12, 0x1.e54c2ap-14});
  const ValueId y = e.mul(x, e.where(less(e, w, 5.0), central, tail));
  return e.where(equal(e, abs(e, x), 1.0), e.mul(x, kInf), y);
}

// Every step is rounded to the dtype, even for f16 and bf16, as torch does for this function.
ValueId expand_logit(Emitter& e) {
  ValueId x = argument(e);
  const auto& eps = e.attrs<EpsAttrs>().eps;
  if (eps) {
    const ValueId low = number_like(e, x, *eps);
    x = e.binary(Op::kMinimum, e.binary(Op::kMaximum, x, low), subtract_from(e, 1.0, low));
  }
  return log(e, e.binary(Op::kDiv, x, subtract_from(e, 1.0, x)));
}

ValueId expand_isinf(Emitter& e) {
  const ValueId x = e.operand(0);
  if (!is_float(e.type(x).dtype)) return e.binary(Op::kNe, x, x);
  return equal(e, abs(e, x), kInf);
}

ValueId expand_nan_to_num(Emitter& e) {
  const ValueId x = e.operand(0);
  if (!is_float(e.type(x).dtype)) return e.emit(Op::kClone, CloneAttrs{}, {x});
  const auto& attrs = e.attrs<NanToNumAttrs>();
  const double limit = largest_finite(e.type(x).dtype);
  ValueId y = e.where(e.binary(Op::kNe, x, x), number_like(e, x, attrs.nan), x);
  if (!attrs.posinf && !attrs.neginf)
    return e.emit(Op::kClamp, ClampAttrs{Scalar(-limit), Scalar(limit)}, {y});
  y = e.where(equal(e, x, kInf), number_like(e, x, attrs.posinf.value_or(limit)), y);
  return e.where(equal(e, x, -kInf), number_like(e, x, attrs.neginf.value_or(-limit)), y);
}

// ---- activations ----

ValueId expand_elu(Emitter& e) {
  const ValueId x = e.operand(0);
  const auto& attrs = e.attrs<EluAttrs>();
  const auto scaled = [&](ValueId value, double factor) {
    return factor == 1.0 ? value : e.mul(value, factor);
  };
  const ValueId inner = scaled(x, attrs.input_scale);
  const ValueId tail = expm1(e, inner);
  return e.where(greater(e, x, 0.0), scaled(x, attrs.scale), scaled(tail, attrs.alpha * attrs.scale));
}

// mish(x) = x * tanh(log(1 + e^x)). With n = e^x, the tanh is n (n + 2) / (n (n + 2) + 2). This quotient is 1
// long before n overflows, so x is bounded by 20.
ValueId expand_mish(Emitter& e) {
  const ValueId x = e.operand(0);
  const ValueId n = exp(e, minimum(e, x, 20.0));
  const ValueId part = e.mul(n, e.add(n, 2.0));
  return e.mul(x, e.mul(part, reciprocal(e, e.add(part, 2.0))));
}

ValueId expand_log_sigmoid(Emitter& e) {
  const ValueId x = e.operand(0);
  return e.sub(minimum(e, x, 0.0), log1p_of_fraction(e, exp(e, negate(e, abs(e, x)))));
}

ValueId expand_softplus(Emitter& e) {
  const ValueId x = e.operand(0);
  const auto& attrs = e.attrs<SoftplusAttrs>();
  const ValueId scaled = attrs.beta == 1.0 ? x : e.mul(x, attrs.beta);
  const ValueId soft = log1p(e, exp(e, scaled));
  return e.where(greater(e, scaled, attrs.threshold), x,
                 attrs.beta == 1.0 ? soft : e.mul(soft, 1.0 / attrs.beta));
}

// Between the bounds the result is x * 0 rather than 0, which preserves NaN.
ValueId expand_softshrink(Emitter& e) {
  const ValueId x = e.operand(0);
  const double bound = e.attrs<SlopeAttrs>().alpha;
  const ValueId low = e.where(less(e, x, -bound), e.add(x, bound), e.mul(x, 0.0));
  return e.where(greater(e, x, bound), e.add(x, -bound), low);
}

ValueId expand_hardshrink(Emitter& e) {
  const ValueId x = e.operand(0);
  const ValueId within = e.binary(Op::kLe, abs(e, x), number_like(e, x, e.attrs<SlopeAttrs>().alpha));
  return e.where(within, number_like(e, x, 0.0), x);
}

ValueId expand_prelu(Emitter& e) {
  const ValueId x = e.operand(0);
  ValueId weight = e.operand(1);
  const std::int64_t count = num_elements(e.type(weight).shape);
  Shape shape = Shape::filled(e.type(x).rank(), 1);
  if (count != 1) shape[1] = count;
  weight = e.reshape(weight, shape);
  return e.where(greater(e, x, 0.0), x, e.mul(x, weight));
}

ValueId expand_glu(Emitter& e) {
  const ValueId x = e.operand(0);
  const auto axis = static_cast<std::size_t>(e.attrs<AxisAttrs>().axis);
  const std::int64_t extent = e.type(x).shape[axis];
  const ValueId gate = e.unary(Op::kSigmoid, e.slice(x, axis, extent / 2, extent));
  return e.mul(e.slice(x, axis, 0, extent / 2), gate);
}

// ---- several operands ----

ValueId expand_fmod(Emitter& e) {
  const DType dtype = e.result_dtype();
  return fmod_of(e, e.cast(e.operand(0), dtype), e.cast(e.operand(1), dtype));
}

ValueId expand_remainder(Emitter& e) {
  const DType dtype = e.result_dtype();
  const ValueId a = e.cast(e.operand(0), dtype), b = e.cast(e.operand(1), dtype);
  const ValueId rest = fmod_of(e, a, b);
  const ValueId other_side = e.binary(Op::kLogicalAnd, e.binary(Op::kNe, rest, number_like(e, rest, 0.0)),
                                      differ_in_sign(e, rest, b));
  return e.where(other_side, e.add(rest, b), rest);
}

// TOSA's POW has exponents of f32, so an f64 exponent is cast.
ValueId expand_wide_exponent(Emitter& e) {
  return e.binary(Op::kPow, e.operand(0), e.cast(e.operand(1), DType::kF32));
}

// As in torch, rounding "floor" rounds the exact quotient down, and "trunc" truncates the quotient after it
// is rounded to a float. Quotients of 2^21 and more are beyond the exact range: there the float quotient is
// rounded down or truncated, which may be off by one.
ValueId expand_rounded_division(Emitter& e) {
  const DType dtype = e.result_dtype();
  const ValueId a = e.cast(e.operand(0), dtype), b = e.cast(e.operand(1), dtype);
  const ValueId plain = e.binary(Op::kDiv, a, b);
  const ValueId size = abs(e, a), divisor = abs(e, b);
  const ValueId opposite = differ_in_sign(e, a, b);
  const Quotient quotient = divide_magnitudes(e, size, divisor, known_magnitude(e, b));
  const bool floor = e.attrs<DivAttrs>().rounding == DivRounding::kFloor;
  ValueId whole = quotient.whole;
  if (floor) {
    const ValueId beyond = e.binary(Op::kLogicalAnd, opposite, greater(e, quotient.rest, 0.0));
    whole = e.where(beyond, e.add(whole, 1.0), whole);
  } else {
    whole = e.unary(Op::kFloor, e.add(whole, e.binary(Op::kDiv, quotient.rest, divisor)));
  }
  const ValueId exact = e.where(opposite, negate(e, whole), whole);
  const ValueId in_range = less(e, abs(e, plain), 0x1p21);
  if (!floor) return e.where(in_range, exact, e.unary(Op::kTrunc, plain));
  // torch divides a - fmod(a, b) by b. If a is infinite and b is not 0, that is NaN. So a * 0, which is NaN
  // for infinite a, is added.
  const ValueId large = e.add(e.unary(Op::kFloor, plain), e.mul(a, 0.0));
  return e.where(in_range, exact, e.where(equal(e, b, 0.0), plain, large));
}

// Let difference = end - start. The result is start + weight * difference if start is nearer, or end +
// (weight - 1) * difference if end is nearer. Torch fuses the product and the sum. If the weight may be so
// large that the product overflows although the sum does not, both are computed at half their size.
ValueId expand_lerp(Emitter& e) {
  const ValueId start = e.operand(0), end = e.operand(1), weight = e.operand(2);
  const ValueId difference = e.sub(end, start);
  const std::optional<double> known = splat_of(e.graph(), weight);
  if (known && std::fabs(*known) < 0.5) return e.add(start, e.mul(weight, difference));
  if (known && std::fabs(*known - 1.0) <= 1.0) return e.add(end, e.mul(e.add(weight, -1.0), difference));
  const ValueId near = less(e, abs(e, weight), 0.5);
  const ValueId factor = e.where(near, weight, e.add(weight, -1.0));
  const ValueId from = e.where(near, start, end);
  return e.mul(e.add(e.mul(from, 0.5), e.mul(factor, e.mul(difference, 0.5))), 2.0);
}

ValueId expand_addc(Emitter& e) {
  const DType dtype = e.result_dtype();
  const ValueId x = e.cast(e.operand(0), dtype), a = e.cast(e.operand(1), dtype),
                b = e.cast(e.operand(2), dtype);
  const double value = as_double(e.attrs<ValueAttrs>().value);
  const ValueId scaled = value == 1.0 ? a : e.mul(a, value);
  return e.add(x, e.binary(e.node().op == Op::kAddcmul ? Op::kMul : Op::kDiv, scaled, b));
}

// ---- reductions ----

// logsumexp. If the maximum is finite, it is subtracted from the exponents.
ValueId expand_logsumexp(Emitter& e) {
  const auto& attrs = e.attrs<ReduceAttrs>();
  const ValueId x = argument(e);
  const Shape shape = e.result_type().shape;
  const bool empty = num_elements(e.type(x).shape) == 0;
  if (empty) return log(e, e.reduce(Op::kSum, exp(e, x), attrs.axes, attrs.keepdim));
  ValueId top = e.reduce(Op::kAmax, x, attrs.axes, true);
  top = e.where(equal(e, abs(e, top), kInf), number_like(e, x, 0.0), top);
  const ValueId total = e.reduce(Op::kSum, exp(e, e.sub(x, top)), attrs.axes, true);
  return e.reshape(e.add(log(e, total), top), shape);
}

// A vector norm. Its squares and powers overflow for the same operands as in torch.
ValueId expand_vector_norm(Emitter& e) {
  const auto& attrs = e.attrs<VectorNormAttrs>();
  const ValueId x = argument(e);
  const auto total = [&](ValueId terms) { return e.reduce(Op::kSum, terms, attrs.axes, attrs.keepdim); };
  if (attrs.ord == 0.0) return total(e.cast(e.binary(Op::kNe, x, number_like(e, x, 0.0)), e.type(x).dtype));
  if (attrs.ord == 2.0) return sqrt(e, total(e.mul(x, x)));
  const ValueId size = abs(e, x);
  if (attrs.ord == kInf) return infinity_norm(e, Op::kAmax, size, attrs);
  if (attrs.ord == -kInf) return infinity_norm(e, Op::kAmin, size, attrs);
  if (attrs.ord == 1.0) return total(size);
  const ValueId powers = total(e.binary(Op::kPow, size, number_like(e, size, attrs.ord)));
  return e.binary(Op::kPow, powers, number_like(e, size, 1.0 / attrs.ord));
}

// TOSA cannot reduce integers to their product, so the two halves of an axis are multiplied until one element
// is left.
ValueId expand_integer_product(Emitter& e) {
  const auto& attrs = e.attrs<ReduceAttrs>();
  ValueId x = e.cast(e.operand(0), e.result_type().dtype);
  if (num_elements(e.type(x).shape) == 0) return e.expand(number_like(e, x, 1.0), e.result_type().shape);
  for (const std::int64_t along : attrs.axes) {
    const auto axis = static_cast<std::size_t>(along);
    while (e.type(x).shape[axis] > 1) {
      const std::int64_t extent = e.type(x).shape[axis], half = extent / 2;
      const ValueId product = e.mul(e.slice(x, axis, 0, half), e.slice(x, axis, half, 2 * half));
      x = extent % 2 == 0 ? product
                          : e.emit(Op::kCat, AxisAttrs{along}, {product, e.slice(x, axis, 2 * half, extent)});
    }
  }
  return e.reshape(x, e.result_type().shape);
}

// Euclid's algorithm. Numbers below 2^bits need at most as many steps as there are Fibonacci numbers below
// 2^bits. Where the divisor has become 0, a step changes nothing.
ValueId expand_gcd(Emitter& e) {
  const DType dtype = e.result_type().dtype;
  const ValueId zero = e.number(0.0, dtype), one = e.number(1.0, dtype);
  ValueId a = abs(e, e.cast(e.operand(0), dtype)), b = abs(e, e.cast(e.operand(1), dtype));
  const std::size_t bits = std::min<std::size_t>(8 * byte_size(dtype), 32);
  std::int64_t low = 1, high = 1;
  for (; high < std::int64_t{1} << bits; low = std::exchange(high, low + high)) {
    const ValueId rest = e.binary(Op::kFmod, a, e.binary(Op::kMaximum, b, one));
    a = e.where(e.binary(Op::kEq, b, zero), a, b);
    b = rest;
  }
  return a;
}

// ---- quantizers ----

// Computes clamp(round(x * float32(1 / scale)) + zero_point, qmin, qmax) in f32, as torch does. A NaN becomes
// 0. If 0 is outside of the range, the integers are clamped again: operators after it may rely on the range.
ValueId expand_quantize(Emitter& e) {
  const auto& attrs = e.attrs<QuantizeAttrs>();
  const Shape shape = e.type(e.operand(0)).shape;
  const ValueId x = e.reshape(e.cast(e.operand(0), DType::kF32), with_axis_of_groups(shape, attrs.groups));
  const std::size_t rank = shape.size();
  std::vector<double> inverses;
  for (const double scale : attrs.scales) inverses.push_back(1.0 / scale);
  ValueId y = e.unary(Op::kRound, e.mul(x, parameters(e, inverses, attrs, rank, DType::kF32)));
  if (!all_zero(attrs.zero_points))
    y = e.add(y, parameters(e, as_doubles(attrs.zero_points), attrs, rank, DType::kF32));
  const Scalar low(static_cast<double>(attrs.qmin)), high(static_cast<double>(attrs.qmax));
  ValueId q = e.cast(e.emit(Op::kClamp, ClampAttrs{low, high}, {y}), attrs.dtype);
  if (attrs.qmin > 0 || attrs.qmax < 0)
    q = e.emit(Op::kClamp, ClampAttrs{Scalar(attrs.qmin), Scalar(attrs.qmax)}, {q});
  return e.reshape(q, shape);
}

// q - zero_point is computed as in torch: in the result's dtype if there is one scale, and in f32 if there is
// one for each position of an axis.
ValueId expand_dequantize(Emitter& e) {
  const auto& attrs = e.attrs<DequantizeAttrs>();
  const DType difference = attrs.axis ? DType::kF32 : attrs.dtype;
  const Shape shape = e.type(e.operand(0)).shape;
  const std::size_t rank = shape.size();
  ValueId y = e.reshape(e.cast(e.operand(0), difference), with_axis_of_groups(shape, attrs.groups));
  if (!all_zero(attrs.zero_points))
    y = e.sub(y, parameters(e, as_doubles(attrs.zero_points), attrs, rank, difference));
  y = e.cast(y, Emitter::widened(difference));
  y = e.mul(y, parameters(e, attrs.scales, attrs, rank, e.type(y).dtype));
  return e.reshape(e.cast(y, attrs.dtype), shape);
}

}  // namespace tosaic::passes
