// integer_arithmetic: computes sums, products and quotients of two operands in i32, for rules and for parts
// of other rules.
//
//   add   rescales both operands to one unit in which the sum has 29 bits; exact if the scales are equal
//   mul   multiplies and drops the bits beyond 30; a constant factor of one sign only changes the scales
//   div   multiplies by the reciprocal of a constant divisor; otherwise divides mantissas and exponents
//
// Constant operands are converted to integers of the chosen unit at compile time.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// a + b and a - b.
[[nodiscard]] ScaledInteger total(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b);
[[nodiscard]] ScaledInteger difference(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b);
// a * b, without the bits beyond 30.
[[nodiscard]] ScaledInteger product_of(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b);
// v = whole * d + rest for a d of 0 or more, where `whole` is a whole number and 0 <= rest < d. A v that f32
// cannot tell from a multiple of d counts as that multiple. Quotients beyond `largest` count as some number
// beyond. Returns nothing if no unit of 32 bits has the bits of both operands.
struct Division {
  ScaledInteger whole, rest;
  std::int64_t near;  // a rest up to this one counts as none
};
[[nodiscard]] std::optional<Division> division_of(IntegerBuilder& build, const ScaledInteger& v,
                                                  const ScaledInteger& d, double largest);
// x * operand i and x + operand i. `own` is the shape of operand i that broadcasts to the shape of x.
[[nodiscard]] ScaledInteger times(const RuleContext& ctx, const ScaledInteger& x, std::size_t i,
                                  const Shape& own);
[[nodiscard]] ScaledInteger plus(const RuleContext& ctx, const ScaledInteger& x, std::size_t i,
                                 const Shape& own);

}  // namespace tosaic::passes
