// dag: what partitioning has to know of a graph: which nodes read which nodes.
//
//   0 -> 1 -> 3      nodes 0 to 3, in topological order: each edge goes from a lower number to a higher one
//   0 -> 2 -> 3      inputs(3) = 1, 2; users(0) = 1, 2
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace tosaic::partition {

using DagNode = std::uint32_t;

struct Edge {
  DagNode from = 0;
  DagNode to = 0;
  auto operator<=>(const Edge&) const = default;
};

class Dag {
 public:
  Dag() = default;
  // The edges may come in any order and may repeat. Throws InvalidGraph unless from < to < size for each of
  // them.
  Dag(std::uint32_t size, std::vector<Edge> edges);

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::span<const Edge> edges() const { return edges_; }  // ascending, each once
  // The nodes that the node reads, and those that read it: ascending, each once.
  [[nodiscard]] std::span<const DagNode> inputs(DagNode node) const {
    return std::span(inputs_).subspan(first_input_[node], first_input_[node + 1] - first_input_[node]);
  }
  [[nodiscard]] std::span<const DagNode> users(DagNode node) const {
    return std::span(users_).subspan(first_user_[node], first_user_[node + 1] - first_user_[node]);
  }

 private:
  std::uint32_t size_ = 0;
  std::vector<Edge> edges_;
  std::vector<DagNode> inputs_, users_;
  std::vector<std::size_t> first_input_, first_user_;  // by node, and the end
};

}  // namespace tosaic::partition
