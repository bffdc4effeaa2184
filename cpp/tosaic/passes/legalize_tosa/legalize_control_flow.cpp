// Legalizes control flow, for targets that have COND_IF and WHILE_LOOP.
//
//   cond(p, x..)          ->  tosa.cond_if(p, x..), its regions legalized
//   while_loop(c.., x..)  ->  tosa.while_loop(c.., x..), its regions legalized
//
// The body of `while_loop` updates c.. and only reads x.., whereas WHILE_LOOP updates every operand. So its
// body also returns its inputs x.. unchanged. Operands and results of regions are in row-major order, and
// integers have the dtype that they have inside the graph (Legalizer::physical_dtype).

#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

void require_control_flow(const Legalizer& l) {
  if (!l.target().has(target::Extension::kControlFlow))
    l.refuse("control flow has no lowering to this target",
             "Lower for " +
                 to_string(target::with_features(l.target(), bit(target::Extension::kControlFlow))) +
                 ", or export the branch that the device runs");
}

std::vector<ValueId> row_major_operands(Legalizer& l, std::size_t first) {
  std::vector<ValueId> operands;
  for (std::size_t i = first; i < l.operand_count(); ++i) operands.push_back(l.operand(i));
  return operands;
}

std::vector<Physical> in_row_major_order(const std::vector<ValueId>& results, std::size_t count) {
  std::vector<Physical> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back({results[i], DimOrder()});
  return out;
}

// The region with additional outputs: its inputs from index `first` on.
std::shared_ptr<const Graph> with_inputs_returned(const Graph& region, std::size_t first) {
  Graph out = region;
  for (std::size_t i = first; i < region.inputs().size(); ++i)
    out.add_output({region.inputs()[i].value, OutputKind::kUser, "out[" + std::to_string(i) + "]", 0, {}});
  return std::make_shared<const Graph>(std::move(out));
}

}  // namespace

std::vector<Physical> legalize_cond(Legalizer& l) {
  require_control_flow(l);
  std::vector<std::shared_ptr<const Graph>> regions;
  for (const auto& region : l.node().regions) regions.push_back(l.legalized_region(*region));
  if (!regions[0] || !regions[1]) return {};  // the problems are recorded
  std::vector<ValueId> operands = row_major_operands(l, 1);
  operands.insert(operands.begin(), l.to_bool(l.operand(0)));
  std::vector<TensorType> types;
  for (const Output& output : regions[0]->outputs()) types.push_back(regions[0]->type(output.value));
  const std::vector<ValueId> results = l.emit_all(Op::kTosaCondIf, NoAttrs{}, operands, types, regions);
  return in_row_major_order(results, results.size());
}

std::vector<Physical> legalize_while_loop(Legalizer& l) {
  require_control_flow(l);
  const std::shared_ptr<const Graph> condition = l.legalized_region(*l.node().regions[0]);
  const std::shared_ptr<const Graph> body = l.legalized_region(*l.node().regions[1]);
  if (!condition || !body) return {};
  const std::size_t carried = l.node().result_count;
  const std::vector<ValueId> operands = row_major_operands(l, 0);
  std::vector<TensorType> types;
  for (const ValueId operand : operands) types.push_back(l.type(operand));
  const std::vector<ValueId> results = l.emit_all(Op::kTosaWhileLoop, NoAttrs{}, operands, types,
                                                  {condition, with_inputs_returned(*body, carried)});
  return in_row_major_order(results, carried);
}

}  // namespace tosaic::passes
