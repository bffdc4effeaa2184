// fuse: finds chains of nodes that one kernel computes.
//
//   conv -> a -> rescale -> b -> clamp -> c        one kernel reads the operands of conv and writes c, if a
//                                                  and b have no other reader
//
// The values between the nodes (a, b) are not computed. A run that must show them runs the nodes one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::exec {

struct Chain {
  std::vector<std::uint32_t> followers;  // node indices, in execution order
  kernels::Kernel kernel;                // computes the result of the last follower
};

class ChainFinder {
 public:
  // `takes_part` returns true if the node of this index may be part of a chain.
  ChainFinder(const Graph& graph, std::function<bool(std::uint32_t)> takes_part);

  // The longest chain that starts with this node and has a kernel. Returns nothing if there is no such chain.
  [[nodiscard]] std::optional<Chain> find(std::uint32_t node, const kernels::Options& options) const;

 private:
  [[nodiscard]] std::optional<std::uint32_t> follower(std::uint32_t node) const;

  const Graph& graph_;
  std::function<bool(std::uint32_t)> takes_part_;
  std::vector<std::uint32_t> reader_;  // per value: its only reader, or kNobody
};

}  // namespace tosaic::exec
