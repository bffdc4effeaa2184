// expansion: lowers a composite by the rules of its parts. Values between the parts are not rounded to
// qparams.
//
//   %y = gelu(%x)  ->  %y.mul = mul(%x, ..), %y.erf = erf(%y.mul), ..      a graph of its own
//                      each part lowered by lower_node(), over the same new graph
//
// The parts have a ValueMap of their own, whose inputs are the operands of the node.
#pragma once

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// A Refusal without a reason means that the node has no expansion.
[[nodiscard]] Outcome lower_by_parts(const RuleContext& ctx);

}  // namespace tosaic::passes
