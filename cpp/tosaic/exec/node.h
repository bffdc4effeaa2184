// node: runs a single node on given arrays, and says what it may overwrite, without a memory plan or a
// session.
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

// Bit i: result 0 of the node may be computed in the memory of operand i, if both have the same number of
// bytes. 0 for foreign nodes, control flow, variable operators, and operators without a kernel.
[[nodiscard]] std::uint32_t in_place_operands(const Graph& graph, const Node& node);

}  // namespace tosaic::exec
