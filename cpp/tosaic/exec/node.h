// node: one node alone on given arrays, without a plan or a session.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tosaic/exec/prepare.h"

namespace tosaic::exec {

// The results (dense), or nothing for foreign nodes, control flow, variables and operators without kernel for
// these dtypes. `operands` are dense arrays of the node's operand types; null data where absent. An override
// from `options` takes the kernel's place.
[[nodiscard]] std::optional<std::vector<Array>> run_node(const Graph& graph, const Node& node,
                                                         std::span<const ArrayView> operands,
                                                         const PrepareOptions& options = {});

}  // namespace tosaic::exec
