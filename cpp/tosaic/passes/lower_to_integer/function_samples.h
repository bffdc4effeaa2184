// function_samples: computes elementwise functions of one number of more than 16 bits from samples of the
// float kernels.
//
//   smooth   linear interpolation between 4097 or 16385 points: within 2^-18 of the largest relevant result
//   few      a point for each integer of the operand, if there are at most 65537: exact. A smooth function
//            has this form, too, if nothing is known of what its readers notice, for example because its
//            results are returned
//   dense    linear interpolation between points that are dense next to zero, as precise as for a smooth
//            function: the arc tangent of numbers up to 30,000
//   other    the value at the nearest of 65537 points, of a function that changes slowly or in steps
//
// A function that changes faster, or turns too often for the points, is left to floats, for example a cos
// whose points are a radian apart.
//
// The points cover the range in which the function is not constant. Results that saturate are not relevant.
//
// An operator may be smooth as a function of an upstream value, but not as a function of its operand. An
// example is log(1 + exp(x)): the operand of the logarithm spans more orders of magnitude than its integers
// can represent, while the whole is smooth in x.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// The node as a function of `variable`, one of its operands, whose scaled integers are x.
[[nodiscard]] RuleResult by_samples(const RuleContext& ctx, ValueId variable, const ScaledInteger& x);
// The node as a function of the nearest of deciding_values() in which the result is smooth. Returns nothing
// if there is none.
[[nodiscard]] std::optional<RuleResult> smooth_composition(const RuleContext& ctx);

}  // namespace tosaic::passes
