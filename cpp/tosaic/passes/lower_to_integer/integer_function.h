// integer_function: computes elementwise functions of one number of more than 16 bits. Such numbers are sums
// and products that an expansion does not round.
//
//   sqrt, rsqrt, reciprocal, log   by mantissa and exponent: small operands are normalized and lose no bits
//   exp                            with errors relative to the largest possible result
//   floor, ceil, trunc, round      by whole_numbers.h, as are remainders of a division by a constant
//   any other                      by samples of the float kernels: function_samples.h
//
// Results have about 30 bits below their largest magnitude. The error of log is about 2^-22, absolute.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// Returns nothing if the node is not such a function.
[[nodiscard]] std::optional<RuleResult> integer_function(const RuleContext& ctx);

}  // namespace tosaic::passes
