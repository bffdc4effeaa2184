// nan_masks: represents infinity and NaN in integer arithmetic, which has neither.
//
// Infinity is a number so large that it saturates when it is stored. How large that is follows from the
// qparams with which the result is stored in the end (NodeView::eventual_qparams). A quotient whose divisor
// may be close to zero has no integer form without these qparams. The same holds for a logarithm or rsqrt
// whose operand may be close to zero. With these qparams, such a logarithm or rsqrt has an integer form only
// if its results near zero saturate.
//
// NaN is any number with a mask (ScaledInteger::nan_mask) that is true where the number is NaN. Quotients,
// roots, logarithms, softmax and functions that are computed from samples or tables (function_samples.h,
// function_table.h) create masks, unless the ranges of their operands rule NaN out. The operators that read
// such numbers pass the masks on. Where the result is stored, the mask selects the integer that quantize
// makes of NaN. An operator without a rule for NaN is refused.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// Adds the NaN masks of the operands to `made`, which a rule returned.
[[nodiscard]] RuleResult with_nan_masks(const RuleContext& ctx, RuleResult made);
// Selects the integer that quantize makes of NaN where `mask` is true. `stored` is result r of the node, in
// the signed form of its qparams.
[[nodiscard]] ValueId with_stored_nan(const RuleContext& ctx, std::size_t r, ValueId stored, ValueId mask);

}  // namespace tosaic::passes
