// Computes with integers beyond 24 bits on a target without profile INT. Its i32 operators are ADD, SUB, MUL,
// INTDIV and the logical shifts. CAST converts i32 to f32 and back. Everything else is composed of them:
//
//   x >> n   = (x >>> n) + (x >>> 31) * (-2 << (31 - n))        fills in the bits of the sign
//   x & m    = sum over the bits that both have; for a constant m, sum over its runs of ones
//   x | y    = x + (y - (x & y))     x ^ y = (x - (x & y)) + (y - (x & y))     ~x = -1 - x
//   a < b    : compares the upper 16 bits, signed, in f32; where these are equal, the lower 16
//   c ? a : b = c * a + (1 - c) * b
//   max over an axis: of the upper 16 bits, then of the lower 16 where the upper are the largest
//   sum over axes: digit by digit, with carries; a digit has so few bits that f32 represents its sum exactly
//
// MUL wraps as in torch. No ADD or SUB here overflows i32 unless torch's result does.

#include <algorithm>
#include <cmath>
#include <span>

#include "tosaic/base/error.h"
#include "tosaic/passes/legalize_tosa/f32_integers.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

ValueId add(Legalizer& l, ValueId a, ValueId b) { return l.binary(Op::kTosaAdd, a, b); }
ValueId subtract(Legalizer& l, ValueId a, ValueId b) { return l.binary(Op::kTosaSub, a, b); }
ValueId left(Legalizer& l, ValueId x, ValueId count) { return l.binary(Op::kTosaLogicalLeftShift, x, count); }
ValueId left(Legalizer& l, ValueId x, int count) {
  return count == 0 ? x : left(l, x, l.number_like(x, count));
}
ValueId right(Legalizer& l, ValueId x, ValueId count) {
  return l.binary(Op::kTosaLogicalRightShift, x, count);
}
ValueId right(Legalizer& l, ValueId x, int count) {
  return count == 0 ? x : right(l, x, l.number_like(x, count));
}
ValueId as_float(Legalizer& l, ValueId x) { return l.cast(x, DType::kF32); }
// An i32 value that is 1 where `truth` is true, and 0 elsewhere.
ValueId as_number(Legalizer& l, ValueId truth) { return l.cast(truth, DType::kI32); }
ValueId is_negative(Legalizer& l, ValueId x) { return right(l, x, 31); }

// x shifted right by `count`, 0 to 31, with the sign filled in.
ValueId arithmetic_right(Legalizer& l, ValueId x, int count) {
  if (count == 0) return x;
  return add(l, right(l, x, count), l.mul(is_negative(l, x), l.number_like(x, -std::ldexp(1.0, 32 - count))));
}

ValueId arithmetic_right(Legalizer& l, ValueId x, ValueId count) {
  const ValueId most = l.number_like(count, 31.0);
  const ValueId above = left(l, l.number_like(count, -2.0), subtract(l, most, count));
  return add(l, right(l, x, count), l.mul(is_negative(l, x), above));
}

// ---- bits ----

ValueId bits_of_mask(Legalizer& l, ValueId x, std::uint32_t mask) {
  std::optional<ValueId> all;
  for (int low = 0; low < 32;) {
    if ((mask >> low & 1u) == 0) {
      ++low;
      continue;
    }
    int end = low;
    while (end < 32 && (mask >> end & 1u) != 0) ++end;
    if (low == 0 && end == 32) return x;
    // The first shift drops the bits from `end` on, the second those below `low`.
    const ValueId run = left(l, right(l, left(l, x, 32 - end), 32 - end + low), low);
    all = all ? add(l, *all, run) : run;
    low = end;
  }
  return all ? *all : l.mul(x, l.number_like(x, 0.0));
}

ValueId common_bits(Legalizer& l, ValueId x, ValueId y, int bits) {
  std::optional<ValueId> all;
  for (int bit = 0; bit < bits; ++bit) {
    const bool top = bit + 1 == bits;  // the sign bit, which all bits above repeat
    const auto at = [&](ValueId value) {
      const ValueId lowest = top ? value : left(l, value, 31 - bit);
      return top ? right(l, value, 31) : right(l, lowest, 31);
    };
    const ValueId both = l.mul(at(x), at(y));
    const ValueId placed = top ? l.mul(both, l.number_like(both, -std::ldexp(1.0, bit))) : left(l, both, bit);
    all = all ? add(l, *all, placed) : placed;
  }
  return *all;
}

// x & y for values of `bits` bits, including the sign.
ValueId bitwise_and(Legalizer& l, ValueId x, ValueId y, int bits) {
  for (std::size_t i = 0; i < 2; ++i)
    if (const std::optional<double> mask = splat_of(l.source(), l.logical(i)))
      return bits_of_mask(l, i == 0 ? y : x, static_cast<std::uint32_t>(static_cast<std::int64_t>(*mask)));
  return common_bits(l, x, y, bits);
}

ValueId bitwise_binary(Legalizer& l, Op op, ValueId x, ValueId y, int bits) {
  const ValueId common = bitwise_and(l, x, y, bits);
  if (op == Op::kBitwiseAnd) return common;
  const ValueId rest = subtract(l, y, common);
  return add(l, op == Op::kBitwiseOr ? x : subtract(l, x, common), rest);
}

// ---- order ----

// x = 2^16 * high + low, both in f32: high is signed, low is from 0 to 2^16 - 1.
struct SignedHalves {
  ValueId high, low;
};
SignedHalves signed_halves(Legalizer& l, ValueId x) {
  return {as_float(l, arithmetic_right(l, x, 16)), as_float(l, right(l, left(l, x, 16), 16))};
}

ValueId is_less(Legalizer& l, ValueId a, ValueId b, bool or_equal) {
  const SignedHalves x = signed_halves(l, a), y = signed_halves(l, b);
  const ValueId below = l.binary(or_equal ? Op::kTosaGreaterEqual : Op::kTosaGreater, y.low, x.low);
  return l.binary(Op::kTosaLogicalOr, l.binary(Op::kTosaGreater, y.high, x.high),
                  l.binary(Op::kTosaLogicalAnd, l.binary(Op::kTosaEqual, x.high, y.high), below));
}

ValueId is_equal(Legalizer& l, ValueId a, ValueId b) {
  const SignedHalves x = signed_halves(l, a), y = signed_halves(l, b);
  return l.binary(Op::kTosaLogicalAnd, l.binary(Op::kTosaEqual, x.high, y.high),
                  l.binary(Op::kTosaEqual, x.low, y.low));
}

ValueId choose(Legalizer& l, ValueId truth, ValueId a, ValueId b) {
  const ValueId yes = as_number(l, truth);
  const ValueId no = subtract(l, l.number_like(yes, 1.0), yes);
  return add(l, l.mul(yes, a), l.mul(no, b));
}

ValueId larger(Legalizer& l, ValueId a, ValueId b) { return choose(l, is_less(l, a, b, false), b, a); }
ValueId smaller(Legalizer& l, ValueId a, ValueId b) { return choose(l, is_less(l, a, b, false), a, b); }

// ---- shifts ----

// Shift counts clamped to [0, bits), and whether each count was inside. A count outside shifts all bits out.
struct Counts {
  ValueId clamped;  // i32
  ValueId inside;   // 1 or 0
  ValueId outside;
};
Counts counts_within(Legalizer& l, ValueId counts, int bits) {
  const ValueId x = as_float(l, counts);  // f32 rounds only counts that are far out of range
  const ValueId clamped =
      l.emit(Op::kTosaClamp, TosaClampAttrs{0.0, static_cast<double>(bits - 1), NanMode::kPropagate}, {x});
  const ValueId inside = as_number(l, l.binary(Op::kTosaEqual, x, clamped));
  return {l.cast(clamped, DType::kI32), inside, subtract(l, l.number_like(inside, 1.0), inside)};
}

ValueId shift_left(Legalizer& l, ValueId x, ValueId counts, int bits) {
  if (const std::optional<double> known = splat_of(l.source(), l.logical(1))) {
    const bool out = *known < 0 || *known >= bits;
    return l.mul(x, l.number_like(x, out            ? 0.0
                                     : *known == 31 ? -0x1p31
                                                    : std::ldexp(1.0, static_cast<int>(*known))));
  }
  const Counts found = counts_within(l, counts, bits);
  return l.mul(left(l, x, found.clamped), found.inside);
}

ValueId shift_right(Legalizer& l, ValueId x, ValueId counts, int bits) {
  if (const std::optional<double> known = splat_of(l.source(), l.logical(1))) {
    const bool out = *known < 0 || *known >= bits;
    return arithmetic_right(l, x, out ? 31 : static_cast<int>(*known));
  }
  const Counts found = counts_within(l, counts, bits);
  // A count outside [0, bits) becomes 31, so that only the sign remains.
  const ValueId count =
      add(l, l.mul(found.clamped, found.inside), l.mul(found.outside, l.number_like(found.outside, 31.0)));
  return arithmetic_right(l, x, count);
}

// ---- arithmetic ----

ValueId times(Legalizer& l, ValueId x, const Scalar& factor) {
  return as_int(factor) == 1 ? x : l.mul(x, l.number_like(x, as_double(factor)));
}

// The result of a div (truncated or floored), fmod or remainder. INTDIV truncates, so the floored quotient is
// one less where remainder and divisor differ in sign. The sign of their product in f32 tells where: the
// product is 0 only if the remainder is.
ValueId divide(Legalizer& l, Op op, ValueId a, ValueId b, DivRounding rounding) {
  const ValueId quotient = l.binary(Op::kTosaIntdiv, a, b);
  if (op == Op::kDiv && rounding == DivRounding::kTrunc) return quotient;
  const ValueId rest = subtract(l, a, l.mul(quotient, b));
  if (op == Op::kFmod) return rest;
  const ValueId signs = l.mul(as_float(l, rest), as_float(l, b));
  const ValueId below = as_number(l, l.binary(Op::kTosaGreater, l.number_like(signs, 0.0), signs));
  return op == Op::kDiv ? subtract(l, quotient, below) : add(l, rest, l.mul(below, b));
}

ValueId power(Legalizer& l, ValueId x) {
  const std::optional<double> exponent = splat_of(l.source(), l.logical(1));
  if (!exponent || *exponent < 0.0 || *exponent > 64.0)
    l.refuse("integer pow needs a constant exponent from 0 to 64");
  std::optional<ValueId> product;
  ValueId square = x;
  for (auto bits = static_cast<int>(*exponent); bits > 0; bits >>= 1) {
    if ((bits & 1) != 0) product = product ? l.mul(*product, square) : square;
    if (bits > 1) square = l.mul(square, square);
  }
  return product ? *product : add(l, l.mul(x, l.number_like(x, 0.0)), l.number_like(x, 1.0));
}

ValueId magnitude(Legalizer& l, ValueId x) {
  const ValueId twice = left(l, is_negative(l, x), 1);
  return l.mul(x, subtract(l, l.number_like(twice, 1.0), twice));
}

ValueId extreme_of_axis(Legalizer& l, Op reduce, ValueId x, std::size_t axis) {
  return l.emit(reduce, TosaAxisNanAttrs{static_cast<std::int64_t>(axis), NanMode::kPropagate}, {x});
}

// The lower halves where the upper half is `extreme`. Elsewhere it is a number that `reduce` never selects,
// since lower halves are from 0 to 2^16 - 1.
ValueId lower_candidates(Legalizer& l, Op reduce, const SignedHalves& x, ValueId extreme) {
  const double never = reduce == Op::kTosaReduceMax ? -1.0 : 0x1p16;
  return l.select(l.binary(Op::kTosaEqual, x.high, extreme), x.low, l.number_like(x.low, never));
}

}  // namespace

ValueId wide_extreme(Legalizer& l, Op reduce, ValueId x, const std::vector<std::size_t>& axes) {
  if (axes.empty()) return x;
  SignedHalves at = signed_halves(l, x);
  for (const std::size_t axis : axes) {
    const ValueId high = extreme_of_axis(l, reduce, at.high, axis);
    at = {high, extreme_of_axis(l, reduce, lower_candidates(l, reduce, at, high), axis)};
  }
  return add(l, left(l, l.cast(at.high, DType::kI32), 16), l.cast(at.low, DType::kI32));
}

ValueId wide_argmax(Legalizer& l, ValueId x, std::size_t axis) {
  const SignedHalves at = signed_halves(l, x);
  const ValueId high = extreme_of_axis(l, Op::kTosaReduceMax, at.high, axis);
  return extreme_of_axis(l, Op::kTosaArgmax, lower_candidates(l, Op::kTosaReduceMax, at, high), axis);
}

ValueId wide_sum(Legalizer& l, ValueId x, const std::vector<std::size_t>& axes) {
  std::int64_t count = 1;
  for (const std::size_t axis : axes) count *= l.type(x).shape[axis];
  int bits = 16;  // bits of a digit; the sum of `count` digits must have at most 24 bits
  while (bits > 1 && count > std::int64_t{1} << (24 - bits)) --bits;
  const auto summed = [&](ValueId digit) {
    ValueId total = as_float(l, digit);
    for (const std::size_t axis : axes)
      total = l.emit(Op::kTosaReduceSum, AxisAttrs{static_cast<std::int64_t>(axis)}, {total});
    return l.cast(total, DType::kI32);
  };
  std::optional<ValueId> lower, carry;
  for (int from = 0; from < 32; from += bits) {
    const bool top = from + bits >= 32;
    ValueId digit = top ? summed(arithmetic_right(l, x, from))
                        : summed(right(l, left(l, x, 32 - bits - from), 32 - bits));
    if (carry) digit = add(l, digit, *carry);
    const ValueId rest = top ? digit : right(l, left(l, digit, 32 - bits), 32 - bits);
    if (!top) carry = right(l, digit, bits);
    const ValueId placed = left(l, rest, from);
    lower = lower ? add(l, placed, *lower) : placed;
  }
  return *lower;
}

ValueId wrap_integers(Legalizer& l, ValueId x, DType dtype) {
  const int bits = static_cast<int>(8 * byte_size(dtype));
  const bool is_signed = is_signed_integer(dtype);
  const double range = std::ldexp(1.0, bits);
  if (!is_float(l.type(x).dtype)) {
    const ValueId high = left(l, x, 32 - bits);
    return as_float(l, is_signed ? arithmetic_right(l, high, 32 - bits) : right(l, high, 32 - bits));
  }
  const ValueId shifted = is_signed ? add(l, x, l.number_like(x, range / 2)) : x;
  const ValueId turns = l.unary(Op::kTosaFloor, l.mul(shifted, l.number_like(x, 1 / range)));
  return subtract(l, x, l.mul(turns, l.number_like(x, range)));
}

namespace {

// The operands of a rule, as i32.
using Operands = std::span<const ValueId>;

int result_bits(const Legalizer& l) {
  return std::min(static_cast<int>(8 * byte_size(l.result_type().dtype)), 32);  // i64 is represented in i32
}

ValueId first_operand(Legalizer& /*l*/, Operands x) { return x[0]; }

ValueId scaled_sum(Legalizer& l, Operands x) {
  return add(l, x[0], times(l, x[1], l.attrs<AlphaAttrs>().alpha));
}

ValueId scaled_difference(Legalizer& l, Operands x) {
  return subtract(l, x[0], times(l, x[1], l.attrs<AlphaAttrs>().alpha));
}

ValueId product(Legalizer& l, Operands x) { return l.mul(x[0], x[1]); }

ValueId quotient(Legalizer& l, Operands x) {
  return divide(l, Op::kDiv, x[0], x[1], l.attrs<DivAttrs>().rounding);
}

template <Op op>
ValueId rest(Legalizer& l, Operands x) {
  return divide(l, op, x[0], x[1], DivRounding::kNone);
}

ValueId power_of(Legalizer& l, Operands x) { return power(l, x[0]); }
ValueId negated(Legalizer& l, Operands x) { return l.mul(x[0], l.number_like(x[0], -1.0)); }
ValueId magnitude_of(Legalizer& l, Operands x) { return magnitude(l, x[0]); }
ValueId relu(Legalizer& l, Operands x) { return larger(l, x[0], l.number_like(x[0], 0.0)); }

ValueId clamp(Legalizer& l, Operands x) {
  const auto& attrs = l.attrs<ClampAttrs>();
  ValueId y = x[0];
  if (attrs.min) y = larger(l, y, l.number_like(y, as_double(*attrs.min)));
  if (attrs.max) y = smaller(l, y, l.number_like(y, as_double(*attrs.max)));
  return y;
}

ValueId maximum(Legalizer& l, Operands x) { return larger(l, x[0], x[1]); }
ValueId minimum(Legalizer& l, Operands x) { return smaller(l, x[0], x[1]); }
ValueId left_shift(Legalizer& l, Operands x) { return shift_left(l, x[0], x[1], result_bits(l)); }
ValueId right_shift(Legalizer& l, Operands x) { return shift_right(l, x[0], x[1], result_bits(l)); }
ValueId bitwise_not(Legalizer& l, Operands x) { return subtract(l, l.number_like(x[0], -1.0), x[0]); }

template <Op op>
ValueId bitwise(Legalizer& l, Operands x) {
  return bitwise_binary(l, op, x[0], x[1], result_bits(l));
}

ValueId equal(Legalizer& l, Operands x) { return is_equal(l, x[0], x[1]); }
ValueId not_equal(Legalizer& l, Operands x) { return l.logical_not(is_equal(l, x[0], x[1])); }
ValueId less(Legalizer& l, Operands x) { return is_less(l, x[0], x[1], false); }
ValueId less_equal(Legalizer& l, Operands x) { return is_less(l, x[0], x[1], true); }
ValueId greater(Legalizer& l, Operands x) { return is_less(l, x[1], x[0], false); }
ValueId greater_equal(Legalizer& l, Operands x) { return is_less(l, x[1], x[0], true); }

// The operators of legalize_elementwise that narrow_integers plans in i32; `where` reads a condition, too.
constexpr OpTable<ValueId (*)(Legalizer&, Operands)> kRules = {
    {Op::kCast, first_operand},
    {Op::kCeil, first_operand},
    {Op::kFloor, first_operand},
    {Op::kRound, first_operand},
    {Op::kTrunc, first_operand},
    {Op::kAdd, scaled_sum},
    {Op::kSub, scaled_difference},
    {Op::kMul, product},
    {Op::kDiv, quotient},
    {Op::kRemainder, rest<Op::kRemainder>},
    {Op::kFmod, rest<Op::kFmod>},
    {Op::kPow, power_of},
    {Op::kNeg, negated},
    {Op::kAbs, magnitude_of},
    {Op::kRelu, relu},
    {Op::kClamp, clamp},
    {Op::kMaximum, maximum},
    {Op::kMinimum, minimum},
    {Op::kLeftShift, left_shift},
    {Op::kRightShift, right_shift},
    {Op::kBitwiseNot, bitwise_not},
    {Op::kBitwiseAnd, bitwise<Op::kBitwiseAnd>},
    {Op::kBitwiseOr, bitwise<Op::kBitwiseOr>},
    {Op::kBitwiseXor, bitwise<Op::kBitwiseXor>},
    {Op::kEq, equal},
    {Op::kNe, not_equal},
    {Op::kLt, less},
    {Op::kLe, less_equal},
    {Op::kGt, greater},
    {Op::kGe, greater_equal},
};

}  // namespace

ValueId legalize_wide_integers(Legalizer& l, const std::vector<ValueId>& given) {
  const Op op = l.node().op;
  if (op == Op::kWhere)
    return choose(l, l.to_bool(given[0]), l.cast(given[1], DType::kI32), l.cast(given[2], DType::kI32));
  const auto* const rule = kRules.find(op);
  if (rule == nullptr)
    throw InternalError({.where = "legalize-tosa",
                         .what = "operator '" + std::string(info(op).name) + "' has no rule for i32"});
  std::vector<ValueId> x;
  for (const ValueId operand : given) x.push_back(l.cast(operand, DType::kI32));
  return (*rule)(l, x);
}

}  // namespace tosaic::passes
