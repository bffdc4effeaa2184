// split-tables: gives each TABLE a sum, difference or product of its own to read.
//
//   %d = rescale(sub(%x, %top))                  %d   = rescale(sub(%x, %top))    %a = table(%d, %high)
//   %a = table(%d, %high)                 ->     %d.1 = rescale(sub(%x, %top))    %b = table(%d.1, %low)
//   %b = table(%d, %low)
//
// Ethos-U looks up a table while it writes the result of another operator, for nothing, if nothing else reads
// that result. A TABLE by itself takes more than twice as long as an elementwise operator whose operands are
// widened bytes (widening.h): Vela 5.2 counts 64,000 cycles for 116,000 bytes, and 29,000 for their
// difference. Operators with other operands stay shared: to compute them twice costs more than the TABLE.

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/legalize_tosa/widening.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

// An elementwise operator over widened bytes, and the RESCALE of its result to i8.
struct Step {
  const Node* op = nullptr;
  const Node* rescale = nullptr;
};

// The step that makes the operand of a TABLE over i8, if it has other readers.
Step shared_step(const Graph& graph, const Node& table) {
  if (table.op != Op::kTosaTable) return {};
  const ValueId x = graph.operands(table)[0];
  const Node* const rescale = graph.producer(x);
  if (rescale == nullptr || rescale->op != Op::kTosaRescale || graph.type(x).dtype != DType::kI8) return {};
  if (graph.users(x).size() < 2 && !graph.is_output(x)) return {};
  const Node* const op = graph.producer(graph.operands(*rescale)[0]);
  if (op == nullptr || !widens_operands(graph, *op)) return {};
  const bool reads_bytes = narrow_dtype(graph, *widening(graph, graph.operands(*op)[0])) == DType::kI8;
  return reads_bytes ? Step{op, rescale} : Step{};
}

}  // namespace

std::optional<Graph> split_tables(const Graph& graph) {
  std::vector<bool> has_reader(graph.values().size(), false);  // by value: a reader of the first step
  for (const Output& output : graph.outputs()) has_reader[output.value.index()] = true;
  for (const Node& node : graph.nodes())
    if (shared_step(graph, node).op == nullptr)
      for (const ValueId operand : graph.operands(node))
        if (operand.valid()) has_reader[operand.index()] = true;
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const Step step = shared_step(graph, node);
    const ValueId x = step.op == nullptr ? ValueId() : graph.operands(node)[0];
    if (step.op == nullptr || !has_reader[x.index()]) {
      if (step.op != nullptr) has_reader[x.index()] = true;
      rewriter.copy(node);
      continue;
    }
    static_cast<void>(rewriter.begin_output(node));
    std::vector<ValueId> operands = rewriter.map_operands(node);
    const ValueId again =
        rewriter.emit(node, step.op->op, *step.op->attrs, rewriter.map_operands(*step.op), step.op->origin);
    operands[0] = rewriter.emit(node, step.rescale->op, *step.rescale->attrs, {again}, step.rescale->origin);
    rewriter.replace(node, rewriter.emit(node, node.op, *node.attrs, operands));
  }
  return std::move(rewriter).finish();
}

}  // namespace tosaic::passes
