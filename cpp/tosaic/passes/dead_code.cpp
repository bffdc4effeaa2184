// dead-code: marks backwards from the outputs, then copies what is marked.
//
//   %a = exp(%x)   %b = neg(%x)   return %b      ->      %b = neg(%x)   return %b
//
// Opaque nodes count as having an effect and stay. Inputs stay: they are the caller's.

#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

std::vector<bool> live_values(const Graph& graph) {
  std::vector<bool> live(graph.values().size(), false);
  for (const Output& output : graph.outputs()) live[output.value.index()] = true;
  for (std::size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    bool needed = node.op == Op::kOpaque;
    for (std::uint32_t r = 0; r < node.result_count; ++r) needed = needed || live[node.first_result + r];
    if (!needed) continue;
    for (std::uint32_t r = 0; r < node.result_count; ++r) live[node.first_result + r] = true;
    for (const ValueId operand : graph.operands(node))
      if (operand.valid()) live[operand.index()] = true;
  }
  return live;
}

bool node_is_live(const Node& node, const std::vector<bool>& live) {
  return node.result_count == 0 || live[node.first_result];
}

}  // namespace

std::optional<Graph> dead_code(const Graph& graph) {
  const std::vector<bool> live = live_values(graph);
  bool anything_dead = false;
  for (std::size_t i = 0; i < live.size(); ++i)
    anything_dead = anything_dead || (!live[i] && graph.values()[i].kind != ValueKind::kInput);
  if (!anything_dead) return std::nullopt;

  Graph out;
  out.name = graph.name;
  out.stage = graph.stage;
  std::vector<ValueId> map(graph.values().size());
  std::vector<ValueId> operands;
  std::vector<TensorType> types;
  for (const Input& input : graph.inputs()) {
    const Value& value = graph.value(input.value);
    map[input.value.index()] =
        out.add_input(input.kind, value.name, value.type, input.path, input.border, input.initial);
  }
  const auto mapped = [&](ValueId id) {
    if (!id.valid()) return id;
    ValueId& fresh = map[id.index()];
    if (!fresh.valid()) {
      fresh = out.add_constant(graph.value(id).constant);
      out.set_order(fresh, graph.type(id).order);
    }
    return fresh;
  };
  for (const Node& node : graph.nodes()) {
    if (!node_is_live(node, live)) continue;
    operands.clear();
    types.clear();
    for (const ValueId operand : graph.operands(node)) operands.push_back(mapped(operand));
    for (std::uint32_t r = 0; r < node.result_count; ++r) types.push_back(graph.type(graph.result(node, r)));
    const NodeId id =
        out.add_node(node.op, node.attrs, operands, types, node.origin, graph.node_name(node), node.regions);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      map[node.first_result + r] = out.result(out.node(id), r);
  }
  for (const Output& output : graph.outputs()) {
    Output copy = output;
    copy.value = mapped(output.value);
    out.add_output(std::move(copy));
  }
  return out;
}

}  // namespace tosaic::passes
