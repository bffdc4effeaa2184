#include "tosaic/partition/border_orders.h"

#include <algorithm>
#include <optional>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/layout/plan.h"
#include "tosaic/layout/review.h"
#include "tosaic/layout/views.h"
#include "tosaic/partition/graph_copy.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {
namespace {

// The host with the nodes of each part in the place of its call. Only layout plans read this graph: it may
// mix nodes of several stages.
class Joined {
 public:
  Joined(const Graph& host, std::span<const std::shared_ptr<const Graph>> parts)
      : inputs_(parts.size()), outputs_(parts.size()) {
    graph_.name = host.name;
    graph_.stage = host.stage;
    for (const auto& part : parts) graph_.stage = std::max(graph_.stage, part->stage);
    GraphCopy copy(host, graph_);
    copy.add_inputs();
    std::size_t calls = 0;
    for (const Node& node : host.nodes()) {
      if (const std::optional<std::uint32_t> group = called_by(node, parts)) {
        add_part(host, node, *parts[*group], *group, copy);
        ++calls;
      } else {
        copy.add(node);
        groups_.push_back(kNoGroup);
      }
    }
    if (calls != parts.size())
      throw InternalError(
          {.where = "partition", .what = "the host calls " + std::to_string(calls) + " groups"});
    copy.add_outputs();
  }

  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] std::uint32_t group_of(NodeId node) const { return groups_[node.index()]; }
  [[nodiscard]] const std::vector<ValueId>& inputs(std::size_t part) const { return inputs_[part]; }
  [[nodiscard]] const std::vector<ValueId>& outputs(std::size_t part) const { return outputs_[part]; }

 private:
  static std::optional<std::uint32_t> called_by(const Node& node,
                                                std::span<const std::shared_ptr<const Graph>> parts) {
    if (node.op != Op::kOpaque) return std::nullopt;
    const std::string& target = Graph::attrs<OpaqueAttrs>(node).target;
    for (std::uint32_t part = 0; part < parts.size(); ++part)
      if (target == parts[part]->name) return part;
    return std::nullopt;
  }

  void add_part(const Graph& host, const Node& call, const Graph& part, std::uint32_t group,
                GraphCopy& copy) {
    if (part.inputs().size() != call.operand_count || part.outputs().size() != call.result_count)
      throw InternalError({.where = "partition",
                           .what = "lowering changed the inputs or outputs of " + part.name,
                           .expected = std::to_string(call.operand_count) + " inputs, " +
                                       std::to_string(call.result_count) + " outputs",
                           .got = std::to_string(part.inputs().size()) + " inputs, " +
                                  std::to_string(part.outputs().size()) + " outputs"});
    GraphCopy of_part(part, graph_);
    inputs_[group] = copy.all(host.operands(call));
    for (std::uint32_t i = 0; i < call.operand_count; ++i)
      of_part.set(part.inputs()[i].value, inputs_[group][i]);
    for (const Node& node : part.nodes()) of_part.add(node);
    groups_.resize(graph_.nodes().size(), group);
    for (std::uint32_t r = 0; r < call.result_count; ++r) {
      outputs_[group].push_back(of_part.of(part.outputs()[r].value));
      copy.set(host.result(call, r), outputs_[group].back());
    }
  }

  Graph graph_;
  std::vector<std::uint32_t> groups_;                   // by node
  std::vector<std::vector<ValueId>> inputs_, outputs_;  // by part
};

// The one order in which everything outside the group reads the value; nothing if there are several, or if a
// view of the value is read.
std::optional<DimOrder> read_outside(const Joined& joined, const layout::LayoutPlan& plan, ValueId value,
                                     std::uint32_t group) {
  const Graph& graph = joined.graph();
  std::vector<DimOrder> orders;
  for (const NodeId user : graph.users(value)) {
    if (joined.group_of(user) == group) continue;
    const Node& node = graph.node(user);
    if (layout::makes_view(graph, node)) return std::nullopt;
    for (std::uint32_t i = 0; i < node.operand_count; ++i)
      if (graph.operands(node)[i] == value) orders.push_back(plan.options[user.index()].operands[i]);
  }
  for (std::size_t i = 0; i < graph.outputs().size(); ++i)
    if (graph.outputs()[i].value == value) orders.push_back(plan.outputs[i]);
  const std::size_t rank = graph.type(value).rank();
  for (const DimOrder& order : orders)
    if (order.axes(rank) != orders.front().axes(rank)) return std::nullopt;
  return orders.empty() ? std::nullopt : std::optional(orders.front());
}

}  // namespace

BorderOrders plan_border_orders(const Graph& host, std::span<const std::shared_ptr<const Graph>> parts,
                                const layout::Objective& objective, const target::LayoutNeeds& needs) {
  const Joined joined(host, parts);
  const layout::LayoutPlan plan = layout::plan_layout(joined.graph(), objective, {}, needs);
  std::vector<DimOrder> crosses = plan.order;  // by value
  BorderOrders out;
  out.parts.resize(parts.size());
  for (std::uint32_t part = 0; part < parts.size(); ++part)
    for (const ValueId value : joined.outputs(part)) {
      const Node* const producer = joined.graph().producer(value);
      if (producer != nullptr && joined.group_of(joined.graph().id(*producer)) == part)
        if (const std::optional<DimOrder> order = read_outside(joined, plan, value, part))
          crosses[value.index()] = *order;
      out.parts[part].outputs.push_back(crosses[value.index()]);
    }
  for (std::uint32_t part = 0; part < parts.size(); ++part)
    for (const ValueId value : joined.inputs(part)) out.parts[part].inputs.push_back(crosses[value.index()]);
  out.transposes = static_cast<std::int64_t>(plan.transposes.size());
  out.bytes = plan.bytes;
  out.cost = plan.cost;
  out.bound = layout::review_plan(joined.graph(), plan, objective, {}).bound;
  return out;
}

}  // namespace tosaic::partition
