// regions: the graphs inside cond and while_loop nodes of the host, which are split like the program itself.
//
//   host   y -> cond(p, y, weight)                       the weight is a constant of the program
//            then:  y', w' -> linear(y', w') -> sort     w' becomes a constant, so that a group has the
//                                                        weight
//            else:  y', w' -> tanh(y')
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::partition {

// The region of a node, by index, with constants in place of the inputs that are constants of the graph in
// each run. The inputs stay, and nothing reads them.
[[nodiscard]] Graph region_with_constants(const Graph& graph, const Node& node, std::size_t index);

using Regions = std::map<NodeId, std::vector<std::shared_ptr<const Graph>>>;
// The graph with other regions of these nodes. The types of inputs and outputs of regions are the same.
[[nodiscard]] Graph with_regions(const Graph& graph, const Regions& regions);

}  // namespace tosaic::partition
