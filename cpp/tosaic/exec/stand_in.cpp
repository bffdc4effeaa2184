#include "tosaic/exec/stand_in.h"

#include <string>

#include "tosaic/base/error.h"
#include "tosaic/ir/attributes.h"

namespace tosaic::exec {
namespace {

void refuse_variables(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (info(node.op).has(kEffect))
      throw InvalidGraph(located({.where = "prepare",
                                  .what = "a model of a whole graph cannot read or write its variables",
                                  .expected = "a graph whose states are inputs and outputs",
                                  .got = "a node '" + std::string(info(node.op).name) + "'",
                                  .hint = "Give models to its nodes instead"},
                                 node.origin, graph.node_name(node)));
    for (const auto& region : node.regions) refuse_variables(*region);
  }
}

TensorType plain(TensorType type) {
  type.order = {};
  return type;
}

AttrsRef foreign_attrs(Stage stage) {
  if (stage == Stage::kTosa) return share(TosaCustomAttrs{"graph", "tosaic.model", {}});
  return share(OpaqueAttrs{.target = "tosaic.model.graph", .arguments = {}});
}

}  // namespace

Graph node_alone(const Graph& graph, const Node& node, const std::vector<bool>& as_input) {
  Graph out;
  out.name = graph.node_name(node);
  out.stage = graph.stage;
  std::vector<ValueId> operands;
  for (std::size_t i = 0; i < node.operand_count; ++i) {
    const ValueId operand = graph.operands(node)[i];
    if (!operand.valid()) {
      operands.emplace_back();
      continue;
    }
    TensorType type = plain(graph.type(operand));
    if (graph.value(operand).constant && !as_input[i]) {
      operands.push_back(out.add_constant(graph.value(operand).constant));
      out.set_qparams(operands.back(), type.qparams);
    } else {
      operands.push_back(
          out.add_input(InputKind::kUser, out.name + ".operand" + std::to_string(i), std::move(type), ""));
    }
  }
  const NodeId made = out.add_copy(graph, node, operands);
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    Output output;
    output.value = out.result(out.node(made), r);
    out.add_output(std::move(output));
  }
  return out;
}

Graph with_plain_boundary(const Graph& graph) {
  Graph out;
  out.name = graph.name;
  out.stage = graph.stage;
  std::vector<ValueId> made(graph.values().size());
  for (const Input& input : graph.inputs())
    made[input.value.index()] =
        out.add_input(InputKind::kUser, graph.value(input.value).name, plain(graph.type(input.value)), "");
  const auto copied = [&](ValueId value) {
    if (!value.valid() || made[value.index()].valid()) return value.valid() ? made[value.index()] : value;
    made[value.index()] = out.add_constant(graph.value(value).constant);
    out.set_qparams(made[value.index()], graph.type(value).qparams);
    return made[value.index()];
  };
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> operands;
    for (const ValueId operand : graph.operands(node)) operands.push_back(copied(operand));
    const NodeId copy = out.add_copy(graph, node, operands);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      made[graph.result(node, r).index()] = out.result(out.node(copy), r);
  }
  for (const Output& output : graph.outputs()) {
    Output plain_output;
    plain_output.value = copied(output.value);
    out.add_output(std::move(plain_output));
  }
  return out;
}

Graph as_one_node(const Graph& graph) {
  refuse_variables(graph);
  Graph out;
  out.name = graph.name;
  out.stage = graph.stage;
  std::vector<ValueId> operands;
  for (const Input& input : graph.inputs()) {
    const Value& value = graph.value(input.value);
    operands.push_back(
        out.add_input(input.kind, value.name, value.type, input.path, input.boundary, input.initial));
    if (value.canonical_order) out.set_canonical_order(operands.back(), *value.canonical_order);
  }
  std::vector<TensorType> types;
  for (const Output& output : graph.outputs()) types.push_back(graph.type(output.value));
  const Op op = graph.stage == Stage::kTosa ? Op::kTosaCustom : Op::kOpaque;
  const NodeId node = out.add_node(op, foreign_attrs(graph.stage), operands, types, nullptr, "graph_model");
  for (std::uint32_t i = 0; i < graph.outputs().size(); ++i) {
    Output output = graph.outputs()[i];
    const Value& value = graph.value(output.value);
    output.value = out.result(out.node(node), i);
    out.try_rename(output.value, value.name);
    if (value.canonical_order) out.set_canonical_order(output.value, *value.canonical_order);
    out.add_output(std::move(output));
  }
  return out;
}

}  // namespace tosaic::exec
