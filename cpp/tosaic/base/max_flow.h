// max_flow: computes the maximum flow in graphs whose nodes may each be fed by the source or drained by the
// sink.
//
// Two trees of arcs with room (residual capacity) grow, one from the nodes that the source feeds, and one
// towards the nodes that the sink drains. Where the trees touch, the path from source to sink is filled
// (augmented). Nodes that a full arc cuts off look for another parent in their tree, or become free. The
// trees are reused for the next path, so that most of the work is near the changes. No function is
// recursive, and the arrays are reused for the next graph.
//
// Y. Boykov, V. Kolmogorov, An experimental comparison of min-cut/max-flow algorithms for energy
// minimization in vision, IEEE PAMI 26(9), 2004.
#pragma once

#include <cstdint>
#include <vector>

namespace tosaic {

class MaxFlow {
 public:
  using Amount = std::int64_t;

  // Removes all nodes and arcs, then adds nodes 0..nodes-1.
  void reset(std::uint32_t nodes);
  std::uint32_t add_node();
  // Returns the number of the arc; arcs are numbered from 0. The capacity is not negative. To express an
  // infinite capacity, use the sum of all other capacities.
  std::uint32_t add_arc(std::uint32_t from, std::uint32_t to, Amount capacity);
  // Adds an arc from the source to the node, or from the node to the sink if the amount is negative. Amounts
  // of one node are added up, so flow from the source through this node directly to the sink does not count.
  void feed(std::uint32_t node, Amount amount) { nodes_[node].excess += amount; }

  // Returns the flow from source to sink. The function may be called once per graph.
  Amount solve();
  [[nodiscard]] Amount flow(std::uint32_t arc) const { return arcs_[2 * arc + 1].room; }
  // After solve(), by node: 1 if the node is on the side of the source. The cut is the minimum cut with the
  // fewest nodes on that side.
  [[nodiscard]] std::vector<char> source_side() const;

 private:
  struct Arc {
    std::uint32_t to = 0;
    std::uint32_t next = 0;  // the next arc of the same node
    Amount room = 0;
  };
  enum class Tree : std::uint8_t { kFree, kSource, kSink };
  struct Node {
    std::uint32_t first = 0;     // the first arc of the node
    std::uint32_t parent = 0;    // the arc to the parent, or kNone, kRoot or kOrphan (max_flow.cpp)
    std::uint32_t time = 0;      // time at which `distance` was found
    std::uint32_t distance = 0;  // the number of arcs to the root
    Amount excess = 0;           // room from the source; if negative, to the sink
    Tree tree = Tree::kFree;
    bool active = false;
  };

  // The room, in the direction from source to sink, between a node and the node at the other end of its arc:
  // the room of the arc itself in the source's tree, that of the reverse arc in the sink's tree.
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

}  // namespace tosaic
