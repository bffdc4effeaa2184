// regions: rewrites the graphs inside cond and while_loop nodes, for passes.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/rewriter.h"

namespace tosaic::passes {

// Applies `run` to every region of the graph's nodes and copies everything else unchanged. Returns nothing if
// `run` changed no region.
[[nodiscard]] std::optional<Graph> in_regions(const Graph& graph,
                                              const std::function<std::optional<Graph>(const Graph&)>& run);

// Emits the nodes of a region in place of `at`, the node being visited. `inputs` are the values of the new
// graph that replace the region's inputs. Returns the values of the new graph that the region's outputs
// became.
[[nodiscard]] std::vector<ValueId> inline_region(Rewriter& rewriter, const Node& at, const Graph& region,
                                                 std::span<const ValueId> inputs);

}  // namespace tosaic::passes
