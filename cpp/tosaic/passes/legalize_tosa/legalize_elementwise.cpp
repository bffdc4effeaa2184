// Legalizes elementwise operators. Operands are promoted, aligned to the rank and order of the result, then
// combined.
//
// Arithmetic on i8 and i16 is computed in i32 and cast back, which wraps as in torch. Operators that TOSA
// lacks are composed:
//
//   sqrt = reciprocal(rsqrt)                div = a * reciprocal(b)      trunc, sign = selects
//   round = floor, plus 1 by the tie rule   pow with a small integer exponent = a chain of products
//
// If a divisor may be denormal, or so large that its reciprocal may be denormal, dividend and divisor are
// scaled first. A cast from float to integer truncates first, since TOSA's CAST rounds.

#include <cmath>
#include <limits>

#include "tosaic/ir/infer.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/unsigned_bits.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// The dtype in which TOSA can do arithmetic for a torch dtype.
DType arithmetic_dtype(const Legalizer& l, DType dtype) {
  const DType physical = l.physical_dtype(dtype);
  return physical == DType::kI8 || physical == DType::kI16 || physical == DType::kI4 ? DType::kI32 : physical;
}

// f32 for narrower floats. A result that is composed of several operators is rounded to the narrow dtype only
// once, at the end.
DType wide_dtype(DType dtype) { return is_float(dtype) ? DType::kF32 : dtype; }

DType promoted(Legalizer& l) {
  std::vector<const TensorType*> types;
  for (std::size_t i = 0; i < l.operand_count(); ++i) types.push_back(&l.logical_type(i));
  return promoted_dtype(types);
}

ValueId floor_or_ceil_toward_zero(Legalizer& l, ValueId x) {
  const ValueId negative = l.binary(Op::kTosaGreater, l.number_like(x, 0.0), x);
  return l.select(negative, l.unary(Op::kTosaCeil, x), l.unary(Op::kTosaFloor, x));
}

ValueId clamp_floats(Legalizer& l, ValueId x, double min, double max) {
  return l.emit(Op::kTosaClamp, TosaClampAttrs{min, max, NanMode::kPropagate}, {x});
}

// min(max(x, min), max): torch returns max where min > max.
ValueId bounded(Legalizer& l, ValueId x, std::optional<double> min, std::optional<double> max) {
  if (is_float(l.type(x).dtype)) {
    const double high = max.value_or(kInf);
    if (std::isnan(min.value_or(0.0)) || std::isnan(high))
      l.refuse("clamp bounds are NaN, which TOSA gives no meaning");
    return clamp_floats(l, x, std::min(min.value_or(-kInf), high), high);
  }
  if (min) x = l.binary(Op::kTosaMaximum, x, l.number_like(x, *min));
  if (max) x = l.binary(Op::kTosaMinimum, x, l.number_like(x, *max));
  return x;
}

ValueId reciprocal(Legalizer& l, ValueId x) { return l.unary(Op::kTosaReciprocal, x); }

// The reciprocal of a divisor is a normal number if the divisor's magnitude is within these bounds.
constexpr double kLeastDivisor = 0x1p-126, kLargestDivisor = 0x1p126;

// a / b in floats as a * reciprocal(b), within 2 ulp. Constant folding evaluates the reciprocal of a constant
// b. If b may exceed the bounds above (`divisor` is its range), a and b are first multiplied by 2^64 where b
// is below 2^-64 in magnitude, and by 2^-64 where b is above 2^64. The scaled quotient overflows or
// underflows only if a / b does.
ValueId divide(Legalizer& l, ValueId a, ValueId b, const analysis::FloatRange& divisor) {
  const bool may_be_large = magnitude(divisor.bounds).high > kLargestDivisor;
  const bool may_be_small = divisor.least < kLeastDivisor;
  if (!may_be_large && !may_be_small) return l.mul(a, reciprocal(l, b));
  const ValueId size = l.unary(Op::kTosaAbs, b);
  ValueId scale = l.number_like(b, 1.0);
  if (may_be_small)
    scale = l.select(l.binary(Op::kTosaGreater, l.number_like(b, 0x1p-64), size), l.number_like(b, 0x1p64),
                     scale);
  if (may_be_large)
    scale = l.select(l.binary(Op::kTosaGreater, size, l.number_like(b, 0x1p64)), l.number_like(b, 0x1p-64),
                     scale);
  return l.mul(l.mul(a, scale), reciprocal(l, l.mul(b, scale)));
}

// Rounds half to even: floor(x), plus one where the fraction is above a half, or is a half and floor(x) is
// odd.
ValueId round_half_even(Legalizer& l, ValueId x) {
  const ValueId low = l.unary(Op::kTosaFloor, x);
  const ValueId fraction = l.binary(Op::kTosaSub, x, low);
  const ValueId half = l.number_like(x, 0.5);
  const ValueId half_low = l.mul(low, half);
  const ValueId odd = l.binary(Op::kTosaGreater, half_low, l.unary(Op::kTosaFloor, half_low));
  const ValueId tie_up = l.binary(Op::kTosaLogicalAnd, l.binary(Op::kTosaEqual, fraction, half), odd);
  const ValueId up = l.binary(Op::kTosaLogicalOr, l.binary(Op::kTosaGreater, fraction, half), tie_up);
  return l.select(up, l.binary(Op::kTosaAdd, low, l.number_like(x, 1.0)), low);
}

ValueId sign_of_number(Legalizer& l, ValueId x) {
  const ValueId zero = l.number_like(x, 0.0);
  const ValueId negative = l.select(l.binary(Op::kTosaGreater, zero, x), l.number_like(x, -1.0), zero);
  return l.select(l.binary(Op::kTosaGreater, x, zero), l.number_like(x, 1.0), negative);
}

ValueId integer_power(Legalizer& l, ValueId x, std::int64_t exponent) {
  std::optional<ValueId> product;
  for (ValueId square = x; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) product = product ? l.mul(*product, square) : square;
    if (exponent > 1) square = l.mul(square, square);
  }
  return *product;
}

ValueId negated_where(Legalizer& l, ValueId condition, ValueId x) {
  return l.select(condition, l.unary(Op::kTosaNegate, x), x);
}

bool is_whole(double value) { return value == std::floor(value); }

// a^b for all floats. TOSA defines POW only for finite a > 0 and finite b, so the magnitude is
//   POW(|a|, b)          where |a| is finite and not 0, and b is finite
//   1                    elsewhere, where |a| = 1 or b = 0
//   exp(b * log |a|)     in all other cases; it has the 0, inf and NaN of a^b
// For a < 0 the result is negated where b is an odd integer, and is NaN (the log of a) where b is not an
// integer and a is finite. `base` and `exponent` are the values of the operands, if these are constants.
ValueId power_of_floats(Legalizer& l, ValueId a, ValueId b, std::optional<double> base,
                        std::optional<double> exponent) {
  const auto both = [&](ValueId x, ValueId y) { return l.binary(Op::kTosaLogicalAnd, x, y); };
  const auto equal = [&](ValueId x, double y) { return l.binary(Op::kTosaEqual, x, l.number_like(x, y)); };
  const auto below = [&](ValueId x, double y) { return l.binary(Op::kTosaGreater, l.number_like(x, y), x); };
  const ValueId size = l.unary(Op::kTosaAbs, a);
  const ValueId one = l.number_like(a, 1.0);
  const ValueId positive = l.binary(Op::kTosaGreater, size, l.number_like(a, 0.0));
  const ValueId finite = both(below(size, kInf), below(l.unary(Op::kTosaAbs, b), kInf));
  const ValueId regular = both(positive, finite);
  const ValueId plain =
      l.binary(Op::kTosaPow, l.select(regular, size, one), l.select(regular, b, l.number_like(b, 1.0)));
  const ValueId limit = l.unary(Op::kTosaExp, l.mul(b, l.unary(Op::kTosaLog, size)));
  const ValueId is_one = l.binary(Op::kTosaLogicalOr, equal(size, 1.0), equal(b, 0.0));
  const ValueId magnitude = l.select(regular, plain, l.select(is_one, one, limit));
  if (base && *base > 0.0) return magnitude;
  const ValueId negative = below(a, 0.0);
  if (exponent && is_whole(*exponent))
    return std::fmod(*exponent, 2.0) == 0.0 ? magnitude : negated_where(l, negative, magnitude);
  const ValueId nothing = l.unary(Op::kTosaLog, a);
  const ValueId no_root = both(negative, l.binary(Op::kTosaGreater, a, l.number_like(a, -kInf)));
  if (exponent) return l.select(no_root, nothing, magnitude);
  const ValueId half = l.mul(b, l.number_like(b, 0.5));
  const ValueId whole = l.binary(Op::kTosaEqual, l.unary(Op::kTosaFloor, b), b);
  const ValueId even = l.binary(Op::kTosaEqual, l.unary(Op::kTosaFloor, half), half);
  const ValueId odd = both(both(negative, whole), l.logical_not(even));
  return l.select(both(no_root, l.logical_not(whole)), nothing, negated_where(l, odd, magnitude));
}

// Each squaring doubles the error of a chain of products: 1.5 ulp for the fourth power, the longest chain.
constexpr double kLongestChain = 4.0;

ValueId power(Legalizer& l, ValueId base, ValueId exponent) {
  const std::optional<double> known = splat_of(l.source(), l.logical(1));
  const bool floats = is_float(l.result_type().dtype);  // `base` may be f32 for integers, too
  if (known && l.type(base).shape == physical_dims(l.result_type().shape, l.planned_order())) {
    if (*known == 0.0) return l.tile(l.number_like(base, 1.0), l.type(base).shape);
    if (is_whole(*known) && *known >= 1.0 && *known <= (floats ? kLongestChain : 64.0))
      return integer_power(l, base, static_cast<std::int64_t>(*known));
    if (floats && is_whole(*known) && *known >= -kLongestChain && *known <= -1.0)
      return reciprocal(l, integer_power(l, base, static_cast<std::int64_t>(-*known)));
  }
  if (!floats) l.refuse("integer pow needs a constant exponent from 0 to 64");
  return power_of_floats(l, base, exponent, splat_of(l.source(), l.logical(0)), known);
}

// Division by INTDIV, which truncates.
//   rest   a - quotient * b
//   below  true where rest is not 0 and differs from b in sign: there the floored quotient is quotient - 1,
//          and its remainder is rest + b
// No intermediate value overflows i32 unless the result does.
struct Division {
  ValueId quotient, rest, below;
};
Division truncated_division(Legalizer& l, ValueId a, ValueId b) {
  const ValueId quotient = l.binary(Op::kTosaIntdiv, a, b);
  const ValueId rest = l.binary(Op::kTosaSub, a, l.mul(quotient, b));
  const ValueId zero = l.number_like(rest, 0.0);
  const ValueId inexact = l.logical_not(l.binary(Op::kTosaEqual, rest, zero));
  const ValueId signs = l.binary(Op::kTosaLogicalXor, l.binary(Op::kTosaGreater, zero, rest),
                                 l.binary(Op::kTosaGreater, l.number_like(b, 0.0), b));
  return {quotient, rest, l.binary(Op::kTosaLogicalAnd, inexact, signs)};
}

ValueId floor_divide_integers(Legalizer& l, ValueId a, ValueId b) {
  const Division found = truncated_division(l, a, b);
  const ValueId one = l.number_like(found.rest, 1.0), zero = l.number_like(found.rest, 0.0);
  return l.binary(Op::kTosaSub, found.quotient, l.select(found.below, one, zero));
}

ValueId remainder_of_integers(Legalizer& l, ValueId a, ValueId b) {
  const Division found = truncated_division(l, a, b);
  return l.binary(Op::kTosaAdd, found.rest, l.select(found.below, b, l.number_like(b, 0.0)));
}

// Floored division of integers that are represented in f32. The quotient by a rounded reciprocal may be off
// by one; a test of the remainder, which is exact, corrects it.
ValueId floor_divide_counted(Legalizer& l, ValueId a, ValueId b) {
  const ValueId guess = l.unary(Op::kTosaFloor, l.mul(a, reciprocal(l, b)));
  const ValueId rest = l.binary(Op::kTosaSub, a, l.mul(guess, b));
  const ValueId zero = l.number_like(rest, 0.0), one = l.number_like(rest, 1.0);
  const ValueId positive = l.binary(Op::kTosaGreater, b, l.number_like(b, 0.0));
  const ValueId too_high =
      l.select(positive, l.binary(Op::kTosaGreater, zero, rest), l.binary(Op::kTosaGreater, rest, zero));
  const ValueId too_low =
      l.select(positive, l.binary(Op::kTosaGreaterEqual, rest, b), l.binary(Op::kTosaGreaterEqual, b, rest));
  const ValueId lowered = l.select(too_high, l.binary(Op::kTosaSub, guess, one), guess);
  return l.select(too_low, l.binary(Op::kTosaAdd, guess, one), lowered);
}

ValueId is_negative(Legalizer& l, ValueId x) { return l.binary(Op::kTosaGreater, l.number_like(x, 0.0), x); }

// The quotient of integers, represented in f32 or i32, rounded toward zero or down.
ValueId divide_integers(Legalizer& l, ValueId a, ValueId b, DivRounding rounding) {
  const bool counted = is_float(l.type(a).dtype);
  if (rounding == DivRounding::kFloor)
    return counted ? floor_divide_counted(l, a, b) : floor_divide_integers(l, a, b);
  if (!counted) return l.binary(Op::kTosaIntdiv, a, b);
  const ValueId magnitude = floor_divide_counted(l, l.unary(Op::kTosaAbs, a), l.unary(Op::kTosaAbs, b));
  const ValueId opposite = l.binary(Op::kTosaLogicalXor, is_negative(l, a), is_negative(l, b));
  return negated_where(l, opposite, magnitude);
}

// True if operands 0 and 1 are integers, and the quotient is proven to be 0 whether it is rounded toward zero
// or down, as in argmax(x, 0) % x.shape[0].
bool is_own_rest(Legalizer& l) {
  if (!is_integer(l.result_type().dtype)) return false;
  const ValueRange &a = l.integer_range_of(0), &b = l.integer_range_of(1);
  return (a.low >= 0 && a.high < b.low) || (a.high <= 0 && a.low > b.high);
}

// The remainder a - quotient * b, for a quotient that is rounded by `rounding`.
ValueId rest_of_division(Legalizer& l, ValueId a, ValueId b, DivRounding rounding) {
  if (rounding == DivRounding::kFloor && is_integer(l.type(a).dtype)) return remainder_of_integers(l, a, b);
  return l.binary(Op::kTosaSub, a, l.mul(divide_integers(l, a, b, rounding), b));
}

std::int64_t bits_of(DType dtype) { return static_cast<std::int64_t>(8 * byte_size(dtype)); }

// As in torch, a shift count outside [0, bits) shifts every bit out: the result is 0, or for a right shift
// the sign (0 or -1). An i64 value is represented in i32; narrow_integers accepts only shifts whose result
// fits.
ValueId shift_left(Legalizer& l, ValueId a, ValueId b) {
  const std::int64_t bits = bits_of(l.result_type().dtype);
  const std::optional<double> known = splat_of(l.source(), l.logical(1));
  if (known) {
    const bool out = *known < 0 || *known >= static_cast<double>(bits);
    const double factor = out || *known > 31 ? 0.0 : std::ldexp(1.0, static_cast<int>(*known));
    if (!l.has_integers() || out || *known > 31) return l.mul(a, l.number_like(a, factor));
    return l.binary(Op::kTosaLogicalLeftShift, a, b);
  }
  const ValueId low = l.binary(Op::kTosaMaximum, b, l.number_like(b, 0.0));
  const ValueId count = l.binary(Op::kTosaMinimum, low, l.number_like(b, 31.0));
  const ValueId valid = l.binary(
      Op::kTosaLogicalAnd, l.binary(Op::kTosaGreaterEqual, b, l.number_like(b, 0.0)),
      l.binary(Op::kTosaGreater, l.number_like(b, static_cast<double>(std::min<std::int64_t>(bits, 32))), b));
  return l.select(valid, l.binary(Op::kTosaLogicalLeftShift, a, count), l.number_like(a, 0.0));
}

ValueId shift_right(Legalizer& l, ValueId a, ValueId b) {
  if (!l.has_integers()) {  // the count is constant: other shifts compute in i32 (legalize_wide_integers)
    const double known = splat_of(l.source(), l.logical(1)).value();
    const double count = known < 0 ? 63.0 : std::min(known, 63.0);
    return l.unary(Op::kTosaFloor, l.mul(a, l.number_like(a, std::exp2(-count))));
  }
  const ValueId most = l.number_like(b, 31.0);
  const ValueId count = l.select(is_negative(l, b), most, l.binary(Op::kTosaMinimum, b, most));
  return l.emit(Op::kTosaArithmeticRightShift, TosaShiftAttrs{false}, {a, count});
}

ValueId rescale(Legalizer& l, ValueId x, quant::RescaleSide from, quant::RescaleSide to) {
  const double one[] = {1.0};
  return l.emit(Op::kTosaRescale, quant::plan_rescale(from, to, one), {x});
}

// u8 becomes i16, u16 becomes i32. RESCALE is the only operator that reads and writes unsigned integers; it
// converts them from and to signed integers of at most 16 bits.
ValueId to_signed(Legalizer& l, ValueId x, DType from) {
  if (from == DType::kU8) return rescale(l, x, {from, 0}, {DType::kI16, 0});
  const ValueId low = l.cast(rescale(l, x, {from, 32768}, {DType::kI16, 0}), DType::kI32);
  return l.binary(Op::kTosaAdd, low, l.number_like(low, 32768));
}

// The reverse of to_signed. Values outside the range of the dtype saturate.
ValueId to_unsigned(Legalizer& l, ValueId x, DType to) {
  if (to == DType::kU8) return rescale(l, l.cast(x, DType::kI16), {DType::kI16, 0}, {to, 0});
  const ValueId whole = l.cast(x, DType::kI32);
  const ValueId low = l.binary(Op::kTosaSub, bounded(l, whole, 0.0, 65535.0), l.number_like(whole, 32768));
  return rescale(l, rescale(l, low, {DType::kI32, 0}, {DType::kI16, 0}), {DType::kI16, 0}, {to, 32768});
}

// Keeps the lowest `bits` bits of each integer, as torch does when it casts to an unsigned dtype.
ValueId low_bits(Legalizer& l, ValueId x, std::int64_t bits) {
  const ValueId whole = l.cast(x, DType::kI32);
  const ValueId mask = l.number_like(whole, static_cast<double>((std::int64_t{1} << bits) - 1));
  return l.binary(Op::kTosaBitwiseAnd, whole, mask);
}

// torch's cast: floats are truncated toward zero before they become integers.
ValueId cast(Legalizer& l, ValueId x) {
  const DType from = l.logical_type(0).dtype, to = l.result_type().dtype;
  if (to == DType::kF8E4M3) {  // CAST turns values beyond the dtype into NaN
    if (!is_float(from)) x = l.cast(x, DType::kF32);
    x = l.emit(Op::kTosaClamp, TosaClampAttrs{-448.0, 448.0, NanMode::kPropagate}, {x});
  }
  if (is_float(from) && is_integer(to)) x = floor_or_ceil_toward_zero(l, x);
  if (l.has_integers() && is_unsigned(from) && to != from) x = to_signed(l, x, from);
  if (l.has_integers() && is_unsigned(to) && to != from) {
    if (!is_float(from) && l.wraps()) x = low_bits(l, x, bits_of(to));
    return to_unsigned(l, x, to);
  }
  if (is_float(from) && is_integer(to) && !is_unsigned(to) && byte_size(to) < 4)
    x = l.cast(x, to);  // saturates
  return l.cast(x, l.physical_dtype(to));
}

// ---- rules for one operand ----

// Casts x to the dtype in which TOSA computes the result.
ValueId as_arithmetic(Legalizer& l, ValueId x) {
  return l.cast(x, arithmetic_dtype(l, l.physical_dtype(l.result_type().dtype)));
}

template <Op tosa_op>
ValueId direct(Legalizer& l, ValueId x) {
  return l.unary(tosa_op, as_arithmetic(l, x));
}

// Rounds floats. Integers are unchanged.
template <ValueId (*round)(Legalizer&, ValueId)>
ValueId rounded(Legalizer& l, ValueId x) {
  return is_float(l.physical_dtype(l.result_type().dtype)) ? round(l, x) : x;
}

// True if the operand may be the lowest i32, which has no negative: torch's neg and abs return it unchanged,
// TOSA's NEGATE and ABS define no result.
bool wraps_i32(const Legalizer& l) { return l.wraps() && l.result_type().dtype == DType::kI32; }

ValueId neg(Legalizer& l, ValueId x) {
  x = as_arithmetic(l, x);
  return wraps_i32(l) ? l.mul(x, l.number_like(x, -1.0)) : l.unary(Op::kTosaNegate, x);
}

ValueId abs(Legalizer& l, ValueId x) {
  x = as_arithmetic(l, x);
  if (!wraps_i32(l)) return l.unary(Op::kTosaAbs, x);
  return l.mul(x, l.select(is_negative(l, x), l.number_like(x, -1.0), l.number_like(x, 1.0)));
}

ValueId sqrt(Legalizer& l, ValueId x) {
  const DType result = l.physical_dtype(l.result_type().dtype);
  return reciprocal(l, l.unary(Op::kTosaRsqrt, l.cast(x, wide_dtype(result))));
}

ValueId sign(Legalizer& l, ValueId x) {
  return l.result_type().dtype == DType::kBool ? x : sign_of_number(l, as_arithmetic(l, x));
}

ValueId relu(Legalizer& l, ValueId x) { return bounded(l, as_arithmetic(l, x), 0.0, std::nullopt); }

ValueId clamp(Legalizer& l, ValueId x) {
  const auto& attrs = l.attrs<ClampAttrs>();
  const auto bound = [](const std::optional<Scalar>& s) {
    return s ? std::optional(as_double(*s)) : std::nullopt;
  };
  return bounded(l, as_arithmetic(l, x), bound(attrs.min), bound(attrs.max));
}

ValueId logical_not(Legalizer& l, ValueId x) { return l.logical_not(l.to_bool(x)); }

ValueId bitwise_not(Legalizer& l, ValueId x) {
  return l.result_type().dtype == DType::kBool ? l.logical_not(x) : l.unary(Op::kTosaBitwiseNot, x);
}

// ---- rules for two operands, which have the dtype in which the operator computes ----

template <Op tosa_op>
ValueId direct(Legalizer& l, ValueId a, ValueId b) {
  return l.binary(tosa_op, a, b);
}

ValueId times(Legalizer& l, ValueId x, const Scalar& factor) {
  return as_double(factor) == 1.0 ? x : l.mul(x, l.number_like(x, as_double(factor)));
}

ValueId add(Legalizer& l, ValueId a, ValueId b) {
  return l.binary(Op::kTosaAdd, a, times(l, b, l.attrs<AlphaAttrs>().alpha));
}

ValueId sub(Legalizer& l, ValueId a, ValueId b) {
  return l.binary(Op::kTosaSub, a, times(l, b, l.attrs<AlphaAttrs>().alpha));
}

ValueId mul(Legalizer& l, ValueId a, ValueId b) { return l.mul(a, b); }

ValueId div(Legalizer& l, ValueId a, ValueId b) {
  const DivRounding rounding = l.attrs<DivAttrs>().rounding;
  return rounding == DivRounding::kNone ? divide(l, a, b, l.range_of(1)) : divide_integers(l, a, b, rounding);
}

template <DivRounding rounding>
ValueId rest(Legalizer& l, ValueId a, ValueId b) {
  if (is_own_rest(l) && l.type(a).shape == physical_dims(l.result_type().shape, l.planned_order())) return a;
  return rest_of_division(l, a, b, rounding);
}

// Casts a bool to a number; other values are unchanged. Needed for all comparisons but eq and ne.
ValueId as_number(Legalizer& l, ValueId x) {
  return l.type(x).dtype == DType::kBool ? l.cast(x, l.physical_dtype(DType::kI32)) : x;
}

ValueId ne(Legalizer& l, ValueId a, ValueId b) {
  return l.type(a).dtype == DType::kBool ? l.binary(Op::kTosaLogicalXor, a, b)
                                         : l.logical_not(l.binary(Op::kTosaEqual, a, b));
}

ValueId eq(Legalizer& l, ValueId a, ValueId b) {
  return l.type(a).dtype == DType::kBool ? l.logical_not(l.binary(Op::kTosaLogicalXor, a, b))
                                         : l.binary(Op::kTosaEqual, a, b);
}

template <Op tosa_op>
ValueId above(Legalizer& l, ValueId a, ValueId b) {
  a = as_number(l, a);
  b = as_number(l, b);
  return l.binary(tosa_op, a, b);
}

template <Op tosa_op>
ValueId below(Legalizer& l, ValueId a, ValueId b) {
  a = as_number(l, a);
  b = as_number(l, b);
  return l.binary(tosa_op, b, a);
}

// True for alpha != 1: then torch computes a + alpha * b and a - alpha * b in f32.
bool is_scaled_sum(const Legalizer& l) { return as_double(l.attrs<AlphaAttrs>().alpha) != 1.0; }

// True for the product of an f32 number and a tensor of narrower floats. As in torch, the number is not
// rounded to the narrow dtype before the multiplication.
bool has_wide_factor(const Legalizer& l) {
  const DType result = l.result_type().dtype;
  if (result != DType::kF16 && result != DType::kBF16) return false;
  return l.logical_type(0).dtype == DType::kF32 || l.logical_type(1).dtype == DType::kF32;
}

bool always(const Legalizer& /*l*/) { return true; }
bool never(const Legalizer& /*l*/) { return false; }

// ---- the table ----

struct Rule {
  ValueId (*unary)(Legalizer& l, ValueId x) = nullptr;
  ValueId (*binary)(Legalizer& l, ValueId a, ValueId b) = nullptr;
  bool (*computes_in_f32)(const Legalizer& l) = never;  // true: f16 and bf16 are computed in f32
  std::optional<Op> of_bools = std::nullopt;            // the TOSA operator on two operands of bool
};

// `where`, the only operator with three operands, has an empty rule.
constexpr OpTable<Rule> kRules = {
    {Op::kAbs, {.unary = abs}},
    {Op::kNeg, {.unary = neg}},
    {Op::kCeil, {.unary = rounded<direct<Op::kTosaCeil>>}},
    {Op::kFloor, {.unary = rounded<direct<Op::kTosaFloor>>}},
    {Op::kRound, {.unary = rounded<round_half_even>}},
    {Op::kTrunc, {.unary = rounded<floor_or_ceil_toward_zero>}},
    {Op::kCos, {.unary = direct<Op::kTosaCos>}},
    {Op::kSin, {.unary = direct<Op::kTosaSin>}},
    {Op::kErf, {.unary = direct<Op::kTosaErf>}},
    {Op::kExp, {.unary = direct<Op::kTosaExp>}},
    {Op::kLog, {.unary = direct<Op::kTosaLog>}},
    {Op::kReciprocal, {.unary = direct<Op::kTosaReciprocal>}},
    {Op::kRsqrt, {.unary = direct<Op::kTosaRsqrt>}},
    {Op::kSqrt, {.unary = sqrt}},
    {Op::kSigmoid, {.unary = direct<Op::kTosaSigmoid>}},
    {Op::kTanh, {.unary = direct<Op::kTosaTanh>}},
    {Op::kSign, {.unary = sign}},
    {Op::kRelu, {.unary = relu}},
    {Op::kClamp, {.unary = clamp}},
    {Op::kLogicalNot, {.unary = logical_not}},
    {Op::kBitwiseNot, {.unary = bitwise_not}},
    {Op::kCast, {.unary = cast}},
    {Op::kAdd, {.binary = add, .computes_in_f32 = is_scaled_sum, .of_bools = Op::kTosaLogicalOr}},
    {Op::kSub, {.binary = sub, .computes_in_f32 = is_scaled_sum}},
    {Op::kMul, {.binary = mul, .computes_in_f32 = has_wide_factor, .of_bools = Op::kTosaLogicalAnd}},
    {Op::kDiv, {.binary = div, .computes_in_f32 = always}},
    {Op::kPow, {.binary = power, .computes_in_f32 = always}},
    {Op::kRemainder, {.binary = rest<DivRounding::kFloor>}},
    {Op::kFmod, {.binary = rest<DivRounding::kTrunc>}},
    {Op::kLeftShift, {.binary = shift_left}},
    {Op::kRightShift, {.binary = shift_right}},
    {Op::kMaximum, {.binary = direct<Op::kTosaMaximum>, .of_bools = Op::kTosaLogicalOr}},
    {Op::kMinimum, {.binary = direct<Op::kTosaMinimum>, .of_bools = Op::kTosaLogicalAnd}},
    {Op::kBitwiseAnd, {.binary = direct<Op::kTosaBitwiseAnd>, .of_bools = Op::kTosaLogicalAnd}},
    {Op::kBitwiseOr, {.binary = direct<Op::kTosaBitwiseOr>, .of_bools = Op::kTosaLogicalOr}},
    {Op::kBitwiseXor, {.binary = direct<Op::kTosaBitwiseXor>, .of_bools = Op::kTosaLogicalXor}},
    {Op::kLogicalAnd, {.of_bools = Op::kTosaLogicalAnd}},
    {Op::kLogicalOr, {.of_bools = Op::kTosaLogicalOr}},
    {Op::kLogicalXor, {.of_bools = Op::kTosaLogicalXor}},
    {Op::kEq, {.binary = eq}},
    {Op::kNe, {.binary = ne}},
    {Op::kLt, {.binary = below<Op::kTosaGreater>}},
    {Op::kLe, {.binary = below<Op::kTosaGreaterEqual>}},
    {Op::kGt, {.binary = above<Op::kTosaGreater>}},
    {Op::kGe, {.binary = above<Op::kTosaGreaterEqual>}},
    {Op::kWhere, {}},
};
static_assert(complete<kRules.mismatch(is_legalized_by<legalize_elementwise>)>);

ValueId legalize_binary(Legalizer& l, const Rule& rule, ValueId a, ValueId b) {
  const bool compares = info(l.node().op).has(kComparison);
  const DType common = compares ? promoted(l) : l.result_type().dtype;
  if (common == DType::kBool && rule.of_bools) return l.binary(*rule.of_bools, l.to_bool(a), l.to_bool(b));
  const DType arithmetic = common == DType::kBool ? DType::kBool : arithmetic_dtype(l, common);
  const DType compute = rule.computes_in_f32(l) ? wide_dtype(arithmetic) : arithmetic;
  a = l.cast(a, compute);
  b = l.cast(b, compute);
  return rule.binary(l, a, b);
}

// Casts the computed result to its dtype. Without profile INT an i8 or i16 result is computed in f32 or i32
// and is wrapped here as in torch; a cast from float has saturated already.
ValueId settled(Legalizer& l, ValueId y) {
  const DType dtype = l.result_type().dtype;
  const bool from_integers = l.node().op != Op::kCast || !is_float(l.logical_type(0).dtype);
  if (!l.has_integers() && l.wraps() && from_integers && byte_size(dtype) < 4) y = wrap_integers(l, y, dtype);
  return l.cast(y, l.result_dtype());
}

}  // namespace

Physical legalize_elementwise(Legalizer& l) {
  const DimOrder order = l.planned_order();
  const std::size_t rank = l.result_type().rank();
  const DType result = l.physical_dtype(l.result_type().dtype);
  const bool from_float = l.node().op == Op::kCast && is_float(l.logical_type(0).dtype);
  if (l.computes_wide()) {
    std::vector<ValueId> operands;
    for (std::size_t i = 0; i < l.operand_count(); ++i) operands.push_back(l.aligned(i, rank, order));
    if (from_float) operands[0] = floor_or_ceil_toward_zero(l, operands[0]);
    return {settled(l, legalize_wide_integers(l, operands)), order};
  }
  const Rule& rule = *kRules.find(l.node().op);
  const ValueId first = l.aligned(0, rank, order);
  ValueId y = first;
  if (l.node().op == Op::kWhere) {
    const ValueId condition = l.to_bool(first);
    y = l.select(condition, l.cast(l.aligned(1, rank, order), result),
                 l.cast(l.aligned(2, rank, order), result));
  } else if (l.operand_count() == 1) {
    y = rule.unary(l, first);
  } else {
    y = legalize_binary(l, rule, first, l.aligned(1, rank, order));
  }
  return {settled(l, y), order};
}

}  // namespace tosaic::passes
