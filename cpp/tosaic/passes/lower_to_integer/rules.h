// rules: the rules by which operators compute with integers, by file. The column `integer rule` of ir/ops.def
// names the rule of each operator.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

using IntegerRule = RuleResult (*)(const RuleContext& ctx);

// The rule of an operator. Returns null if it has none. Then an elementwise operator may still become a table
// or another function, and a composite may be expanded.
[[nodiscard]] IntegerRule rule_of(const Node& node);

// integer_contraction.cpp
[[nodiscard]] RuleResult integer_conv(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_linear(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_matmul(const RuleContext& ctx);
// integer_reduction.cpp
[[nodiscard]] RuleResult integer_sum(const RuleContext& ctx);  // sum, mean
[[nodiscard]] RuleResult integer_prod(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_any(const RuleContext& ctx);  // any, all
[[nodiscard]] RuleResult integer_avg_pool(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_choice(const RuleContext& ctx);  // amax, amin, max_pool, argmax
// integer_resize.cpp
[[nodiscard]] RuleResult integer_resize(const RuleContext& ctx);
// integer_grid_sample.cpp
[[nodiscard]] RuleResult integer_grid_sample(const RuleContext& ctx);
// integer_movement.cpp
[[nodiscard]] RuleResult integer_movement(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_where(const RuleContext& ctx);
// integer_arithmetic.cpp
[[nodiscard]] RuleResult integer_add(const RuleContext& ctx);  // add, sub
[[nodiscard]] RuleResult integer_mul(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_div(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_sign_change(const RuleContext& ctx);  // neg, abs
// integer_order.cpp
[[nodiscard]] RuleResult integer_extremum(const RuleContext& ctx);  // maximum, minimum, relu, clamp
[[nodiscard]] RuleResult integer_comparison(const RuleContext& ctx);
// integer_normalize.cpp
[[nodiscard]] RuleResult integer_softmax(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_logsumexp(const RuleContext& ctx);
[[nodiscard]] RuleResult integer_norm(const RuleContext& ctx);  // layer_norm, rms_norm, group_norm

}  // namespace tosaic::passes
