#include "tosaic/partition/dag.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tosaic/base/error.h"

namespace tosaic::partition {

Dag::Dag(std::uint32_t size, std::vector<Edge> edges) : size_(size), edges_(std::move(edges)) {
  for (const Edge& edge : edges_)
    if (edge.from >= edge.to || edge.to >= size)
      throw InvalidGraph({.where = "partition",
                          .what = "an edge is not in topological order",
                          .expected = "from < to < " + std::to_string(size),
                          .got = std::to_string(edge.from) + " -> " + std::to_string(edge.to)});
  std::ranges::sort(edges_);
  edges_.erase(std::ranges::unique(edges_).begin(), edges_.end());

  first_input_.assign(size_ + std::size_t{1}, 0);
  first_user_.assign(size_ + std::size_t{1}, 0);
  for (const Edge& edge : edges_)
    ++first_input_[edge.to + std::size_t{1}], ++first_user_[edge.from + std::size_t{1}];
  for (std::size_t i = 0; i < size_; ++i)
    first_input_[i + 1] += first_input_[i], first_user_[i + 1] += first_user_[i];
  inputs_.resize(edges_.size());
  users_.resize(edges_.size());
  std::vector<std::size_t> next(first_input_.begin(), first_input_.end() - 1);
  for (std::size_t i = 0; i < edges_.size(); ++i) {  // sorted by node, so that the lists are ascending, too
    users_[i] = edges_[i].to;
    inputs_[next[edges_[i].to]++] = edges_[i].from;
  }
}

}  // namespace tosaic::partition
