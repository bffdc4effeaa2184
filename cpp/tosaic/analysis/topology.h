// Topology: the graph as nodes and edges between nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::analysis {

// Node edges both ways, each list sorted and without duplicates. For graphs and for quotients of them.
struct Adjacency {
  std::vector<std::vector<std::uint32_t>> predecessors;
  std::vector<std::vector<std::uint32_t>> successors;
};
[[nodiscard]] Adjacency adjacency(const Graph& graph);

// Per node: the number of nodes on the longest path that ends in it, itself not counted.
[[nodiscard]] std::vector<std::uint32_t> depths(const Graph& graph);

// A topological order of any node relation, smallest index first among the ready ones; shorter than the
// number of nodes exactly if there is a cycle (it then holds the nodes that no cycle leads to).
[[nodiscard]] std::vector<std::uint32_t> topological_order(const Adjacency& edges);

}  // namespace tosaic::analysis
