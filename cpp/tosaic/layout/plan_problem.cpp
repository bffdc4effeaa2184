#include "tosaic/layout/plan_problem.h"

#include <algorithm>

#include "tosaic/base/error.h"
#include "tosaic/layout/order.h"

namespace tosaic::layout {
namespace {

// True if two orders of this shape can differ in memory: at least two axes have an extent other than 1.
bool has_orders(const Shape& shape) {
  return std::count_if(shape.begin(), shape.end(), [](std::int64_t extent) { return extent != 1; }) > 1;
}

// The limit for the sum of the costs of all tensors.
constexpr double kMostCost = 0x1p60;

// The sums that limit weights. `all` is an upper bound of the cost of all tensors together. `fixed` is 1 plus
// an upper bound of how often the tensors that cannot be transposed may count. The weight of each such tensor
// must exceed the cost of all others together, so the product all * fixed must be below kMostCost.
struct Totals {
  double all = 0, fixed = 1;
};

Totals totals_of(const Problem& problem, const std::vector<bool>& can_be_transposed) {
  Totals totals;
  for (std::size_t t = 0; t < can_be_transposed.size(); ++t) {
    const double uses = uses_of(problem.tensors[t]);
    totals.all += static_cast<double>(problem.tensors[t].weight) * uses;
    if (!can_be_transposed[t]) totals.fixed += uses;
  }
  return totals;
}

// Turns the costs of tensors into weights that also decide ties. Let A be an upper bound of the total cost of
// all tensors:
//
//   the objective counts transposes    weight = bytes + min(A, 2^40) + 1: fewer transposes, then fewer bytes
//   every other objective              weight = cost * 2^16 + 1: less cost, then fewer transposes; or just
//                                      the cost, without ties, if the weights would add up to kMostCost
//
// A tensor that cannot be transposed gets a weight above the sum of all others, so the plan does not
// transpose it.
void weigh(Problem& problem, const std::vector<bool>& can_be_transposed, bool by_count) {
  const auto [all, fixed] = totals_of(problem, can_be_transposed);
  constexpr Cost kFine = 1 << 16;
  const Cost finer = all * fixed * kFine < kMostCost ? kFine : 1;
  const Cost many = static_cast<Cost>(std::min(all, 0x1p40)) + 1;
  double weighed = 0;
  for (Tensor& tensor : problem.tensors) {
    tensor.weight = by_count ? tensor.weight + many : tensor.weight * finer + (finer > 1 ? 1 : 0);
    weighed += static_cast<double>(tensor.weight) * uses_of(tensor);
  }
  for (std::size_t t = 0; t < can_be_transposed.size(); ++t)
    if (!can_be_transposed[t]) problem.tensors[t].weight = static_cast<Cost>(weighed) + 1;
}

}  // namespace

PlanProblem::PlanProblem(const Graph& graph, const std::vector<View>& views, const Choices& choices,
                         const BoundaryOrders& boundary, const Objective& objective,
                         const target::LayoutNeeds& needs)
    : graph_(graph),
      views_(views),
      choices_(choices),
      needs_(needs),
      callers_cost_(std::get_if<TransposeCost>(&objective)),
      by_count_(std::holds_alternative<Measure>(objective) &&
                std::get<Measure>(objective) == Measure::kCount),
      tensor_of_(graph.values().size()),
      orders_(graph.values().size()) {
  const std::size_t nodes = graph.nodes().size(), inputs = graph.inputs().size();
  problem_.states.reserve(nodes + inputs + graph.outputs().size());
  for (std::size_t n = 0; n < nodes; ++n)
    problem_.states.push_back(static_cast<std::uint32_t>(choices[n].size()));
  problem_.states.resize(nodes + inputs + graph.outputs().size(), 1);
  problem_.tensors.reserve(graph.values().size());
  for (std::uint32_t i = 0; i < inputs; ++i) {
    const ValueId value = graph.inputs()[i].value;
    make(value, boundary_access(static_cast<VariableId>(nodes + i), value, boundary.inputs[i]));
  }
  for (std::uint32_t n = 0; n < nodes; ++n) state_node(n);
  for (std::uint32_t o = 0; o < graph.outputs().size(); ++o) {
    const ValueId value = graph.outputs()[o].value;
    const auto variable = static_cast<VariableId>(nodes + inputs + o);
    read(value, boundary_access(variable, value, boundary.outputs[o]));
  }
  if (callers_cost_ != nullptr) require_room();
  weigh(problem_, can_be_transposed_, by_count_);
}

void PlanProblem::state_node(std::uint32_t n) {
  const Node& node = graph_.nodes()[n];
  if (makes_view(graph_, node)) return;
  const std::span<const ValueId> operands = graph_.operands(node);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].valid()) continue;
    Access access{n, {}};
    for (const LayoutOption& option : choices_[n])
      access.order.push_back(number_of(operands[i], option.operands[i]));
    read(operands[i], access);
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId value = graph_.result(node, r);
    Access access{n, {}};
    for (const LayoutOption& option : choices_[n])
      access.order.push_back(number_of(value, option.results[r]));
    make(value, access);
  }
}

// The access of a graph input or output, with a state for each of its orders.
Access PlanProblem::boundary_access(VariableId variable, ValueId value, const ValueOrders& orders) {
  problem_.states[variable] = static_cast<std::uint32_t>(orders.size());
  Access out{variable, {}};
  for (const DimOrder& order : orders) out.order.push_back(number_of(value, order));
  return out;
}

std::uint8_t PlanProblem::number_of(ValueId value, const DimOrder& of_value) {
  const View& view = views_[value.index()];
  const DimOrder order = view.of == value ? of_value : view.of_data(of_value);
  ValueOrders& known = orders_[view.of.index()];
  const Shape& shape = graph_.type(view.of).shape;
  for (std::size_t k = 0; k < known.size(); ++k)
    if (same_in_memory(shape, known[k], order)) return static_cast<std::uint8_t>(k);
  if (known.size() == 256)
    throw InternalError({.where = "layout", .what = "a value has more than 256 orders"});
  known.push_back(order);
  return static_cast<std::uint8_t>(known.size() - 1);
}

void PlanProblem::make(ValueId value, const Access& made) {
  tensor_of_[value.index()] = static_cast<std::uint32_t>(problem_.tensors.size());
  const TensorType& type = graph_.type(value);
  can_be_transposed_.push_back(needs_.can_transpose(type.dtype));
  const bool is_asked = can_be_transposed_.back() && has_orders(type.shape);
  const Cost weight = callers_cost_ == nullptr ? needs_.bytes_of(type) : is_asked ? callers_cost(value) : 0;
  cost_.push_back(by_count_ ? 1 : weight);
  problem_.tensors.push_back({made, {}, weight});
}

Cost PlanProblem::callers_cost(ValueId value) const {
  const Cost cost = (*callers_cost_)(graph_, value);
  if (cost < 0) refuse(value, "a transpose of it has a negative cost", "0 or more", cost);
  return cost;
}

// Throws InvalidGraph if the costs of all transposes may add up to kMostCost or more. The caller's function
// determines the cost of a transpose. Only a tensor that cannot be transposed has a cost above that of all
// others together (see weigh()).
void PlanProblem::require_room() const {
  const auto [all, fixed] = totals_of(problem_, can_be_transposed_);
  if (all * fixed < kMostCost) return;
  std::uint32_t largest = 0;
  for (std::uint32_t t = 0; t < problem_.tensors.size(); ++t)
    if (problem_.tensors[t].weight > problem_.tensors[largest].weight) largest = t;
  const auto value = std::find(tensor_of_.begin(), tensor_of_.end(), std::optional(largest));
  refuse(ValueId(static_cast<std::uint32_t>(value - tensor_of_.begin())),
         "the costs of transposes, of which this is the largest, add up to too much",
         "a sum below 2^60, each counted twice for each order of each reader",
         problem_.tensors[largest].weight);
}

void PlanProblem::refuse(ValueId value, const std::string& what, const std::string& expected,
                         Cost got) const {
  throw InvalidGraph({.where = "layout",
                      .what = what,
                      .expected = expected,
                      .got = std::to_string(got),
                      .node = graph_.value(value).name});
}

void PlanProblem::read(ValueId value, const Access& access) {
  if (const std::optional<std::uint32_t>& tensor = tensor_of_[views_[value.index()].of.index()])
    problem_.tensors[*tensor].read.push_back(access);
}

}  // namespace tosaic::layout
