// trial: what lowering says about one node.
//
//   %a: i8[...] q(..), %b: i8[...] q(..)       the node alone: its operands are inputs, but for constants;
//   %c = add(%a, %b)                           its results are outputs
//   return %c
//
// This graph is lowered for a target. So a verdict agrees with what lowering can do, by construction.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"
#include "tosaic/pipeline/pipeline.h"

namespace tosaic::claimant {

// The node as a graph of its own, at a stage that may contain it. Values have their types; dim orders are logical.
[[nodiscard]] std::shared_ptr<const Graph> alone(const Graph& graph, const Node& node, Stage stage);

// A text that is equal for nodes of a graph on which lowering cannot decide differently: the operator, its attributes,
// the types of operands and results, which operands are the same value, and the constants. Empty for a node whose
// regions or description may differ otherwise.
[[nodiscard]] std::string trial_key(const Graph& graph, const Node& node);

struct Trial {
  std::vector<ErrorParts> problems;
  std::shared_ptr<const Graph> tosa;  // null if there are problems
};
[[nodiscard]] Trial try_to_lower(const std::shared_ptr<const Graph>& graph,
                                 const pipeline::Pipeline& pipeline);

}  // namespace tosaic::claimant
