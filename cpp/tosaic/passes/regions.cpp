#include "tosaic/passes/regions.h"

namespace tosaic::passes {

std::optional<Graph> in_regions(const Graph& graph,
                                const std::function<std::optional<Graph>(const Graph&)>& run) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    std::vector<std::shared_ptr<const Graph>> regions = node.regions;
    bool changed = false;
    for (std::shared_ptr<const Graph>& region : regions) {
      std::optional<Graph> next = run(*region);
      if (!next) continue;
      region = std::make_shared<const Graph>(std::move(*next));
      changed = true;
    }
    if (changed)
      rewriter.copy(node, std::move(regions));
    else
      rewriter.copy(node);
  }
  return std::move(rewriter).finish();
}

std::vector<ValueId> inline_region(Rewriter& rewriter, const Node& at, const Graph& region,
                                   std::span<const ValueId> inputs) {
  Graph& out = rewriter.begin_output(at);
  const std::string prefix = rewriter.source().node_name(at) + ".";
  std::vector<ValueId> map(region.values().size());
  for (std::size_t i = 0; i < inputs.size(); ++i) map[region.inputs()[i].value.index()] = inputs[i];
  for (std::size_t i = 0; i < map.size(); ++i)
    if (region.values()[i].kind == ValueKind::kConstant)
      map[i] = out.add_constant(region.values()[i].constant);
  for (const Node& node : region.nodes()) {
    std::vector<ValueId> operands;
    for (const ValueId operand : region.operands(node))
      operands.push_back(operand.valid() ? map[operand.index()] : operand);
    std::vector<TensorType> results;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      results.push_back(region.type(region.result(node, r)));
    const NodeId made = out.add_node(node.op, node.attrs, operands, results, merge({node.origin, at.origin}),
                                     prefix + region.node_name(node), node.regions);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      map[node.first_result + r] = out.result(out.node(made), r);
  }
  std::vector<ValueId> results;
  for (const Output& output : region.outputs()) results.push_back(map[output.value.index()]);
  return results;
}

}  // namespace tosaic::passes
