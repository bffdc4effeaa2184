// evaluation: runs a node, or a chain of elementwise nodes, with the float kernels at compile time.
#pragma once

#include <vector>

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// Runs the node on constants; an absent operand is null. qparams[i] dequantizes operand i unless it is null.
// A result with qparams is quantized as in the source graph, then converted to signed form. Throws
// NoIntegerForm if the node cannot be run.
[[nodiscard]] ConstantRef evaluate_stored(const NodeView& node, const std::vector<ConstantRef>& operands,
                                          const std::vector<const QParams*>& qparams);

// As evaluate_stored(), but the result is not quantized.
[[nodiscard]] ConstantRef evaluate_unrounded(const NodeView& node, const std::vector<ConstantRef>& operands,
                                             const std::vector<const QParams*>& qparams);

// Runs an operator of one operand in f64 on these numbers.
[[nodiscard]] ConstantRef evaluate_in_double(Op op, const Attrs& attributes,
                                             const std::vector<double>& numbers);

// Upstream values of which the node's result is an elementwise function, nearest first. Between such a value
// and the node are only elementwise operators and constants of one element. Each listed value has scaled
// integers and the shape of the result. If the node has only one operand that is not a constant, that operand
// is not listed.
[[nodiscard]] std::vector<ValueId> deciding_values(const RuleContext& ctx);
// The node's result, computed in f32, if `variable` (an operand, or one of deciding_values()) has the values
// `at`.
[[nodiscard]] ConstantRef evaluate_from(const NodeView& node, ValueId variable, const ConstantRef& at);

// For x that were counted, and results that are only returned: throws NoIntegerForm if few bits are left in
// `unit` for the results at the integers -1, 0 and 1 of `variable`. Nobody knows which integers of the dtype
// occur: cosh(x / 4) of u8 reaches 10^27, and in a unit for it cosh(1 / 4) would become 0.
void require_fine_counts(const RuleContext& ctx, ValueId variable, const ScaledInteger& x, double unit);

}  // namespace tosaic::passes
