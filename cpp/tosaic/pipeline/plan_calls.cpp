#include "tosaic/pipeline/plan_calls.h"

#include <map>
#include <utility>

#include "tosaic/layout/order.h"
#include "tosaic/passes/pass.h"

namespace tosaic::pipeline {
namespace {

bool is_taken_apart(const Graph& /*graph*/, const Node& node) {
  return node.op != Op::kGridSample && !info(node.op).has(kElementwise);
}

// The graph with its own ids as the sources of its values.
std::shared_ptr<const Graph> with_sources(const Graph& graph) {
  auto out = std::make_shared<Graph>(graph);
  for (std::uint32_t v = 0; v < graph.values().size(); ++v) out->set_source(ValueId(v), ValueId(v));
  return out;
}

// For each value of `planned`, by index: the value of `imported` that it represents, if there is one and it
// has the same kind and shape.
std::vector<std::optional<ValueId>> imported_values(const Graph& imported, const Graph& planned) {
  std::vector<std::optional<ValueId>> out(planned.values().size());
  for (std::uint32_t v = 0; v < planned.values().size(); ++v) {
    const Value& value = planned.values()[v];
    if (!value.source.valid()) continue;
    const Value& other = imported.value(value.source);
    if (other.kind == value.kind && other.type.shape == value.type.shape) out[v] = value.source;
  }
  return out;
}

class Reads {
 public:
  Reads(const CallPlan& plan, std::vector<std::optional<ValueId>> imported)
      : plan_(plan), graph_(*plan.graph), imported_(std::move(imported)) {}

  std::vector<CallRead> run() && {
    for (std::uint32_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      const std::span<const ValueId> operands = graph_.operands(node);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        if (!operands[i].valid() || !imported_[operands[i].index()]) continue;
        for (const OriginRef& leaf : leaves(node.origin))
          note(leaf->fx_name, operands[i], plan_.plan.options[n].operands[i]);
      }
    }
    return std::move(reads_);
  }

 private:
  void note(const std::string& call, ValueId planned, const DimOrder& order) {
    const ValueId value = *imported_[planned.index()];
    const auto [it, is_new] = known_.emplace(std::pair(call, value.index()), reads_.size());
    if (is_new) {
      reads_.push_back({call, value, order});
      return;
    }
    const Value& read = graph_.value(planned);
    const bool is_made = read.kind != ValueKind::kConstant &&
                         layout::same_in_memory(read.type.shape, order, plan_.plan.order[planned.index()]);
    if (is_made) reads_[it->second].order = order;
  }

  const CallPlan& plan_;
  const Graph& graph_;
  std::vector<std::optional<ValueId>> imported_;
  std::map<std::pair<std::string, std::size_t>, std::size_t> known_;  // call, value -> index in reads_
  std::vector<CallRead> reads_;
};

}  // namespace

CallPlan plan_calls(const std::shared_ptr<const Graph>& imported, const BoundaryOrders& orders,
                    const layout::Objective& objective) {
  CallPlan out;
  out.graph = with_sources(*with_boundary_orders(imported, orders));
  if (std::optional<Graph> expanded = passes::expand_composites(*out.graph, is_taken_apart))
    out.graph = std::make_shared<const Graph>(std::move(*expanded));
  out.plan = layout::plan_layout(*out.graph, objective);
  out.review = layout::review_plan(*out.graph, out.plan, objective, carries_grid(*imported));
  const std::vector<std::optional<ValueId>> known = imported_values(*imported, *out.graph);
  out.orders.resize(imported->values().size());
  for (std::size_t v = 0; v < known.size(); ++v)
    if (known[v] && out.graph->values()[v].kind != ValueKind::kConstant)
      out.orders[known[v]->index()] = out.plan.order[v];
  out.reads = Reads(out, known).run();
  for (const Output& output : out.graph->outputs())
    out.outputs.emplace_back(layout::boundary_order(*out.graph, output));
  return out;
}

std::vector<bool> carries_grid(const Graph& graph) {
  std::vector<bool> is_grid(graph.values().size());
  for (std::size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    const std::span<const ValueId> operands = graph.operands(node);
    if (node.op == Op::kGridSample) is_grid[operands[1].index()] = true;
    if (!info(node.op).has(kElementwise) || !is_grid[graph.result(node).index()]) continue;
    for (const ValueId operand : operands)
      if (operand.valid() && graph.type(operand).shape == graph.type(graph.result(node)).shape)
        is_grid[operand.index()] = true;
  }
  std::vector<bool> out;
  for (const Input& input : graph.inputs()) out.push_back(is_grid[input.value.index()]);
  return out;
}

}  // namespace tosaic::pipeline
