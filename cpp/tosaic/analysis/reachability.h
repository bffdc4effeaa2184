// Reachability along data edges: what a value depends on, and what depends on it.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::analysis {

// Per value: true if it is one of `sources` or is computed from one of them.
[[nodiscard]] std::vector<bool> reached_from(const Graph& graph, std::span<const ValueId> sources);

// Per value: true if it is one of `targets`, or if one of them is computed from it.
[[nodiscard]] std::vector<bool> reaching(const Graph& graph, std::span<const ValueId> targets);

// Per value: true if it depends on an input (user or state). All other values are constants or can be folded
// into constants.
[[nodiscard]] std::vector<bool> depends_on_input(const Graph& graph);

// Per node: true if an output (user or mutation) is computed from it. All other nodes are dead. Effects, such
// as writes of variables, are not considered.
[[nodiscard]] std::vector<bool> reaches_output(const Graph& graph);

}  // namespace tosaic::analysis
