// MaxFlow: Dinic's algorithm on graphs whose nodes may each be fed by the source and drained by the sink.
//
// Levels count arcs to the nearest node with room to the sink; each round saturates all shortest paths.
// Nothing recurses, and the arrays are kept from one graph to the next. E. A. Dinic, Algorithm for solution
// of a problem of maximum flow in networks with power estimation, 1970.
#pragma once

#include <cstdint>
#include <vector>

namespace tosaic::layout {

class MaxFlow {
 public:
  using Amount = std::int64_t;

  // Forgets everything; then nodes 0..nodes-1.
  void reset(std::uint32_t nodes);
  std::uint32_t add_node();
  // Arcs are numbered from 0. The capacity is not negative; an infinite one is the sum of all others.
  std::uint32_t add_arc(std::uint32_t from, std::uint32_t to, Amount capacity);
  // Source to node, or node to sink where the amount is negative; adds to what was there, where a path from
  // source to sink through the node alone counts as nothing.
  void feed(std::uint32_t node, Amount amount) { excess_[node] += amount; }

  // The flow sent from source to sink. Call once per graph.
  Amount solve();
  [[nodiscard]] Amount flow(std::uint32_t arc) const { return arcs_[2 * arc + 1].room; }
  // After solve(): the minimum cut with the fewest nodes on the side of the source.
  [[nodiscard]] std::vector<char> source_side() const;

 private:
  struct Arc {
    std::uint32_t to = 0;
    std::uint32_t next = 0;  // of the same node
    Amount room = 0;
  };
  void find_levels();
  Amount saturate_from(std::uint32_t root);
  Amount push_path(std::uint32_t root);

  std::vector<Arc> arcs_;  // arc i and its reverse at 2 i and 2 i + 1
  std::vector<std::uint32_t> head_, current_, level_, queue_;
  std::vector<std::uint32_t> path_;  // arcs from the root
  std::vector<Amount> excess_;
};

}  // namespace tosaic::layout
