// MaxFlow: on graphs whose nodes may each be fed by the source and drained by the sink.
//
// Two trees of arcs with room grow, from the nodes that the source feeds and to those that the sink drains.
// Where they touch, the path is filled; nodes cut off by a full arc look for another parent in their tree, or
// become free. The trees are kept from path to path, so that most of the work is near the changes. Nothing
// recurses, and the arrays are kept from one graph to the next.
//
// Y. Boykov, V. Kolmogorov, An experimental comparison of min-cut/max-flow algorithms for energy minimization
// in vision, IEEE PAMI 26(9), 2004.
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
  void feed(std::uint32_t node, Amount amount) { nodes_[node].excess += amount; }

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
  enum class Tree : std::uint8_t { kFree, kSource, kSink };
  struct Node {
    std::uint32_t first = 0;   // arc
    std::uint32_t parent = 0;  // the arc to it, or what max_flow.cpp says
    std::uint32_t time = 0;    // when `distance`, of arcs to the root, was true
    std::uint32_t distance = 0;
    Amount excess = 0;  // room from the source; to the sink where negative
    Tree tree = Tree::kFree;
    bool active = false;
  };

  // Room towards the sink between a node and the one its arc leads to, if both were in that tree.
  [[nodiscard]] Amount room(std::uint32_t arc, Tree tree) const {
    return arcs_[tree == Tree::kSource ? arc : arc ^ 1u].room;
  }
  void plant();
  void activate(std::uint32_t node);
  [[nodiscard]] std::uint32_t grow(std::uint32_t at);
  Amount fill(std::uint32_t middle);
  void for_path(std::uint32_t at, Amount* least, Amount amount);
  void adopt(std::uint32_t orphan);
  [[nodiscard]] std::uint32_t distance_to_root(std::uint32_t node);
  void release(std::uint32_t orphan);

  std::vector<Node> nodes_;
  std::vector<Arc> arcs_;  // arc i and its reverse at 2 i and 2 i + 1
  std::vector<std::uint32_t> active_, orphans_;
  std::uint32_t time_ = 0;
};

}  // namespace tosaic::layout
