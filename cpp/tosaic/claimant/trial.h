// trial: what lowering says about one node.
//
//   %a: i8[...] q(..), %b: i8[...] q(..)       the node alone: its operands are inputs, but for constants;
//   %c = add(%a, %b)                           its results are outputs
//   return %c
//
// This graph is lowered for a target. So a verdict agrees with what lowering can do, by construction.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"
#include "tosaic/pipeline/lower.h"

namespace tosaic::claimant {

// Nodes as a graph of their own, at a stage that may contain them. Values that they read from other nodes are
// inputs, and values that other nodes or the caller read are outputs. Values have their types; dim orders are
// logical. `nodes` ascend.
[[nodiscard]] std::shared_ptr<const Graph> alone(const Graph& graph, std::span<const NodeId> nodes,
                                                 Stage stage);

// If two nodes of a graph have the same key, they lower in the same way. The key has the operator, its
// attributes, the types of operands and results, which operands are the same value, and the constants. It is
// empty for a foreign node, and for a node with regions.
[[nodiscard]] std::string trial_key(const Graph& graph, const Node& node);

// Like pipeline::try_to_lower(), but without the verifier between passes.
[[nodiscard]] pipeline::Trial trial_of(const std::shared_ptr<const Graph>& graph,
                                       const pipeline::Pipeline& pipeline);

}  // namespace tosaic::claimant
