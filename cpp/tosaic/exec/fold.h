// fold: one node on constant operands, for constant folding.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::exec {

// The results of `node` as new constants (kFolded, named as the values), or nothing where the node cannot be
// run: opaque, control flow, an operator without kernel for these dtypes, an unbound constant. `operands` are
// the node's, null where absent; their types are those of the graph's values. Views share their operand's
// bytes. No plan is made. Throws what the kernel throws, with the node's location.
[[nodiscard]] std::optional<std::vector<ConstantRef>> evaluate(const Graph& graph, const Node& node,
                                                               std::span<const ConstantRef> operands);

}  // namespace tosaic::exec
