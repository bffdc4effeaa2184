#include "tosaic/analysis/topology.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace tosaic::analysis {
namespace {

void sort_unique(std::vector<std::uint32_t>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

Adjacency adjacency(const Graph& graph) {
  const auto nodes = graph.nodes();
  Adjacency edges{std::vector<std::vector<std::uint32_t>>(nodes.size()),
                  std::vector<std::vector<std::uint32_t>>(nodes.size())};
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    for (const ValueId operand : graph.operands(nodes[i]))
      if (operand.valid() && graph.value(operand).kind == ValueKind::kResult)
        edges.predecessors[i].push_back(graph.value(operand).producer.index());
    sort_unique(edges.predecessors[i]);
    for (const std::uint32_t from : edges.predecessors[i]) edges.successors[from].push_back(i);
  }
  return edges;
}

std::vector<std::uint32_t> depths(const Graph& graph) {
  std::vector<std::uint32_t> depth(graph.nodes().size());
  for (std::size_t i = 0; i < depth.size(); ++i)
    for (const ValueId operand : graph.operands(graph.nodes()[i]))
      if (operand.valid() && graph.value(operand).kind == ValueKind::kResult)
        depth[i] = std::max(depth[i], depth[graph.value(operand).producer.index()] + 1);
  return depth;
}

std::vector<std::uint32_t> topological_order(const Adjacency& edges) {
  std::vector<std::size_t> waiting_for(edges.predecessors.size());
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t i = 0; i < waiting_for.size(); ++i) {
    waiting_for[i] = edges.predecessors[i].size();
    if (waiting_for[i] == 0) ready.push(i);
  }
  std::vector<std::uint32_t> order;
  order.reserve(waiting_for.size());
  while (!ready.empty()) {
    const std::uint32_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const std::uint32_t next : edges.successors[node])
      if (--waiting_for[next] == 0) ready.push(next);
  }
  return order;
}

}  // namespace tosaic::analysis
