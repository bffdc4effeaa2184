#include "tosaic/layout/max_flow.h"

#include <algorithm>

namespace tosaic::layout {
namespace {

constexpr std::uint32_t kNone = 0xffffffffu;

}  // namespace

void MaxFlow::reset(std::uint32_t nodes) {
  arcs_.clear();
  head_.assign(nodes, kNone);
  excess_.assign(nodes, 0);
}

std::uint32_t MaxFlow::add_node() {
  head_.push_back(kNone);
  excess_.push_back(0);
  return static_cast<std::uint32_t>(head_.size() - 1);
}

std::uint32_t MaxFlow::add_arc(std::uint32_t from, std::uint32_t to, Amount capacity) {
  const auto arc = static_cast<std::uint32_t>(arcs_.size());
  arcs_.push_back({to, head_[from], capacity});
  head_[from] = arc;
  arcs_.push_back({from, head_[to], 0});
  head_[to] = arc + 1;
  return arc / 2;
}

MaxFlow::Amount MaxFlow::solve() {
  Amount total = 0;
  for (;;) {
    find_levels();
    current_ = head_;
    Amount sent = 0;
    for (std::uint32_t node = 0; node < head_.size(); ++node)
      if (excess_[node] > 0 && level_[node] != kNone) sent += saturate_from(node);
    if (sent == 0) return total;
    total += sent;
  }
}

// Breadth first from the nodes with room to the sink, against the arcs.
void MaxFlow::find_levels() {
  level_.assign(head_.size(), kNone);
  queue_.clear();
  for (std::uint32_t node = 0; node < head_.size(); ++node) {
    if (excess_[node] >= 0) continue;
    level_[node] = 0;
    queue_.push_back(node);
  }
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const std::uint32_t node = queue_[i];
    for (std::uint32_t arc = head_[node]; arc != kNone; arc = arcs_[arc].next) {
      const std::uint32_t before = arcs_[arc].to;
      if (level_[before] != kNone || arcs_[arc ^ 1u].room == 0) continue;
      level_[before] = level_[node] + 1;
      queue_.push_back(before);
    }
  }
}

// Depth first down the levels, until the root has nothing left or no way.
MaxFlow::Amount MaxFlow::saturate_from(std::uint32_t root) {
  Amount sent = 0;
  path_.clear();
  std::uint32_t node = root;
  for (;;) {
    if (excess_[node] < 0) {
      sent += push_path(root);
      if (excess_[root] == 0) return sent;
      node = path_.empty() ? root : arcs_[path_.back()].to;
      if (excess_[node] < 0) continue;
    }
    std::uint32_t& arc = current_[node];
    while (arc != kNone && (arcs_[arc].room == 0 || level_[arcs_[arc].to] == kNone ||
                            level_[arcs_[arc].to] + 1 != level_[node]))
      arc = arcs_[arc].next;
    if (arc != kNone) {
      path_.push_back(arc);
      node = arcs_[arc].to;
    } else if (node == root) {
      return sent;
    } else {
      node = arcs_[path_.back() ^ 1u].to;
      path_.pop_back();
      current_[node] = arcs_[current_[node]].next;
    }
  }
}

// Sends what the path from the root allows, and shortens it to before its first full arc.
MaxFlow::Amount MaxFlow::push_path(std::uint32_t root) {
  const std::uint32_t end = path_.empty() ? root : arcs_[path_.back()].to;
  Amount amount = std::min(excess_[root], -excess_[end]);
  for (const std::uint32_t arc : path_) amount = std::min(amount, arcs_[arc].room);
  std::size_t keep = path_.size();
  for (std::size_t i = path_.size(); i-- > 0;) {
    arcs_[path_[i]].room -= amount;
    arcs_[path_[i] ^ 1u].room += amount;
    if (arcs_[path_[i]].room == 0) keep = i;
  }
  excess_[root] -= amount;
  excess_[end] += amount;
  path_.resize(keep);
  return amount;
}

std::vector<char> MaxFlow::source_side() const {
  std::vector<char> reached(head_.size(), 0);
  std::vector<std::uint32_t> queue;
  for (std::uint32_t node = 0; node < head_.size(); ++node) {
    if (excess_[node] <= 0) continue;
    reached[node] = 1;
    queue.push_back(node);
  }
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (std::uint32_t arc = head_[queue[i]]; arc != kNone; arc = arcs_[arc].next) {
      if (arcs_[arc].room == 0 || reached[arcs_[arc].to]) continue;
      reached[arcs_[arc].to] = 1;
      queue.push_back(arcs_[arc].to);
    }
  }
  return reached;
}

}  // namespace tosaic::layout
