// node: runs a single node on given arrays, without a memory plan or a session.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tosaic/exec/prepare.h"

namespace tosaic::exec {

// Runs the node and returns its results (dense). Returns nothing for foreign nodes, control flow, variable
// operators, and operators that have no kernel for these dtypes. `operands` are dense arrays of the node's
// operand types; an absent operand has null data. An override from `options` is called instead of the kernel.
[[nodiscard]] std::optional<std::vector<Array>> run_node(const Graph& graph, const Node& node,
                                                         std::span<const ArrayView> operands,
                                                         const PrepareOptions& options = {});

}  // namespace tosaic::exec
