#include "tosaic/analysis/liveness.h"

#include <algorithm>

namespace tosaic::analysis {

std::vector<Lifetime> liveness(const Graph& graph) {
  std::vector<Lifetime> live(graph.values().size());
  const auto nodes = graph.nodes();
  for (std::uint32_t step = 0; step < nodes.size(); ++step) {
    const Node& node = nodes[step];
    for (std::uint32_t i = 0; i < node.result_count; ++i) live[node.first_result + i] = {step, step};
    for (const ValueId operand : graph.operands(node))
      if (operand.valid()) live[operand.index()].last = std::max(live[operand.index()].last, step);
  }
  for (const Output& output : graph.outputs())
    live[output.value.index()].last = static_cast<std::uint32_t>(nodes.size());
  return live;
}

}  // namespace tosaic::analysis
