// Topology: the graph as nodes and edges between nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::analysis {

// Edges between nodes in both directions. Each list is sorted and has no duplicates. Also used for quotients
// of graphs, where one node represents a group of nodes.
struct Adjacency {
  std::vector<std::vector<std::uint32_t>> predecessors;
  std::vector<std::vector<std::uint32_t>> successors;
};
[[nodiscard]] Adjacency adjacency(const Graph& graph);

// Per node: the number of nodes on the longest path that ends at it, the node itself not counted.
[[nodiscard]] std::vector<std::uint32_t> depths(const Graph& graph);

// A topological order. Among the nodes that are ready, the smallest index comes first. Nodes on a cycle, or
// reachable from one, are left out, so the order is shorter than the number of nodes exactly if there is a
// cycle.
[[nodiscard]] std::vector<std::uint32_t> topological_order(const Adjacency& edges);

}  // namespace tosaic::analysis
