// node_lowering: lowers one node whose operands have integers.
//
//   lower_node       constants are evaluated             all operands are constants
//                    a table of the float kernels        function_table.h
//                    the rule of the operator            rules.h
//                    a function of one number            integer_function.h
//                    the rules of the node's parts       expansion.h
//   lower_as_smooth_function
//                    samples as a function of an upstream value: function_samples.h
//
// The first one that succeeds decides. Each returns kLowered, after it has stored the results in the
// ValueMap, or the reason why it did not lower the node.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

[[nodiscard]] Outcome lower_node(const RuleContext& ctx);
[[nodiscard]] Outcome lower_as_smooth_function(const RuleContext& ctx);

// Stores result r of a node: rounded to its qparams or, if it has none, as a ScaledInteger. May throw
// NoIntegerForm or QuantMismatch from the rescale.
[[nodiscard]] Outcome store_result(const RuleContext& ctx, std::uint32_t r, const RuleResult& made);

}  // namespace tosaic::passes
