#include "tosaic/layout/remedies.h"

#include "tosaic/layout/order.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kMostDeclared = 32;  // each declared order is tried with a plan of its own

ValueId value_of(const Graph& graph, const DeclaredOrder& declared) {
  return declared.is_input ? graph.inputs()[declared.index].value : graph.outputs()[declared.index].value;
}

std::string name_of(const Graph& graph, const DeclaredOrder& declared) {
  return declared.is_input ? "input '" + graph.inputs()[declared.index].path + "'"
                           : "output '" + graph.outputs()[declared.index].path + "'";
}

Graph with(Graph graph, const std::vector<DeclaredOrder>& declared) {
  for (const DeclaredOrder& each : declared) {
    BoundaryFormat boundary =
        each.is_input ? graph.inputs()[each.index].boundary : graph.outputs()[each.index].boundary;
    boundary.order = each.order;
    if (each.is_input)
      graph.set_input_boundary(each.index, boundary);
    else
      graph.set_output_boundary(each.index, boundary);
  }
  return graph;
}

// The inputs and outputs whose order in the plan differs in memory from the declared one.
std::vector<DeclaredOrder> changed_in(const Graph& graph, const LayoutPlan& plan) {
  std::vector<DeclaredOrder> out;
  const auto note = [&](bool is_input, std::uint32_t index, ValueId value, const DimOrder& now,
                        const DimOrder& then) {
    if (!same_in_memory(graph.type(value).shape, now, then)) out.push_back({is_input, index, then});
  };
  for (std::uint32_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    note(true, i, input.value, input.boundary.order, plan.order[input.value.index()]);
  }
  for (std::uint32_t o = 0; o < graph.outputs().size(); ++o)
    note(false, o, graph.outputs()[o].value, boundary_order(graph, graph.outputs()[o]), plan.outputs[o]);
  return out;
}

// The cost of the plan as the objective counts it, without the part of the weights that decides ties.
Cost cost_of(const LayoutPlan& plan) {
  Cost sum = 0;
  for (const Transpose& each : plan.transposes) sum += each.cost;
  return sum;
}

class Replanning {
 public:
  Replanning(const Graph& graph, const Objective& objective, const target::LayoutNeeds& needs)
      : graph_(graph), objective_(objective), needs_(needs) {}

  // Plans the graph with the remedy. Sets its bytes and transposes, and returns the cost of the plan.
  Cost operator()(Remedy& remedy) const {
    const LayoutPlan plan = plan_layout(with(graph_, remedy.declared), objective_, {}, needs_);
    remedy.bytes = plan.bytes;
    remedy.transposes = plan.transposes.size();
    return cost_of(plan);
  }

 private:
  const Graph& graph_;
  const Objective& objective_;
  const target::LayoutNeeds& needs_;
};

// Removes those declared orders that do not lower the cost.
void shorten(Remedy& remedy, Cost cost, const Replanning& cost_with) {
  for (std::size_t i = remedy.declared.size(); i-- > 0 && remedy.declared.size() > 1;) {
    Remedy shorter = remedy;
    shorter.declared.erase(shorter.declared.begin() + static_cast<std::ptrdiff_t>(i));
    if (cost_with(shorter) <= cost) remedy = std::move(shorter);
  }
}

}  // namespace

std::vector<Remedy> remedies_of(const Graph& graph, const LayoutPlan& plan, const Objective& objective,
                                const FreeBoundaries& free) {
  if (plan.transposes.empty()) return {};
  const Replanning cost_with(graph, objective, plan.needs);
  const Cost now = cost_of(plan);
  Remedy all{changed_in(graph, plan_layout(graph, objective, free))};
  if (all.declared.empty() || all.declared.size() > kMostDeclared) return {};
  const Cost least = cost_with(all);
  if (least >= now) return {};
  shorten(all, least, cost_with);
  std::vector<Remedy> out;
  if (all.declared.size() > 1)
    for (const DeclaredOrder& each : all.declared) {
      Remedy one{{each}};
      if (cost_with(one) < now) out.push_back(std::move(one));
    }
  out.push_back(std::move(all));
  return out;
}

std::string text_of(const Graph& graph, const Remedy& remedy) {
  std::string out = "Declare ";
  for (const DeclaredOrder& each : remedy.declared) {
    if (&each != &remedy.declared.front()) out += " and ";
    const std::size_t rank = graph.type(value_of(graph, each)).rank();
    const bool last = rank >= 3 && each.order == DimOrder::channels_last(rank);
    const std::string order = last                       ? "channels_last"
                              : each.order.is_identity() ? "contiguous"
                                                         : to_string(each.order.axes(rank));
    out += name_of(graph, each) + " " + order;
  }
  if (remedy.transposes == 0) return out + ": that leaves no transpose";
  return out + ": that leaves " + std::to_string(remedy.transposes) +
         (remedy.transposes == 1 ? " transpose of " : " transposes of ") + std::to_string(remedy.bytes) +
         " bytes";
}

}  // namespace tosaic::layout
