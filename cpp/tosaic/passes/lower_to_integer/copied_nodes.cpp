#include "tosaic/passes/lower_to_integer/copied_nodes.h"

#include "tosaic/base/error_text.h"
#include "tosaic/ir/quantized.h"

namespace tosaic::passes {

void copy_node(ValueMap& values, const Node& node, IntegerBuilder& build) {
  const Graph& source = values.source();
  Graph& out = values.made().graph;
  std::vector<ValueId> operands;
  for (const ValueId id : source.operands(node)) operands.push_back(values.value(id, build));
  std::vector<TensorType> types;
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    TensorType result = source.type(source.result(node, r));
    if (const std::optional<QParams> in_signed =
            result.qparams ? signed_form(*result.qparams) : std::nullopt) {
      result.dtype = in_signed->storage;
      result.qparams = std::make_shared<const QParams>(*in_signed);
    }
    types.push_back(std::move(result));
  }
  const NodeId made = out.add_node(node.op, node.attrs, operands, types, node.origin, build.name(),
                                   Graph::regions_at(node, Stage::kInteger));
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source.result(node, r), copy = out.result(out.node(made), r);
    values.set_value(result, copy);
    out.try_rename(copy, source.value(result).name);
  }
}

void report_float_operator(ValueMap& values, const Node& node, const std::string& reason) {
  values.made().float_operators.push_back(located(
      {.where = "lower-to-integer", .what = quoted(info(node.op).name) + " is left to floats: " + reason},
      node.origin, values.source().node_name(node)));
}

std::vector<TensorType> float_types(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    TensorType type = graph.type(graph.result(node, r));
    if (type.qparams) type.dtype = DType::kF32;
    type.qparams = nullptr;
    types.push_back(std::move(type));
  }
  return types;
}

void add_over_floats(ValueMap& values, const Node& node, const std::string& reason) {
  const Graph& source = values.source();
  Graph& out = values.made().graph;
  IntegerBuilder build(values.made(), node.origin, source.node_name(node));
  std::vector<ValueId> operands;
  for (const ValueId id : source.operands(node)) operands.push_back(values.as_float(id, build));
  if (!reason.empty()) report_float_operator(values, node, reason);
  const NodeId made = out.add_node(node.op, node.attrs, operands, float_types(source, node), node.origin,
                                   build.name(), Graph::regions_at(node, Stage::kInteger));
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source.result(node, r);
    const QParamsRef& qparams = source.type(result).qparams;
    ValueId id = out.result(out.node(made), r);
    if (qparams) {
      const QParams stored = signed_form(*qparams).value_or(*qparams);
      out.try_rename(id, source.value(result).name + "_unrounded");
      id = out.add(Op::kQuantize, attrs_of_qparams<QuantizeAttrs>(stored.storage, stored), std::span(&id, 1),
                   node.origin, source.value(result).name);
      out.set_qparams(id, std::make_shared<const QParams>(stored));
    }
    values.set_value(result, id);
  }
}

}  // namespace tosaic::passes
