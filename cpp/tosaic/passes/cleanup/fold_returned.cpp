#include <vector>

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/fold_value.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

// An output of the simplified graph has the same position and the same value as in the graph itself. Only
// outputs that became constants are taken from the simplified graph, so that the graph still has all other
// calls of the program that was imported.
std::optional<Graph> fold_returned(const Graph& graph) {
  const std::optional<Graph> simple = simplify(graph);
  if (!simple) return std::nullopt;
  std::vector<ConstantRef> known(graph.values().size());
  for (std::size_t i = 0; i < graph.outputs().size(); ++i) {
    const ValueId returned = graph.outputs()[i].value;
    const Node* const node = graph.producer(returned);
    if (node == nullptr || node->result_count != 1 || !node->regions.empty()) continue;
    known[returned.index()] = fold_value(*simple, simple->outputs()[i].value);
  }
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const ValueId result = node.result_count == 1 ? graph.result(node) : ValueId();
    if (!result.valid() || !known[result.index()]) {
      rewriter.copy(node);
      continue;
    }
    const ValueId constant = rewriter.constant(node, known[result.index()]);
    rewriter.begin_output(node).set_order(constant, graph.type(result).order);
    rewriter.replace(node, constant);
  }
  return std::move(rewriter).finish();
}

}  // namespace tosaic::passes
