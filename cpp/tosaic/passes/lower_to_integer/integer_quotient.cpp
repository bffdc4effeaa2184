#include "tosaic/passes/lower_to_integer/integer_quotient.h"

#include <algorithm>
#include <cmath>

#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rule_result.h"

namespace tosaic::passes {
namespace {

constexpr int kFewestBits = 16;
constexpr const char* kTooWide = "its results span too many orders of magnitude";

// A mask that is true where a number in i32 is zero. Returns nothing if it never is.
std::optional<ValueId> at_zero(IntegerBuilder& build, const ScaledInteger& x) {
  if (x.range.low > 0 || x.range.high < 0) return std::nullopt;
  return build.binary(Op::kTosaEqual, x.id, IntegerMath(build).number(x.id, 0));
}

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

// 2^60 / mantissa, by a table and one Newton step r * (2 - m * r).
ValueId inverse_of(IntegerBuilder& build, ValueId mantissa) {
  IntegerMath m(build);
  const ValueId coarse = m.of_mantissa(mantissa, [](double at) { return 0x1p60 / at; });
  const ValueId one = m.mul(mantissa, coarse, 30);  // 2^30, nearly
  return m.mul(coarse, m.sub(m.number(one, 2147483647), one), 30);
}

}  // namespace

ScaledInteger reciprocal_of(IntegerBuilder& build, const ScaledInteger& x) {
  IntegerMath m(build);
  const auto [size, negative] = magnitude_of(build, x);
  const IntegerMath::Positive v = m.positive(size);
  if (30 - v.most_shift < kFewestBits) throw NoIntegerForm(kTooWide);
  const ValueId made =
      m.right(inverse_of(build, v.scaled.mantissa), m.sub(v.most_shift, v.scaled.shift), true);
  const std::int64_t most = std::int64_t{1} << 30;
  return {m.with_sign(made, negative),
          {std::ldexp(1.0, v.most_shift - 60) / x.scale()},
          0,
          {negative.valid() ? -most : 0, most}};
}

ScaledInteger quotient_of(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b,
                          const std::optional<QParams>& eventual) {
  if (a.minus_infinity || b.minus_infinity) throw NoIntegerForm(kNoInfinity);
  IntegerMath m(build);
  const auto [dividend, a_negative] = magnitude_of(build, a);
  const auto [divisor, b_negative] = magnitude_of(build, b);
  const IntegerMath::Positive v = m.positive(divisor);
  const ValueId room = m.add(m.clz(m.maximum(dividend.id, 1)), -2);
  const ValueId filled = m.left(dividend.id, m.maximum(room, 0));  // 30 bits, or 31 if the dividend has 31
  const ValueId product = m.mul(filled, inverse_of(build, v.scaled.mantissa), 31);
  const double ratio = a.scale() / b.scale();
  double top = static_cast<double>(a.magnitude()) * a.scale() /
               (static_cast<double>(std::max<std::int64_t>(divisor.range.low, 1)) * b.scale());
  if (eventual) {
    top = std::min(top, 2 * largest_number(*eventual));
  } else if (30 - v.most_shift < kFewestBits) {
    throw NoIntegerForm(kTooWide);
  }
  if (top == 0) top = ratio;  // the dividend is always 0
  const std::optional<ValueId> by_zero = at_zero(build, divisor);
  if (by_zero && eventual)
    top = std::max(top,
                   largest_number(*eventual) / 2);  // 2^30 units, the result of x / 0, are at least 8 * top
  // product = filled * 2^29 / mantissa. filled = dividend * 2^room and divisor = mantissa / 2^shift, so the
  // quotient is product * 2^(shift - room - 29).
  const int unit = static_cast<int>(std::ceil(std::log2(top / ratio))) - 27;
  const ValueId drop = m.sub(m.add(m.maximum(room, 0), 29 + unit), v.scaled.shift);
  ValueId made = m.right(product, m.minimum(m.maximum(drop, 0), 31), true);
  const std::int64_t most = std::int64_t{1} << 30;
  if (by_zero) made = build.elementwise(Op::kTosaSelect, NoAttrs{}, {*by_zero, m.number(made, most), made});
  made = m.with_sign(m.with_sign(made, a_negative), b_negative);
  ScaledInteger out{made, {std::ldexp(ratio, unit)}, 0, {-most, most}};
  if (by_zero) out.nan_mask = build.both(by_zero, at_zero(build, dividend));
  return out;
}

ScaledInteger saturating_product_of(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b,
                                    const QParams& to) {
  if (a.minus_infinity || b.minus_infinity) throw NoIntegerForm(kNoInfinity);
  IntegerMath m(build);
  const auto [x, x_negative] = magnitude_of(build, a);
  const auto [y, y_negative] = magnitude_of(build, b);
  const auto filled = [&](ValueId id) {  // 31 bits, and 0 for 0
    const ValueId room = m.add(m.clz(m.maximum(id, 1)), -1);
    return IntegerMath::Scaled{m.left(id, room), room};
  };
  const IntegerMath::Scaled p = filled(x.id), q = filled(y.id);
  const ValueId product = m.mul(p.mantissa, q.mantissa, 32);  // x * y * 2^(p.shift + q.shift - 32)
  const double ratio = a.scale() * b.scale();
  const int unit = static_cast<int>(std::ceil(std::log2(2 * largest_number(to) / ratio))) - 27;
  const ValueId drop = m.add(m.add(p.shift, q.shift), unit - 32);
  const ValueId made = m.right(product, m.minimum(m.maximum(drop, 0), 31), true);
  const std::int64_t most = std::int64_t{1} << 30;
  const bool has_sign = x_negative.valid() || y_negative.valid();
  ScaledInteger out{m.with_sign(m.with_sign(made, x_negative), y_negative),
                    {std::ldexp(ratio, unit)},
                    0,
                    {has_sign ? -most : 0, most}};
  out.error = 2 * largest_number(to) * (a.error / a.scale() + b.error / b.scale()) + out.scale();
  return out;
}

}  // namespace tosaic::passes
