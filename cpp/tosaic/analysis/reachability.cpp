#include "tosaic/analysis/reachability.h"

#include <algorithm>

namespace tosaic::analysis {
namespace {

bool any_result(const Node& node, const std::vector<bool>& marked) {
  for (std::uint32_t i = 0; i < node.result_count; ++i)
    if (marked[node.first_result + i]) return true;
  return false;
}

std::vector<bool> marks(const Graph& graph, std::span<const ValueId> values) {
  std::vector<bool> marked(graph.values().size());
  for (const ValueId value : values)
    if (value.valid()) marked[value.index()] = true;
  return marked;
}

}  // namespace

std::vector<bool> reached_from(const Graph& graph, std::span<const ValueId> sources) {
  std::vector<bool> marked = marks(graph, sources);
  for (const Node& node : graph.nodes()) {
    const auto operands = graph.operands(node);
    const bool hit = std::any_of(operands.begin(), operands.end(),
                                 [&](ValueId operand) { return operand.valid() && marked[operand.index()]; });
    if (!hit) continue;
    for (std::uint32_t i = 0; i < node.result_count; ++i) marked[node.first_result + i] = true;
  }
  return marked;
}

std::vector<bool> reaching(const Graph& graph, std::span<const ValueId> targets) {
  std::vector<bool> marked = marks(graph, targets);
  const auto nodes = graph.nodes();
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (!any_result(nodes[i], marked)) continue;
    for (const ValueId operand : graph.operands(nodes[i]))
      if (operand.valid()) marked[operand.index()] = true;
  }
  return marked;
}

std::vector<bool> depends_on_input(const Graph& graph) {
  std::vector<ValueId> sources;
  for (const Input& input : graph.inputs()) sources.push_back(input.value);
  return reached_from(graph, sources);
}

std::vector<bool> reaches_output(const Graph& graph) {
  std::vector<ValueId> targets;
  for (const Output& output : graph.outputs()) targets.push_back(output.value);
  const std::vector<bool> marked = reaching(graph, targets);
  std::vector<bool> alive;
  alive.reserve(graph.nodes().size());
  for (const Node& node : graph.nodes()) alive.push_back(any_result(node, marked));
  return alive;
}

}  // namespace tosaic::analysis
