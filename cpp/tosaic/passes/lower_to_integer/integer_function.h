// integer_function: elementwise functions of one number of more than 16 bits. Such numbers are sums and
// products that an expansion does not round.
//
//   sqrt, rsqrt, reciprocal, log   by mantissa and exponent: small operands are normalized, lose no bits
//   exp                            errors are relative to the largest possible result
//   floor, ceil, trunc, round      exact, except that an operand counts as being at a step if f32, or its own
//                                  error, cannot separate it from the step; the same holds for quotients that
//                                  are rounded, and remainders, of a division by a constant
//   any other                      by samples of the float kernels: function_samples.h
//
// Results have about 30 bits below their largest magnitude. The error of log is about 2^-22, absolute.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// Nothing if the node is no such function.
[[nodiscard]] std::optional<RuleResult> integer_function(const RuleContext& ctx);

// Parts of rules.
// floor, ceil, trunc or round of a number with one scale.
[[nodiscard]] ScaledInteger in_whole_numbers(IntegerBuilder& build, const ScaledInteger& x, Op op);
// a / b, for numbers in i32, as an operand of the node whose eventual qparams limit the result.
[[nodiscard]] ScaledInteger quotient_of(const RuleContext& ctx, const ScaledInteger& a,
                                        const ScaledInteger& b);

}  // namespace tosaic::passes
