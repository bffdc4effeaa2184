// graph_calls: the calls of a graph, so that plans and rules can be about a program without torch.
//
//   %conv2d = conv(%x, %w)         loc("conv2d")       x: placeholder   w: get_attr
//   %pool.sums = ..                loc("pool")         conv2d: call, reads x and w
//   %pool = mul(%pool.sums, ..)    loc("pool")         pool: call of two nodes, reads conv2d
//
// Nodes that follow each other and have the same first FX node in their origins are one call, since import
// makes one or several nodes of a call. A node without an origin is a call of its own. If nodes of several
// calls were merged (a batch norm was folded into a convolution), the call has the first name, and the others
// are aliases.
//
// If several results of a call are read, the call computes a tuple. It has no value, and each of these
// results is a call of its own, like a getitem of torch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/quant/annotation/annotation.h"

namespace tosaic::quant {

struct GraphCalls {
  std::shared_ptr<CallGraph> calls;
  std::vector<ValueId> values;             // by call: the tensor that it computes; invalid: a tuple, or none
  std::vector<NodeIndex> of_node;          // by node of the graph
  std::vector<std::vector<NodeId>> nodes;  // by call, in order
};

// `module_types` has the types of modules by path, as far as they are known.
[[nodiscard]] GraphCalls graph_calls(const Graph& graph,
                                     const std::map<std::string, std::string>& module_types = {});

// A place that reads a value: operand `operand` of node number `node` of a call. These places are the same in
// every graph that was imported from the same calls, whatever the names of constants are.
struct ReadPlace {
  std::uint32_t node = 0;
  std::uint32_t operand = 0;
  auto operator<=>(const ReadPlace&) const = default;
};

// The places at which the nodes of a call read a value.
[[nodiscard]] std::vector<ReadPlace> reads_of(const Graph& graph, std::span<const NodeId> nodes,
                                              ValueId value);

}  // namespace tosaic::quant
