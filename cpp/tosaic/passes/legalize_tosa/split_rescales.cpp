// split-rescales: gives each reader that can compute a widening RESCALE by itself a RESCALE of its own.
//
//   %w = rescale(%x: i8): i32          %w = rescale(%x)  %a = sub(%w, %top)
//   %a = sub(%w, %top)            ->   %w.1 = rescale(%x)  %s = reduce_sum(%w.1)
//   %s = reduce_sum(%w)
//
// Ethos-U computes such a RESCALE within the operator that reads it, for nothing, but only if nothing else
// reads its result (widening.h). A shared result is written as integers of 32 bits, and each reader loads
// them. Readers that load 32 bits in any case share the first RESCALE. Merging equal nodes would undo this
// pass, so it is the last one.

#include <algorithm>
#include <array>

#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/legalize_tosa/widening.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

constexpr std::array kUnary{Op::kTosaAbs, Op::kTosaClz, Op::kTosaNegate};

// Whether Ethos-U computes `rescale`, which makes an operand of `reader`, within the reader.
bool computes(const Graph& graph, const Node& reader, const Node& rescale) {
  if (reader.op == Op::kTosaReduceSum) return multiplies_by_one(Graph::attrs<TosaRescaleAttrs>(rescale));
  return std::ranges::find(kUnary, reader.op) != kUnary.end() || widens_operands(graph, reader);
}

}  // namespace

std::optional<Graph> split_rescales(const Graph& graph) {
  // By value: the RESCALE that makes it, if `reader` computes it.
  const auto computed = [&](const Node& reader, ValueId operand) -> const Node* {
    const Node* const rescale = widening(graph, operand);
    return rescale != nullptr && computes(graph, reader, *rescale) ? rescale : nullptr;
  };
  std::vector<bool> has_reader(graph.values().size(), false);  // by value, of the first RESCALE
  for (const Output& output : graph.outputs()) has_reader[output.value.index()] = true;
  for (const Node& node : graph.nodes())
    for (const ValueId operand : graph.operands(node))
      if (operand.valid() && computed(node, operand) == nullptr) has_reader[operand.index()] = true;
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    std::vector<const Node*> own;  // by operand: the RESCALE that the node gets a copy of
    for (const ValueId operand : graph.operands(node)) {
      const Node* const rescale = computed(node, operand);
      own.push_back(rescale != nullptr && has_reader[operand.index()] ? rescale : nullptr);
      if (rescale != nullptr) has_reader[operand.index()] = true;
    }
    if (std::ranges::all_of(own, [](const Node* each) { return each == nullptr; })) {
      rewriter.copy(node);
      continue;
    }
    static_cast<void>(rewriter.begin_output(node));
    std::vector<ValueId> operands = rewriter.map_operands(node);
    for (std::size_t i = 0; i < own.size(); ++i)
      if (own[i] != nullptr)
        operands[i] = rewriter.emit(node, own[i]->op, *own[i]->attrs,
                                    {rewriter.map(graph.operands(*own[i])[0])}, own[i]->origin);
    rewriter.replace(node, rewriter.emit(node, node.op, *node.attrs, operands));
  }
  return std::move(rewriter).finish();
}

}  // namespace tosaic::passes
