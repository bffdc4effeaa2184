// join_axes: rewrites a TOSA graph so that no value has more axes than TOSA allows.
#pragma once

#include <optional>

#include "tosaic/ir/graph.h"
#include "tosaic/target/spec.h"

namespace tosaic::passes {

inline constexpr std::size_t kMostAxes = 6;  // MAX_RANK of TOSA's level 8K

// Computes each node that has a value of more than 6 axes over fewer axes. The regions of nodes are
// rewritten, too. Inputs and outputs of the graph must not have more than 6 axes. Returns nothing if no value
// has more than 6 axes. Throws UnsupportedOp if a foreign operator has such a value.
[[nodiscard]] std::optional<Graph> join_axes(const Graph& graph, const target::TargetSpec& target);

}  // namespace tosaic::passes
