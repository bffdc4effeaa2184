#include "tosaic/layout/plan.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tosaic/layout/order.h"
#include "tosaic/layout/plan_problem.h"
#include "tosaic/layout/views.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kWidest = std::size_t{1} << 20;  // entries of a table; 6 nodes need 8^6 = 2^18

BoundaryOrders boundary_orders_of(const Graph& graph, const Choices& choices, const FreeBoundaries& free) {
  const auto orders = [&](ValueId value, const DimOrder& declared, bool is_free) {
    ValueOrders out{declared};
    if (!is_free) return out;
    for (const DimOrder& order : choices.offered[value.index()]) {
      const auto same = [&](const DimOrder& known) {
        return same_in_memory(graph.type(value).shape, known, order);
      };
      if (std::none_of(out.begin(), out.end(), same)) out.push_back(order);
    }
    return out;
  };
  BoundaryOrders out;
  for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    out.inputs.push_back(orders(input.value, input.boundary.order, i < free.inputs.size() && free.inputs[i]));
  }
  for (std::size_t o = 0; o < graph.outputs().size(); ++o) {
    const Output& output = graph.outputs()[o];
    out.outputs.push_back(
        orders(output.value, boundary_order(graph, output), o < free.outputs.size() && free.outputs[o]));
  }
  return out;
}

// Reads the option of each node from the states of the solution. Sets the orders of the values that follow
// from these options.
void write_orders(const Graph& graph, const BoundaryOrders& boundary, Choices choices,
                  const std::vector<std::uint32_t>& state, LayoutPlan& plan) {
  plan.order.resize(graph.values().size());
  plan.options.reserve(graph.nodes().size());
  std::size_t variable = graph.nodes().size();
  for (std::size_t i = 0; i < boundary.inputs.size(); ++i)
    plan.order[graph.inputs()[i].value.index()] = boundary.inputs[i][state[variable++]];
  for (const ValueOrders& output : boundary.outputs) plan.outputs.push_back(output[state[variable++]]);
  for (std::uint32_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    LayoutOption option = std::move(choices.options[choices.first[n] + state[n]]);
    if (makes_view(graph, node)) {
      const DimOrder& from = plan.order[graph.operands(node)[0].index()];
      option = {{from}, {order_of_view(graph, node, from)}};
    }
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      plan.order[graph.result(node, r).index()] = option.results[r];
    plan.options.push_back(std::move(option));
  }
}

// Adds a transpose for each order in which a value is read but not made.
void note_transposes(const Graph& graph, const PlanProblem& stated, const std::vector<std::uint32_t>& state,
                     LayoutPlan& plan) {
  for (std::uint32_t v = 0; v < graph.values().size(); ++v) {
    const ValueId value(v);
    const std::optional<std::uint32_t>& tensor = stated.tensor(value);
    if (!tensor) continue;
    const Tensor& t = stated.problem().tensors[*tensor];
    std::vector<std::uint8_t> seen{t.made.order[state[t.made.variable]]};
    for (const Access& read : t.read) {
      const std::uint8_t wanted = read.order[state[read.variable]];
      if (std::find(seen.begin(), seen.end(), wanted) != seen.end()) continue;
      seen.push_back(wanted);
      const std::int64_t bytes = plan.needs.bytes_of(graph.type(value));
      plan.transposes.push_back(
          {value, plan.order[v], stated.order(value, wanted), bytes, stated.cost(*tensor)});
      plan.bytes += bytes;
    }
  }
}

}  // namespace

LayoutPlan plan_layout(const Graph& graph, const Objective& objective, const FreeBoundaries& free,
                       const target::LayoutNeeds& needs) {
  auto last = std::chrono::steady_clock::now();
  const auto lap = [&last] {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last, now)).count();
  };
  PlanSeconds seconds;
  Choices choices = choices_of(graph, needs);
  const BoundaryOrders boundary = boundary_orders_of(graph, choices, free);
  const std::vector<View> views = views_of(graph);
  PlanProblem stated(graph, views, choices, boundary, objective, needs);
  seconds.state = lap();
  Solution solution = solve(stated.problem(), {.widest = kWidest});
  seconds.solve = lap();
  LayoutPlan plan;
  plan.needs = needs;
  write_orders(graph, boundary, std::move(choices), solution.state, plan);
  note_transposes(graph, stated, solution.state, plan);
  plan.cost = solution.cost;
  plan.problem = std::move(stated).release();
  plan.seconds = seconds;
  plan.certificate = std::move(solution.certificate);
  return plan;
}

}  // namespace tosaic::layout
