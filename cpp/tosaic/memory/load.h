// load: the bytes that each step needs. Adding bytes to a range of steps, and finding the maximum of a range,
// takes logarithmic time.
//
//   a tree over the steps:       each node has two numbers: the bytes that were added to all of its steps,
//        [0..3]                  and the maximum over its steps of the bytes that were added to them by the
//     [0,1]   [2,3]              node and the nodes below it
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tosaic/analysis/liveness.h"

namespace tosaic::memory {

class Load {
 public:
  explicit Load(std::size_t steps) : steps_(steps), nodes_(4 * steps) {}

  void add(const analysis::Lifetime& live, std::int64_t bytes) {
    if (bytes != 0) add({0, 0, steps_ - 1}, live, bytes);
  }
  [[nodiscard]] std::int64_t greatest() const { return nodes_[0].greatest; }
  [[nodiscard]] std::int64_t greatest(const analysis::Lifetime& live) const {
    return greatest({0, 0, steps_ - 1}, live);
  }

 private:
  static constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::min() / 2;

  struct Node {
    std::int64_t added = 0, greatest = 0;
  };
  // A node of the tree, and the first and last of its steps.
  struct Place {
    std::size_t node = 0, first = 0, last = 0;
    [[nodiscard]] Place left() const { return {2 * node + 1, first, (first + last) / 2}; }
    [[nodiscard]] Place right() const { return {2 * node + 2, (first + last) / 2 + 1, last}; }
    [[nodiscard]] bool is_apart(const analysis::Lifetime& live) const {
      return last < live.first || live.last < first;
    }
    [[nodiscard]] bool is_inside(const analysis::Lifetime& live) const {
      return live.first <= first && last <= live.last;
    }
  };

  void add(const Place& place, const analysis::Lifetime& live, std::int64_t bytes) {
    if (place.is_apart(live)) return;
    Node& node = nodes_[place.node];
    if (place.is_inside(live)) {
      node.added += bytes;
      node.greatest += bytes;
      return;
    }
    add(place.left(), live, bytes);
    add(place.right(), live, bytes);
    node.greatest =
        node.added + std::max(nodes_[place.left().node].greatest, nodes_[place.right().node].greatest);
  }

  [[nodiscard]] std::int64_t greatest(const Place& place, const analysis::Lifetime& live) const {
    if (place.is_apart(live)) return kNothing;
    const Node& node = nodes_[place.node];
    if (place.is_inside(live)) return node.greatest;
    return node.added + std::max(greatest(place.left(), live), greatest(place.right(), live));
  }

  std::size_t steps_;
  std::vector<Node> nodes_;
};

}  // namespace tosaic::memory
