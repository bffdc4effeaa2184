// fold: evaluates one node on constant operands, for constant folding.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::exec {

// Returns the results of `node` as new constants of kind kFolded, named like the result values. Returns
// nothing if the node cannot be run: it is opaque or control flow, there is no kernel for these dtypes, or a
// constant is unbound. A large constant whose axes change their order is computed later (ir/recipe.h).
// `operands` are the node's operands, null where absent; they have the types of the graph's values. The
// constant of a view operator shares the bytes of its operand. The function makes no memory plan. It throws
// what the kernel throws, with the node's location.
[[nodiscard]] std::optional<std::vector<ConstantRef>> evaluate(const Graph& graph, const Node& node,
                                                               std::span<const ConstantRef> operands);

}  // namespace tosaic::exec
