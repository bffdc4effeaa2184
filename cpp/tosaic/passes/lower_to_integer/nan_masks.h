// nan_masks: infinity and NaN in integer arithmetic, which has neither.
//
// Infinity is a number so large that it saturates when it is stored. Quotients, logarithms and rsqrt know
// that number from the qparams of the reader; without these, they have no integer form if the operand may be
// too close to zero.
//
// NaN is any number with a mask (ScaledInteger::nan_mask) of where it is NaN. Quotients, roots, logarithms,
// softmax and functions from samples create masks unless the ranges rule NaN out. Operators that compute with
// such numbers pass masks on. Where the result is stored, the mask selects the integer that quantize makes of
// NaN. An operator without a rule for NaN is refused.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// What a rule returned, with the masks of the operands.
[[nodiscard]] RuleResult with_nan_masks(const RuleContext& ctx, RuleResult made);
// Selects the integer that quantize makes of NaN where `mask` is true. `stored` is result r of the node, in
// the signed form of its qparams.
[[nodiscard]] ValueId with_stored_nan(const RuleContext& ctx, std::size_t r, ValueId stored, ValueId mask);

}  // namespace tosaic::passes
