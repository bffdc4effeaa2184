#include "tosaic/base/max_flow.h"

#include <algorithm>

namespace tosaic {
namespace {

constexpr std::uint32_t kNone = 0xffffffffu;
constexpr std::uint32_t kRoot = 0xfffffffeu;    // as parent: the source or the sink
constexpr std::uint32_t kOrphan = 0xfffffffdu;  // as parent: adopt() has to find one
constexpr std::uint32_t kFar = 0xffffffffu;     // as distance: the node has no path to a root

}  // namespace

void MaxFlow::reset(std::uint32_t nodes) {
  arcs_.clear();
  nodes_.clear();
  for (std::uint32_t i = 0; i < nodes; ++i) add_node();
}

std::uint32_t MaxFlow::add_node() {
  nodes_.push_back({.first = kNone, .parent = kNone});
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::uint32_t MaxFlow::add_arc(std::uint32_t from, std::uint32_t to, Amount capacity) {
  const auto arc = static_cast<std::uint32_t>(arcs_.size());
  arcs_.push_back({to, nodes_[from].first, capacity});
  nodes_[from].first = arc;
  arcs_.push_back({from, nodes_[to].first, 0});
  nodes_[to].first = arc + 1;
  return arc / 2;
}

MaxFlow::Amount MaxFlow::solve() {
  plant();
  Amount total = 0;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const std::uint32_t node = active_[i];
    while (nodes_[node].tree != Tree::kFree) {
      const std::uint32_t middle = grow(node);
      if (middle == kNone) break;
      total += fill(middle);
      ++time_;
      for (std::size_t k = 0; k < orphans_.size(); ++k) adopt(orphans_[k]);
      orphans_.clear();
    }
    nodes_[node].active = false;
  }
  return total;
}

void MaxFlow::plant() {
  time_ = 1;
  active_.clear();
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.excess == 0) continue;
    node.tree = node.excess > 0 ? Tree::kSource : Tree::kSink;
    node.parent = kRoot;
    node.distance = 1;
    node.time = time_;
    activate(i);
  }
}

void MaxFlow::activate(std::uint32_t node) {
  if (nodes_[node].active) return;
  nodes_[node].active = true;
  active_.push_back(node);
}

// Adds free neighbours to the tree of `at`. Returns an arc from the source's tree to the sink's, or kNone.
std::uint32_t MaxFlow::grow(std::uint32_t at) {
  const Node& node = nodes_[at];
  for (std::uint32_t arc = node.first; arc != kNone; arc = arcs_[arc].next) {
    if (room(arc, node.tree) == 0) continue;
    Node& next = nodes_[arcs_[arc].to];
    if (next.tree != Tree::kFree && next.tree != node.tree)
      return node.tree == Tree::kSource ? arc : arc ^ 1u;
    const bool is_free = next.tree == Tree::kFree;
    if (!is_free && (next.time > node.time || next.distance <= node.distance)) continue;
    next.tree = node.tree;  // `next` is free, or nearer to the root by this arc
    next.parent = arc ^ 1u;
    next.time = node.time;
    next.distance = node.distance + 1;
    if (is_free) activate(arcs_[arc].to);
  }
  return kNone;
}

MaxFlow::Amount MaxFlow::fill(std::uint32_t middle) {
  const std::uint32_t ends[] = {arcs_[middle ^ 1u].to, arcs_[middle].to};
  Amount amount = arcs_[middle].room;
  for (const std::uint32_t end : ends) for_path(end, &amount, 0);
  arcs_[middle].room -= amount;
  arcs_[middle ^ 1u].room += amount;
  for (const std::uint32_t end : ends) for_path(end, nullptr, amount);
  return amount;
}

// Walks from a node to its root. If `least` is not null, lowers *least to the least room on the path. If
// `least` is null, sends `amount` along the path; nodes whose arc to the parent becomes full become orphans.
void MaxFlow::for_path(std::uint32_t at, Amount* least, Amount amount) {
  const Tree tree = nodes_[at].tree;
  for (;;) {
    Node& node = nodes_[at];
    const bool root = node.parent == kRoot;
    const std::uint32_t used = root ? kNone : tree == Tree::kSource ? node.parent ^ 1u : node.parent;
    const std::uint32_t next = root ? at : arcs_[node.parent].to;
    const Amount left = root ? (tree == Tree::kSource ? node.excess : -node.excess) : arcs_[used].room;
    if (least != nullptr) {
      *least = std::min(*least, left);
    } else {
      if (root) {
        node.excess += tree == Tree::kSource ? -amount : amount;
      } else {
        arcs_[used].room -= amount;
        arcs_[used ^ 1u].room += amount;
      }
      if (left == amount) {
        node.parent = kOrphan;
        orphans_.push_back(at);
      }
    }
    if (root) return;
    at = next;
  }
}

// Connects the orphan to the nearest parent that still leads to a root, or releases it if there is none.
void MaxFlow::adopt(std::uint32_t orphan) {
  Node& node = nodes_[orphan];
  std::uint32_t parent = kNone, nearest = kFar;
  for (std::uint32_t arc = node.first; arc != kNone; arc = arcs_[arc].next) {
    const std::uint32_t other = arcs_[arc].to;
    if (nodes_[other].tree != node.tree || room(arc ^ 1u, node.tree) == 0) continue;
    const std::uint32_t distance = distance_to_root(other);
    if (distance >= nearest) continue;
    nearest = distance;
    parent = arc;
  }
  if (parent == kNone) return release(orphan);
  node.parent = parent;
  node.time = time_;
  node.distance = nearest + 1;
}

// The distance to the root of the node's tree, or kFar if the node is not connected to a root. Stores the
// distances of all nodes on the path; they are valid until the next path is filled.
std::uint32_t MaxFlow::distance_to_root(std::uint32_t node) {
  std::uint32_t distance = 0;
  for (std::uint32_t at = node;; at = arcs_[nodes_[at].parent].to) {
    if (nodes_[at].time == time_) {
      distance += nodes_[at].distance;
      break;
    }
    if (nodes_[at].parent == kOrphan || nodes_[at].parent == kNone) return kFar;
    ++distance;
    if (nodes_[at].parent == kRoot) break;
  }
  std::uint32_t left = distance;
  for (std::uint32_t at = node; nodes_[at].time != time_; at = arcs_[nodes_[at].parent].to) {
    nodes_[at].time = time_;
    nodes_[at].distance = left--;
    if (nodes_[at].parent == kRoot) break;
  }
  return distance;
}

// Removes an orphan without a parent from its tree. Its children become orphans. Neighbours that could add
// it to the tree again become active.
void MaxFlow::release(std::uint32_t orphan) {
  Node& node = nodes_[orphan];
  for (std::uint32_t arc = node.first; arc != kNone; arc = arcs_[arc].next) {
    const std::uint32_t other = arcs_[arc].to;
    Node& next = nodes_[other];
    if (next.tree != node.tree) continue;
    if (room(arc ^ 1u, node.tree) != 0) activate(other);
    if (next.parent >= kOrphan || arcs_[next.parent].to != orphan) continue;
    next.parent = kOrphan;
    orphans_.push_back(other);
  }
  node.tree = Tree::kFree;
  node.parent = kNone;
}

std::vector<char> MaxFlow::source_side() const {
  std::vector<char> reached(nodes_.size(), 0);
  std::vector<std::uint32_t> queue;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].excess <= 0) continue;
    reached[i] = 1;
    queue.push_back(i);
  }
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (std::uint32_t arc = nodes_[queue[i]].first; arc != kNone; arc = arcs_[arc].next) {
      if (arcs_[arc].room == 0 || reached[arcs_[arc].to]) continue;
      reached[arcs_[arc].to] = 1;
      queue.push_back(arcs_[arc].to);
    }
  }
  return reached;
}

}  // namespace tosaic
