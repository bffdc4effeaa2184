#include "tosaic/partition/split.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tosaic/base/error_text.h"
#include "tosaic/partition/graph_copy.h"
#include "tosaic/partition/quotient.h"

namespace tosaic::partition {
namespace {

// The type of a value that crosses between parts: without a dim order.
TensorType plain(TensorType type) {
  type.order = {};
  return type;
}

std::vector<std::vector<NodeId>> nodes_of(const Groups& groups) {
  std::vector<std::vector<NodeId>> nodes;
  for (const std::vector<DagNode>& members : members_of(groups))
    nodes.emplace_back(members.begin(), members.end());
  return nodes;
}

void refuse_effects(const Graph& graph, std::span<const NodeId> members) {
  for (const NodeId member : members) {
    const Node& node = graph.node(member);
    if (info(node.op).has(kEffect))
      throw InvalidGraph(located({.where = "partition",
                                  .what = "a group reads or writes variables, which only a whole graph has",
                                  .expected = "a graph whose states are inputs and outputs",
                                  .got = "a node '" + std::string(info(node.op).name) + "'"},
                                 node.origin, graph.node_name(node)));
  }
}

std::string text_of(const Graph& graph, const std::vector<Edge>& circle) {
  std::string text;
  for (const Edge& edge : circle) {
    if (!text.empty()) text += ", ";
    text += graph.node_name(graph.nodes()[edge.from]) + " -> " + graph.node_name(graph.nodes()[edge.to]);
  }
  return text;
}

// The groups, and the nodes that are in none, in an order in which they can run: the first node of each.
std::vector<std::uint32_t> order_of(const Graph& graph, const Dag& dag, const Groups& groups) {
  const Quotient found = quotient(dag, groups);
  if (!found.circle.empty())
    throw InvalidGraph({.where = "partition",
                        .what = "groups wait for each other",
                        .expected = "groups that can run one after another",
                        .got = "edges " + text_of(graph, found.circle)});
  std::vector<std::uint32_t> first(found.dag.size(), kNoGroup);
  for (std::uint32_t node = dag.size(); node-- > 0;) first[found.of[node]] = node;
  return first;
}

void add_call(const Graph& graph, const Part& part, const std::vector<NodeId>& members, Graph& host,
              GraphCopy& copy) {
  OpaqueAttrs attrs;
  attrs.target = part.graph.name;
  attrs.integers = true;
  std::vector<TensorType> types;
  for (const ValueId output : part.outputs) types.push_back(plain(graph.type(output)));
  std::vector<OriginRef> origins;
  for (const NodeId member : members) origins.push_back(graph.node(member).origin);
  const NodeId call = host.add_node(Op::kOpaque, share(std::move(attrs)), copy.all(part.inputs), types,
                                    merge(origins), part.graph.name);
  for (std::uint32_t i = 0; i < part.outputs.size(); ++i) {
    const ValueId result = host.result(host.node(call), i);
    host.try_rename(result, graph.value(part.outputs[i]).name);
    copy.set(part.outputs[i], result);
  }
}

}  // namespace

Dag dag_of(const Graph& graph) {
  std::vector<Edge> edges;
  for (const Node& node : graph.nodes())
    for (const ValueId operand : graph.operands(node))
      if (const Node* const producer = operand.valid() ? graph.producer(operand) : nullptr)
        edges.push_back({graph.id(*producer).index(), graph.id(node).index()});
  return {static_cast<std::uint32_t>(graph.nodes().size()), std::move(edges)};
}

Part part_of(const Graph& graph, std::span<const NodeId> nodes, Unread unread) {
  const auto is_inside = [&](NodeId node) { return std::ranges::binary_search(nodes, node); };
  Part part;
  for (const NodeId id : nodes) {
    const Node& node = graph.node(id);
    for (const ValueId operand : graph.operands(node)) {
      if (!operand.valid() || graph.value(operand).kind == ValueKind::kConstant) continue;
      const Node* const producer = graph.producer(operand);
      if (producer == nullptr || !is_inside(graph.id(*producer))) part.inputs.push_back(operand);
    }
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph.result(node, r);
      const std::span<const NodeId> users = graph.users(result);
      if (graph.is_output(result) || !std::ranges::all_of(users, is_inside) ||
          (users.empty() && unread == Unread::kOutput))
        part.outputs.push_back(result);
    }
  }
  std::ranges::sort(part.inputs);
  part.inputs.erase(std::ranges::unique(part.inputs).begin(), part.inputs.end());
  part.graph.name = graph.name;
  part.graph.stage = graph.stage;
  GraphCopy copy(graph, part.graph);
  for (const ValueId input : part.inputs) {
    const Value& value = graph.value(input);
    const ValueId made = part.graph.add_input(InputKind::kUser, value.name, plain(value.type), value.name);
    part.graph.set_source(made, input);
    copy.set(input, made);
  }
  for (const NodeId id : nodes) {
    const Node& node = graph.node(id);
    const NodeId made = copy.add(node);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      part.graph.set_source(part.graph.result(part.graph.node(made), r), graph.result(node, r));
  }
  for (const ValueId output : part.outputs) {
    Output made;
    made.value = copy.of(output);
    made.path = graph.value(output).name;
    part.graph.add_output(std::move(made));
  }
  return part;
}

Part group_part(const Graph& graph, std::span<const NodeId> nodes, std::uint32_t number) {
  refuse_effects(graph, nodes);
  Part part = part_of(graph, nodes, Unread::kDropped);
  part.graph.name = "group" + std::to_string(number);
  return part;
}

Split split(const Graph& graph, const Groups& groups, std::uint32_t first) {
  const std::vector<std::vector<NodeId>> members = nodes_of(groups);
  Split out;
  for (std::uint32_t group = 0; group < groups.count; ++group)
    out.parts.push_back(group_part(graph, members[group], first + group));
  out.host.name = graph.name;
  out.host.stage = graph.stage;
  GraphCopy copy(graph, out.host);
  copy.add_inputs();
  for (const std::uint32_t node : order_of(graph, dag_of(graph), groups)) {
    if (groups.of[node] == kNoGroup)
      copy.add(graph.nodes()[node]);
    else
      add_call(graph, out.parts[groups.of[node]], members[groups.of[node]], out.host, copy);
  }
  copy.add_outputs();
  for (std::uint32_t v = 0; v < graph.values().size(); ++v)
    if (const ValueId value(v); copy.has(value) && graph.value(value).kind != ValueKind::kConstant)
      out.host.set_source(copy.of(value), value);
  return out;
}

}  // namespace tosaic::partition
