#include "tosaic/partition/regions.h"

#include "tosaic/partition/graph_copy.h"

namespace tosaic::partition {

Graph region_with_constants(const Graph& graph, const Node& node, std::size_t index) {
  const Graph& region = *node.regions[index];
  const std::span<const ValueId> operands = graph.operands(node);
  const std::size_t first = operands.size() - region.inputs().size();  // a cond has its predicate before them
  const std::size_t carried =
      node.op == Op::kWhileLoop ? node.result_count : 0;  // these change from run to run
  Graph out;
  out.name = region.name;
  out.stage = region.stage;
  GraphCopy copy(region, out);
  copy.add_inputs();
  for (std::size_t i = carried; i < region.inputs().size(); ++i) {
    const Value& value = graph.value(operands[first + i]);
    if (value.kind != ValueKind::kConstant) continue;
    const ValueId made = out.add_constant(value.constant);
    out.set_qparams(made, value.type.qparams);
    copy.set(region.inputs()[i].value, made);
  }
  for (const Node& each : region.nodes()) copy.add(each);
  copy.add_outputs();
  return out;
}

Graph with_regions(const Graph& graph, const Regions& regions) {
  Graph out;
  out.name = graph.name;
  out.stage = graph.stage;
  GraphCopy copy(graph, out);
  copy.add_inputs();
  for (const Node& node : graph.nodes()) {
    const auto found = regions.find(graph.id(node));
    if (found == regions.end()) {
      copy.add(node);
      continue;
    }
    Node changed = node;
    changed.regions = found->second;
    copy.add(changed);
  }
  copy.add_outputs();
  return out;
}

}  // namespace tosaic::partition
