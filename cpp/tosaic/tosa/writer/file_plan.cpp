#include "tosaic/tosa/writer/file_plan.h"

#include <tosa_generated.h>

#include <unordered_set>

#include "tosaic/base/error_text.h"
#include "tosaic/tosa/schema_map.h"
#include "tosaic/tosa/writer/operands.h"
#include "tosaic/tosa/writer/region_names.h"
#include "tosaic/tosa/writer/tensor_list.h"
#include "tosaic/tosa/writer/variables.h"

namespace tosaic::tosa {
namespace {

std::uint32_t code_of(const Graph& graph, const Node& node) {
  if (const std::optional<std::uint32_t> code = op_code(node.op)) return *code;
  throw UnsupportedOp(located({.where = "tosa",
                               .what = "not an operator of TOSA 1.0",
                               .expected = "operators of stage tosa only",
                               .got = quoted(info(node.op).name),
                               .hint = "Lower the graph to stage tosa first"},
                              node.origin, graph.node_name(node)));
}

void add_operands(const Graph& graph, const Node& node, TensorList& tensors, OperatorPlan& op) {
  std::vector<DType> dtypes;
  for (const ValueId operand : graph.operands(node)) {
    if (!operand.valid())
      fail_at(graph, node, "an operand is absent", "all operands of a TOSA operator", "none");
    op.inputs.push_back(tensors.of_value(operand));
    dtypes.push_back(graph.type(operand).dtype);
  }
  if (dtypes.size() < info(node.op).min_operands)
    fail_at(graph, node, "operands are missing", std::to_string(info(node.op).min_operands),
            std::to_string(dtypes.size()));
  append_constant_operands(graph, node, dtypes, tensors, op.inputs);
}

// Adds the outputs. An output of a program must be the result of an operator; an output of a region may also
// be an input or a constant. No tensor may be listed twice. If an output breaks one of these rules, an
// IDENTITY copies it, and the copy is listed instead.
void add_outputs(const Graph& graph, bool is_program, TensorList& tensors, BlockPlan& block) {
  std::unordered_set<std::uint32_t> listed;
  for (const Output& output : graph.outputs()) {
    const Value& value = graph.value(output.value);
    const std::uint32_t tensor = tensors.of_value(output.value);
    const bool as_it_is = !is_program || value.kind == ValueKind::kResult;
    if (as_it_is && listed.insert(tensor).second) {
      block.outputs.push_back(tensor);
      continue;
    }
    TensorPlan copy;
    copy.name = tensors.fresh_name(value.name + "_out");
    copy.dtype = block.tensors[tensor].dtype;
    copy.shape = block.tensors[tensor].shape;
    OperatorPlan identity;
    identity.code = static_cast<std::uint32_t>(schema::Op::IDENTITY);
    identity.inputs = {tensor};
    identity.outputs = {tensors.add(std::move(copy))};
    block.outputs.push_back(identity.outputs.front());
    block.operators.push_back(std::move(identity));
  }
}

BlockPlan plan_block(const Graph& graph, bool is_program, RegionNames& regions) {
  BlockPlan block;
  block.graph = &graph;
  block.name = regions.name(graph);
  TensorList tensors(graph, block);
  VariableTensors variables(graph, tensors);
  for (const Input& input : graph.inputs()) block.inputs.push_back(tensors.of_value(input.value));
  for (const Node& node : graph.nodes()) {
    OperatorPlan op;
    op.code = code_of(graph, node);
    op.node = &node;
    if (info(node.op).has(kEffect))
      variables.add_operands(node, op);
    else
      add_operands(graph, node, tensors, op);
    for (const auto& region : node.regions) op.regions.push_back(regions.name(*region));
    for (std::uint32_t i = 0; i < node.result_count; ++i)
      op.outputs.push_back(tensors.of_value(graph.result(node, i)));
    block.operators.push_back(std::move(op));
  }
  add_outputs(graph, is_program, tensors, block);
  return block;
}

}  // namespace

std::size_t TensorPlan::packed_bytes() const {
  return packed_size(dtype, static_cast<std::size_t>(num_elements(shape)));
}

FilePlan plan_file(const Graph& program) {
  RegionNames regions(program);
  FilePlan file;
  file.blocks.push_back(plan_block(program, true, regions));
  for (std::size_t i = 0; i < regions.in_order().size(); ++i)  // planning a region may add further ones
    file.blocks.push_back(plan_block(*regions.in_order()[i], false, regions));
  return file;
}

}  // namespace tosaic::tosa
