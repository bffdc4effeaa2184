// fold-constants: what depends on no input is computed once, here.
//
//   %i = arange(){...}  %j = unsqueeze(%i)  %m = le(%i, %j)      ->      constant %m: bool[32,32]
//
// Not folded: opaque nodes and nodes with regions, and operands whose data is not bound (a text form read without its
// weights). Values whose only use is another folded node leave no constant behind.

#include "tosaic/exec/fold.h"

#include <algorithm>

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

std::optional<Graph> fold_constants(const Graph& graph) {
  Rewriter rewriter(graph);
  std::vector<ConstantRef> known(graph.values().size());
  for (std::size_t i = 0; i < known.size(); ++i) known[i] = graph.values()[i].constant;

  std::vector<ConstantRef> operands;
  for (const Node& node : graph.nodes()) {
    operands.clear();
    bool foldable = node.op != Op::kOpaque && node.regions.empty() && node.result_count != 0;
    for (const ValueId operand : graph.operands(node)) {
      if (!foldable) break;
      operands.push_back(operand.valid() ? known[operand.index()] : nullptr);
      foldable = !operand.valid() || (operands.back() && operands.back()->storage.bound());
    }
    std::optional<std::vector<ConstantRef>> results;
    if (foldable) results = exec::evaluate(graph, node, operands);
    if (!results) {
      rewriter.keep(node);
      continue;
    }
    std::vector<ValueId> ids;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph.result(node, r);
      known[result.index()] = (*results)[r];
      ids.push_back(rewriter.constant(node, (*results)[r]));
      rewriter.out(node).set_order(ids.back(), graph.type(result).order);
    }
    rewriter.replace(node, ids);
  }
  std::optional<Graph> out = std::move(rewriter).finish();
  if (!out) return out;
  std::optional<Graph> clean = dead_code(*out);
  return clean ? std::move(clean) : std::move(out);
}

}  // namespace tosaic::passes
