#include "tosaic/partition/float_regions.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "tosaic/partition/graph_copy.h"
#include "tosaic/partition/split.h"

namespace tosaic::partition {
namespace {

class Regions {
 public:
  explicit Regions(std::size_t size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), DagNode{0});
  }
  DagNode find(DagNode node) {
    while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
    return node;
  }
  bool join(DagNode a, DagNode b) {
    a = find(a), b = find(b);
    if (a == b) return false;
    parent_[std::max(a, b)] = std::min(a, b);
    return true;
  }
  std::vector<std::vector<DagNode>> members() {
    std::map<DagNode, std::vector<DagNode>> found;
    for (DagNode node = 0; node < parent_.size(); ++node) found[find(node)].push_back(node);
    std::vector<std::vector<DagNode>> out;
    for (auto& [root, nodes] : found)
      if (nodes.size() > 1) out.push_back(std::move(nodes));
    return out;
  }

 private:
  std::vector<DagNode> parent_;
};

// Adds the nodes between two nodes of a region to it. True if a region changed.
bool make_convex(const Dag& dag, const std::vector<DagNode>& region, Regions& regions) {
  // The graph is in topological order, so all nodes between lie between the first and the last one.
  const DagNode first = region.front(), last = region.back();
  std::vector<bool> is_member(last - first + 1), behind(last - first + 1), before(last - first + 1);
  for (const DagNode node : region) is_member[node - first] = true;
  for (DagNode node = first; node <= last; ++node) {
    behind[node - first] = is_member[node - first];
    for (const DagNode operand : dag.inputs(node))
      if (operand >= first && behind[operand - first]) behind[node - first] = true;
  }
  for (DagNode node = last + 1; node-- > first;) {
    before[node - first] = is_member[node - first];
    for (const DagNode user : dag.users(node))
      if (user <= last && before[user - first]) before[node - first] = true;
  }
  bool changed = false;
  for (DagNode node = first; node <= last; ++node)
    if (behind[node - first] && before[node - first]) changed |= regions.join(first, node);
  return changed;
}

}  // namespace

Graph with_own_dequantize(const Graph& graph) {
  Graph out;
  out.name = graph.name;
  out.stage = graph.stage;
  GraphCopy copy(graph, out);
  copy.add_inputs();
  std::vector<bool> is_taken(graph.values().size());  // by value: something uses the original node
  for (const Output& output : graph.outputs()) is_taken[output.value.index()] = true;
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> operands = copy.all(graph.operands(node));
    std::map<ValueId, ValueId> own;  // a node that reads a value twice reads one copy
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const ValueId operand = graph.operands(node)[i];
      const Node* const producer = operand.valid() ? graph.producer(operand) : nullptr;
      if (producer == nullptr || producer->op != Op::kDequantize) continue;
      const auto [at, is_new] = own.try_emplace(operand, operands[i]);
      if (is_new && is_taken[operand.index()])
        at->second =
            out.result(out.node(out.add_copy(graph, *producer, copy.all(graph.operands(*producer)))));
      is_taken[operand.index()] = true;
      operands[i] = at->second;
    }
    copy.add(node, operands);
  }
  copy.add_outputs();
  return out;
}

std::vector<std::vector<DagNode>> float_regions(const Graph& graph) {
  const Dag dag = dag_of(graph);
  Regions regions(graph.nodes().size());
  for (const Node& node : graph.nodes())
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph.result(node, r);
      const TensorType& type = graph.type(result);
      if (!is_float(type.dtype) || type.qparams) continue;
      for (const NodeId user : graph.users(result)) regions.join(graph.id(node).index(), user.index());
    }
  const auto has_conversion = [&](const std::vector<DagNode>& region) {
    return std::ranges::any_of(region, [&](DagNode node) {
      const Op op = graph.nodes()[node].op;
      return op == Op::kQuantize || op == Op::kDequantize;
    });
  };
  // Regions without conversions are float programs, which need not stay together.
  for (bool changed = true; changed;) {
    changed = false;
    for (const std::vector<DagNode>& region : regions.members())
      if (has_conversion(region)) changed |= make_convex(dag, region, regions);
  }
  std::vector<std::vector<DagNode>> out = regions.members();
  std::erase_if(out, [&](const auto& region) { return !has_conversion(region); });
  return out;
}

}  // namespace tosaic::partition
