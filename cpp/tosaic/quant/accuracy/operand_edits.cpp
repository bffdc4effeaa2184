#include "tosaic/quant/accuracy/operand_edits.h"

#include <algorithm>

#include "tosaic/ir/rewriter.h"

namespace tosaic::quant {

Graph without_unread_constants(const Graph& graph) {
  std::vector<bool> values(graph.values().size(), false);
  for (const Node& node : graph.nodes())
    for (const ValueId operand : graph.operands(node))
      if (operand.valid()) values[operand.index()] = true;
  for (const Output& output : graph.outputs()) values[output.value.index()] = true;
  return Rewriter::pruned(graph, values, std::vector<bool>(graph.nodes().size(), true));
}

Graph with_operands(const Graph& graph, const OperandEdits& edits) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const auto edit = edits.find(graph.id(node));
    if (edit == edits.end()) {
      rewriter.copy(node);
      continue;
    }
    static_cast<void>(rewriter.begin_output(node));
    std::vector<ValueId> operands = rewriter.map_operands(node);
    for (const auto& [operand, constant] : edit->second) {
      operands.resize(std::max(operands.size(), operand + 1));
      operands[operand] = rewriter.constant(node, constant);
    }
    rewriter.replace(node, rewriter.emit(node, node.op, *node.attrs, operands));
  }
  const std::optional<Graph> out = std::move(rewriter).finish();
  return without_unread_constants(out ? *out : graph);
}

ConstantRef edited_constant(const Constant& like, const Shape& shape, const std::vector<double>& values) {
  return make_constant(like.name, like.dtype, shape, values);
}

std::vector<double> elements_of(const Constant& constant) {
  const Elements elements(constant);
  std::vector<double> out(elements.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = elements.as_double(i);
  return out;
}

}  // namespace tosaic::quant
