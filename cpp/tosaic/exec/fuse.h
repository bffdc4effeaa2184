// fuse: chains of nodes that one kernel does.
//
//   conv -> a -> rescale -> b -> clamp -> c        one kernel from the operands of conv to c, if nobody else
//                                                  reads a or b
//
// The values in between are not computed, so a run that shows them runs the nodes one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::exec {

struct Chain {
  std::vector<std::uint32_t> followers;  // nodes, in order
  kernels::Kernel kernel;                // gives the last one's result
};

class ChainFinder {
 public:
  // `takes_part`: of node indices; chains consist of such nodes only.
  ChainFinder(const Graph& graph, std::function<bool(std::uint32_t)> takes_part);

  // The longest chain that a kernel is known for, from this node on.
  [[nodiscard]] std::optional<Chain> find(std::uint32_t node, const kernels::Options& options) const;

 private:
  [[nodiscard]] std::optional<std::uint32_t> follower(std::uint32_t node) const;

  const Graph& graph_;
  std::function<bool(std::uint32_t)> takes_part_;
  std::vector<std::uint32_t> reader_;  // per value: its only reader, or kNobody
};

}  // namespace tosaic::exec
