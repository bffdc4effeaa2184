// stand_in: graphs that run a part of another graph, or that run in its place.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::exec {

// A graph at the same stage that has only this node, with its regions. Operands become inputs, in order. A
// constant operand i becomes an input only if `as_input[i]`. The arrays of inputs and outputs are the
// values themselves, in the axes of `graph`.
[[nodiscard]] Graph node_alone(const Graph& graph, const Node& node, const std::vector<bool>& as_input);

// A graph with the same inputs and outputs, states included, and a single foreign node between them. The node
// has no kernel; a model computes it. Throws InvalidGraph if the graph has variables, which the node could
// not read or write.
[[nodiscard]] Graph as_one_node(const Graph& graph);

// A graph with the same nodes, but without states and conversions: arrays of inputs and outputs are the
// values themselves, in the axes of `graph`. Values of states are inputs, and their new values are outputs,
// in the order of `graph`.
[[nodiscard]] Graph with_plain_boundary(const Graph& graph);

}  // namespace tosaic::exec
