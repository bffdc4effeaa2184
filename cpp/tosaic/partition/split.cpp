#include "tosaic/partition/split.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tosaic/base/error_text.h"
#include "tosaic/partition/quotient.h"

namespace tosaic::partition {
namespace {

// The type of a border: in the logical order of axes.
TensorType plain(TensorType type) {
  type.order = {};
  return type;
}

// Copies nodes of a graph to another one.
class Copy {
 public:
  Copy(const Graph& source, Graph& out) : source_(source), out_(out), made_(source.values().size()) {
    out_.stage = source.stage;
  }

  [[nodiscard]] bool has(ValueId value) const { return made_[value.index()].valid(); }
  void set(ValueId value, ValueId made) {
    made_[value.index()] = made;
    out_.set_source(made, value);
  }
  // The copy of a value; constants are copied when they are read.
  ValueId of(ValueId value) {
    if (!value.valid() || has(value)) return value.valid() ? made_[value.index()] : value;
    const Value& constant = source_.value(value);
    if (!constant.constant)
      throw InternalError(
          {.where = "partition", .what = "a part reads " + quoted(constant.name) + " too early"});
    const ValueId made = out_.add_constant(constant.constant);
    out_.set_qparams(made, constant.type.qparams);
    made_[value.index()] = made;
    return made;
  }
  std::vector<ValueId> all(std::span<const ValueId> values) {
    std::vector<ValueId> out;
    for (const ValueId value : values) out.push_back(of(value));
    return out;
  }
  void add(const Node& node) {
    const NodeId copy = out_.add_copy(source_, node, all(source_.operands(node)));
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      set(source_.result(node, r), out_.result(out_.node(copy), r));
  }

 private:
  const Graph& source_;
  Graph& out_;
  std::vector<ValueId> made_;  // by value of the source
};

std::vector<std::vector<NodeId>> nodes_of(const Groups& groups) {
  std::vector<std::vector<NodeId>> nodes;
  for (const std::vector<DagNode>& members : members_of(groups))
    nodes.emplace_back(members.begin(), members.end());
  return nodes;
}

bool is_group_input(const Graph& graph, const Groups& groups, std::uint32_t group, ValueId value) {
  const Node* const producer = graph.producer(value);
  return producer == nullptr ? graph.value(value).kind == ValueKind::kInput
                             : groups.of[graph.id(*producer).index()] != group;
}

bool is_read_outside(const Graph& graph, const Groups& groups, std::uint32_t group, ValueId value) {
  return graph.is_output(value) || std::ranges::any_of(graph.users(value), [&](NodeId user) {
           return groups.of[user.index()] != group;
         });
}

Part part_of(const Graph& graph, const Groups& groups, std::uint32_t group,
             const std::vector<NodeId>& members) {
  Part part;
  for (const NodeId member : members) {
    const Node& node = graph.node(member);
    for (const ValueId operand : graph.operands(node))
      if (operand.valid() && graph.value(operand).kind != ValueKind::kConstant &&
          is_group_input(graph, groups, group, operand))
        part.inputs.push_back(operand);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      if (is_read_outside(graph, groups, group, graph.result(node, r)))
        part.outputs.push_back(graph.result(node, r));
  }
  std::ranges::sort(part.inputs);
  part.inputs.erase(std::ranges::unique(part.inputs).begin(), part.inputs.end());
  part.graph.name = "group" + std::to_string(group);
  Copy copy(graph, part.graph);
  for (const ValueId input : part.inputs) {
    const Value& value = graph.value(input);
    copy.set(input, part.graph.add_input(InputKind::kUser, value.name, plain(value.type), value.name));
  }
  for (const NodeId member : members) copy.add(graph.node(member));
  for (const ValueId output : part.outputs) {
    Output made;
    made.value = copy.of(output);
    made.path = graph.value(output).name;
    part.graph.add_output(std::move(made));
  }
  return part;
}

void refuse_effects(const Graph& graph, const std::vector<NodeId>& members) {
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
              Copy& copy) {
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

Split split(const Graph& graph, const Groups& groups) {
  const std::vector<std::vector<NodeId>> members = nodes_of(groups);
  Split out;
  for (std::uint32_t group = 0; group < groups.count; ++group) {
    refuse_effects(graph, members[group]);
    out.parts.push_back(part_of(graph, groups, group, members[group]));
  }
  out.host.name = graph.name;
  Copy copy(graph, out.host);
  for (const Input& input : graph.inputs()) {
    const Value& value = graph.value(input.value);
    copy.set(input.value, out.host.add_input(input.kind, value.name, value.type, input.path, input.boundary,
                                             input.initial));
  }
  for (const std::uint32_t first : order_of(graph, dag_of(graph), groups)) {
    if (groups.of[first] == kNoGroup)
      copy.add(graph.nodes()[first]);
    else
      add_call(graph, out.parts[groups.of[first]], members[groups.of[first]], out.host, copy);
  }
  for (Output output : graph.outputs()) {
    output.value = copy.of(output.value);
    out.host.add_output(std::move(output));
  }
  return out;
}

}  // namespace tosaic::partition
