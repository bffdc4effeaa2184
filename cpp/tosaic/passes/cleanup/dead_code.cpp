// dead-code: removes nodes and constants that no output needs. It marks backwards from the outputs, then
// copies what is marked.
//
//   %a = exp(%x)   %b = neg(%x)   return %b      ->      %b = neg(%x)   return %b
//
// Foreign nodes, nodes without results and nodes that touch variables may have an effect, so they stay.
// Inputs stay because they are part of the caller's signature.

#include "tosaic/base/work.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {

std::optional<Graph> dead_code(const Graph& graph) {
  work::add(graph.nodes().size() + graph.values().size());
  std::vector<bool> live(graph.values().size(), false), live_nodes(graph.nodes().size(), false);
  for (const Output& output : graph.outputs()) live[output.value.index()] = true;
  for (std::size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    bool needed = is_foreign(node.op) || node.result_count == 0 || touches_variables(node);
    for (std::uint32_t r = 0; r < node.result_count; ++r) needed = needed || live[node.first_result + r];
    live_nodes[n] = needed;
    if (!needed) continue;
    for (const ValueId operand : graph.operands(node))
      if (operand.valid()) live[operand.index()] = true;
  }
  bool anything_dead = false;
  for (std::size_t i = 0; i < live.size(); ++i)
    anything_dead = anything_dead || (!live[i] && graph.values()[i].kind == ValueKind::kConstant);
  for (const bool node_is_live : live_nodes) anything_dead = anything_dead || !node_is_live;
  if (!anything_dead) return std::nullopt;
  return Rewriter::pruned(graph, live, live_nodes);
}

std::optional<Graph> without_dead_code(std::optional<Graph> graph) {
  std::optional<Graph> clean = graph ? dead_code(*graph) : std::nullopt;
  return clean ? std::move(clean) : std::move(graph);
}

}  // namespace tosaic::passes
