// Regions: what passes do with the graphs inside cond and while_loop.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/rewriter.h"

namespace tosaic::passes {

// `run` on every region of the graph's nodes, of which nothing is changed else; nothing where none changes.
[[nodiscard]] std::optional<Graph> in_regions(const Graph& graph,
                                              const std::function<std::optional<Graph>(const Graph&)>& run);

// The nodes of a region in place of `at`, the node being visited; `inputs` (values of out()) stand for the
// region's. Gives its outputs.
[[nodiscard]] std::vector<ValueId> inline_region(Rewriter& rewriter, const Node& at, const Graph& region,
                                                 std::span<const ValueId> inputs);

}  // namespace tosaic::passes
