#include "tosaic/layout/plan.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/base/work.h"
#include "tosaic/layout/order.h"
#include "tosaic/layout/solve.h"
#include "tosaic/layout/views.h"

namespace tosaic::layout {
namespace {

using Orders = SmallVector<DimOrder, 3>;  // of a value

constexpr std::size_t kMostWays = 8;                   // of a node
constexpr std::size_t kWidest = std::size_t{1} << 20;  // entries of a table; 6 nodes need 8^6 = 2^18

// False if at most one axis has an extent other than 1: then all orders are the same in memory.
bool has_orders(const Shape& shape) {
  return std::count_if(shape.begin(), shape.end(), [](std::int64_t extent) { return extent != 1; }) > 1;
}

// The limit for the sum of the costs of all tensors.
constexpr double kMostCost = 0x1p60;

// `all`: an upper bound of what all tensors can cost together. `fixed`: 1 plus an upper bound of how often
// the tensors that cannot be moved may count. The weight of each of those must exceed the cost of all others
// together, so the product all * fixed must be below kMostCost.
struct Totals {
  double all = 0, fixed = 1;
};

Totals totals_of(const Problem& problem, const std::vector<bool>& movable) {
  Totals totals;
  for (std::size_t t = 0; t < movable.size(); ++t) {
    const double uses = uses_of(problem.tensors[t]);
    totals.all += static_cast<double>(problem.tensors[t].weight) * uses;
    if (!movable[t]) totals.fixed += uses;
  }
  return totals;
}

// Turns the costs of tensors into weights that also decide ties:
//
//   by count     bytes + min(A, 2^40) + 1, where A is an upper bound of what all tensors cost in bytes
//   otherwise    cost * 2^16 + 1, or just the cost if the sum would exceed kMostCost
//
// A tensor that cannot be moved gets a weight above the sum of all others, so that it is not transposed.
void weigh(Problem& problem, const std::vector<bool>& movable, bool by_count) {
  const auto [all, fixed] = totals_of(problem, movable);
  constexpr Cost kFine = 1 << 16;
  const Cost finer = all * fixed * kFine < kMostCost ? kFine : 1;
  const Cost many = static_cast<Cost>(std::min(all, 0x1p40)) + 1;
  double weighed = 0;
  for (Tensor& tensor : problem.tensors) {
    tensor.weight = by_count ? tensor.weight + many : tensor.weight * finer + (finer > 1 ? 1 : 0);
    weighed += static_cast<double>(tensor.weight) * uses_of(tensor);
  }
  for (std::size_t t = 0; t < movable.size(); ++t)
    if (!movable[t]) problem.tensors[t].weight = static_cast<Cost>(weighed) + 1;
}

// Collects the layout options of all nodes: each option of a node offers its orders to the neighbours, which
// may add options for them, until no value is offered a new order.
class Chooser {
 public:
  explicit Chooser(const Graph& graph)
      : graph_(graph), known_(graph.nodes().size()), offered_(graph.values().size()) {
    pool_.reserve(4 * graph.nodes().size());
  }

  Choices run() {
    for (const Input& input : graph_.inputs()) offer(input.value, input.border.order);
    for (const Output& output : graph_.outputs()) offer(output.value, border_order(graph_, output));
    for (const Node& node : graph_.nodes())
      if (is_always_tried(graph_, node)) add(node, wanted_way(graph_, node));
    drain();
    for (const Node& node : graph_.nodes())
      if (known_[graph_.id(node).index()].count == 0) add(node, wanted_way(graph_, node));
    drain();
    return by_node();
  }

  // The orders that were offered for a value. The order of a graph input or output is first.
  [[nodiscard]] const Orders& offered(ValueId value) const { return offered_[value.index()]; }

 private:
  struct Offer {
    ValueId value;
    DimOrder order;
  };

  // Offers each order of a value once, however many nodes lead to it.
  void offer(ValueId value, const DimOrder& order) {
    if (graph_.value(value).kind == ValueKind::kConstant) return;
    Orders& known = offered_[value.index()];
    if (std::find(known.begin(), known.end(), order) != known.end()) return;
    known.push_back(order);
    offers_.push_back({value, order});
  }

  void drain() {
    while (!offers_.empty()) {
      const Offer next = std::move(offers_.back());
      offers_.pop_back();
      if (const Node* producer = graph_.producer(next.value);
          producer != nullptr && !is_fixed(graph_, *producer))
        consider(*producer,
                 way_by_result(graph_, *producer, graph_.value(next.value).result_index, next.order));
      for (const NodeId user : graph_.users(next.value)) {
        const Node& node = graph_.node(user);
        if (is_fixed(graph_, node)) continue;
        const std::span<const ValueId> operands = graph_.operands(node);
        for (std::size_t i = 0; i < operands.size(); ++i)
          if (operands[i] == next.value) consider(node, way_by_operand(graph_, node, i, next.order));
      }
    }
  }

  // Adds the option. If an order leads to no option, adds the one that the node itself wants.
  void consider(const Node& node, std::optional<Way> way) {
    add(node, way ? std::move(*way) : wanted_way(graph_, node));
  }

  void add(const Node& node, Way way) {
    work::add(1);
    Known& known = known_[graph_.id(node).index()];
    if (known.count >= kMostWays) return;
    for (std::uint32_t i = known.first; i != kNone; i = pool_[i].next)
      if (same(node, pool_[i].way, way)) return;
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid()) offer(operands[i], way.operands[i]);
    for (std::uint32_t r = 0; r < node.result_count; ++r) offer(graph_.result(node, r), way.results[r]);
    const auto added = static_cast<std::uint32_t>(pool_.size());
    pool_.push_back({std::move(way), kNone});
    (known.count == 0 ? known.first : pool_[known.last].next) = added;
    known.last = added;
    ++known.count;
  }

  Choices by_node() {
    Choices out;
    out.ways.reserve(pool_.size());
    out.first.reserve(known_.size() + 1);
    for (const Known& known : known_) {
      out.first.push_back(static_cast<std::uint32_t>(out.ways.size()));
      for (std::uint32_t i = known.first; i != kNone; i = pool_[i].next)
        out.ways.push_back(std::move(pool_[i].way));
    }
    out.first.push_back(static_cast<std::uint32_t>(out.ways.size()));
    return out;
  }

  [[nodiscard]] bool same(const Node& node, const Way& a, const Way& b) const {
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid() &&
          !same_in_memory(graph_.type(operands[i]).shape, a.operands[i], b.operands[i]))
        return false;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      if (!same_in_memory(graph_.type(graph_.result(node, r)).shape, a.results[r], b.results[r]))
        return false;
    return true;
  }

  static constexpr std::uint32_t kNone = 0xffffffffu;

  // An option, and the index of the next one of the same node.
  struct Pooled {
    Way way;
    std::uint32_t next = kNone;
  };
  struct Known {
    std::uint32_t first = kNone, last = kNone, count = 0;
  };

  const Graph& graph_;
  std::vector<Pooled> pool_;
  std::vector<Known> known_;     // by node
  std::vector<Orders> offered_;  // by value
  std::vector<Offer> offers_;
};

// The orders that each graph input and output may have. The declared order is first.
struct Borders {
  std::vector<Orders> inputs, outputs;
};

Borders borders_of(const Graph& graph, const Chooser& chooser, const FreeBorders& free) {
  const auto orders = [&](ValueId value, const DimOrder& declared, bool is_free) {
    Orders out{declared};
    if (!is_free) return out;
    for (const DimOrder& order : chooser.offered(value)) {
      const auto same = [&](const DimOrder& known) {
        return same_in_memory(graph.type(value).shape, known, order);
      };
      if (std::none_of(out.begin(), out.end(), same)) out.push_back(order);
    }
    return out;
  };
  Borders out;
  for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
    const Input& input = graph.inputs()[i];
    out.inputs.push_back(orders(input.value, input.border.order, i < free.inputs.size() && free.inputs[i]));
  }
  for (std::size_t o = 0; o < graph.outputs().size(); ++o) {
    const Output& output = graph.outputs()[o];
    out.outputs.push_back(
        orders(output.value, border_order(graph, output), o < free.outputs.size() && free.outputs[o]));
  }
  return out;
}

// States the graph as a Problem. Variables are the nodes, then the inputs, then the outputs. Inputs and
// outputs have one state unless they are free. The states of a node are its options.
class Statement {
 public:
  Statement(const Graph& graph, const std::vector<View>& views, const Choices& ways, const Borders& borders,
            const Objective& objective)
      : graph_(graph),
        views_(views),
        ways_(ways),
        own_cost_(std::get_if<TransposeCost>(&objective)),
        by_count_(std::holds_alternative<Measure>(objective) &&
                  std::get<Measure>(objective) == Measure::kCount),
        tensor_of_(graph.values().size()),
        labels_(graph.values().size()) {
    const std::size_t nodes = graph.nodes().size();
    problem.states.reserve(nodes + graph.inputs().size() + graph.outputs().size());
    for (std::size_t n = 0; n < nodes; ++n)
      problem.states.push_back(static_cast<std::uint32_t>(ways[n].size()));
    problem.states.resize(nodes + graph.inputs().size() + graph.outputs().size(), 1);
    problem.tensors.reserve(graph.values().size());
    for (std::uint32_t i = 0; i < graph.inputs().size(); ++i) {
      const ValueId value = graph.inputs()[i].value;
      make(value, access(static_cast<VariableId>(nodes + i), value, borders.inputs[i]));
    }
    for (std::uint32_t n = 0; n < nodes; ++n) state_node(n);
    for (std::uint32_t o = 0; o < graph.outputs().size(); ++o) {
      const ValueId value = graph.outputs()[o].value;
      const auto variable = static_cast<VariableId>(nodes + graph.inputs().size() + o);
      read(value, access(variable, value, borders.outputs[o]));
    }
    if (own_cost_ != nullptr) require_room();
    weigh(problem, movable_, by_count_);
  }

  Problem problem;

  // The order that is meant by the label `of` of a value. Labels number the orders of the value's data.
  [[nodiscard]] const DimOrder& order(ValueId value, std::uint8_t of) const {
    return labels_[value.index()][of];
  }
  [[nodiscard]] const std::optional<std::uint32_t>& tensor(ValueId value) const {
    return tensor_of_[value.index()];
  }
  // The cost of a transpose of the tensor as the objective counts, i.e. before `weigh`.
  [[nodiscard]] Cost cost(std::uint32_t tensor) const { return cost_[tensor]; }

 private:
  void state_node(std::uint32_t n) {
    const Node& node = graph_.nodes()[n];
    if (makes_view(graph_, node)) return;
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].valid()) continue;
      Access access{n, {}};
      for (const Way& way : ways_[n]) access.order.push_back(label(operands[i], way.operands[i]));
      read(operands[i], access);
    }
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId value = graph_.result(node, r);
      Access access{n, {}};
      for (const Way& way : ways_[n]) access.order.push_back(label(value, way.results[r]));
      make(value, access);
    }
  }

  // The access of a graph input or output, with a state for each of its orders.
  Access access(VariableId variable, ValueId value, const Orders& orders) {
    problem.states[variable] = static_cast<std::uint32_t>(orders.size());
    Access out{variable, {}};
    for (const DimOrder& order : orders) out.order.push_back(label(value, order));
    return out;
  }

  std::uint8_t label(ValueId value, const DimOrder& of_value) {
    const View& view = views_[value.index()];
    const DimOrder order = view.of == value ? of_value : view.of_data(of_value);
    Orders& known = labels_[view.of.index()];
    const Shape& shape = graph_.type(view.of).shape;
    for (std::size_t k = 0; k < known.size(); ++k)
      if (same_in_memory(shape, known[k], order)) return static_cast<std::uint8_t>(k);
    if (known.size() == 256)
      throw InternalError({.where = "layout", .what = "a value has more than 256 orders"});
    known.push_back(order);
    return static_cast<std::uint8_t>(known.size() - 1);
  }

  void make(ValueId value, const Access& made) {
    tensor_of_[value.index()] = static_cast<std::uint32_t>(problem.tensors.size());
    const TensorType& type = graph_.type(value);
    movable_.push_back(can_be_moved(type.dtype));
    const bool is_asked = movable_.back() && has_orders(type.shape);
    const Cost weight = own_cost_ == nullptr ? bytes_of(type) : is_asked ? own_cost(value) : 0;
    cost_.push_back(by_count_ ? 1 : weight);
    problem.tensors.push_back({made, {}, weight});
  }

  [[nodiscard]] Cost own_cost(ValueId value) const {
    const Cost cost = (*own_cost_)(graph_, value);
    if (cost < 0) refuse(value, "a transpose of it has a negative cost", "0 or more", cost);
    return cost;
  }

  // Throws InvalidGraph if the caller's costs, and the weights of tensors that cannot be moved on top of
  // them, add up to kMostCost or more.
  void require_room() const {
    const auto [all, fixed] = totals_of(problem, movable_);
    if (all * fixed < kMostCost) return;
    std::uint32_t largest = 0;
    for (std::uint32_t t = 0; t < problem.tensors.size(); ++t)
      if (problem.tensors[t].weight > problem.tensors[largest].weight) largest = t;
    const auto value = std::find(tensor_of_.begin(), tensor_of_.end(), std::optional(largest));
    refuse(ValueId(static_cast<std::uint32_t>(value - tensor_of_.begin())),
           "the costs of transposes, of which this is the largest, add up to too much",
           "a sum below 2^60, each counted twice for each order of each reader",
           problem.tensors[largest].weight);
  }

  [[noreturn]] void refuse(ValueId value, const std::string& what, const std::string& expected,
                           Cost got) const {
    throw InvalidGraph({.where = "layout",
                        .what = what,
                        .expected = expected,
                        .got = std::to_string(got),
                        .node = graph_.value(value).name});
  }

  void read(ValueId value, const Access& access) {
    if (const std::optional<std::uint32_t>& tensor = tensor_of_[views_[value.index()].of.index()])
      problem.tensors[*tensor].read.push_back(access);
  }

  const Graph& graph_;
  const std::vector<View>& views_;
  const Choices& ways_;
  const TransposeCost* own_cost_;
  bool by_count_;
  std::vector<bool> movable_;  // by tensor
  std::vector<Cost> cost_;     // by tensor
  std::vector<std::optional<std::uint32_t>> tensor_of_;
  std::vector<Orders> labels_;
};

void note_transposes(const Graph& graph, const Statement& statement, const std::vector<std::uint32_t>& state,
                     LayoutPlan& plan) {
  for (std::uint32_t v = 0; v < graph.values().size(); ++v) {
    const ValueId value(v);
    const std::optional<std::uint32_t>& tensor = statement.tensor(value);
    if (!tensor) continue;
    const Tensor& t = statement.problem.tensors[*tensor];
    std::vector<std::uint8_t> seen{t.made.order[state[t.made.variable]]};
    for (const Access& read : t.read) {
      const std::uint8_t wanted = read.order[state[read.variable]];
      if (std::find(seen.begin(), seen.end(), wanted) != seen.end()) continue;
      seen.push_back(wanted);
      const std::int64_t bytes = bytes_of(graph.type(value));
      plan.transposes.push_back(
          {value, plan.order[v], statement.order(value, wanted), bytes, statement.cost(*tensor)});
      plan.bytes += bytes;
    }
  }
}

}  // namespace

// TOSA represents i64 as i32.
std::int64_t bytes_of(const TensorType& type) {
  return num_elements(type.shape) *
         static_cast<std::int64_t>(type.dtype == DType::kI64 ? 4 : byte_size(type.dtype));
}

bool can_be_moved(DType dtype) { return without_sign(dtype) == dtype && dtype != DType::kI48; }

Choices choices_of(const Graph& graph) { return Chooser(graph).run(); }

LayoutPlan plan_layout(const Graph& graph, const Objective& objective, const FreeBorders& free) {
  auto last = std::chrono::steady_clock::now();
  const auto lap = [&last] {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last, now)).count();
  };
  PlanSeconds seconds;
  Chooser chooser(graph);
  Choices ways = chooser.run();
  const Borders borders = borders_of(graph, chooser, free);
  const std::vector<View> views = views_of(graph);
  Statement statement(graph, views, ways, borders, objective);
  seconds.state = lap();
  Solution solution = solve(statement.problem, {.widest = kWidest});
  seconds.solve = lap();
  LayoutPlan plan;
  plan.order.resize(graph.values().size());
  plan.ways.reserve(graph.nodes().size());
  std::size_t variable = graph.nodes().size();
  for (std::size_t i = 0; i < borders.inputs.size(); ++i)
    plan.order[graph.inputs()[i].value.index()] = borders.inputs[i][solution.state[variable++]];
  for (const Orders& output : borders.outputs) plan.outputs.push_back(output[solution.state[variable++]]);
  for (std::uint32_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    Way way = std::move(ways.ways[ways.first[n] + solution.state[n]]);
    if (makes_view(graph, node)) {
      const DimOrder& from = plan.order[graph.operands(node)[0].index()];
      way = {{from}, {order_of_view(graph, node, from)}};
    }
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      plan.order[graph.result(node, r).index()] = way.results[r];
    plan.ways.push_back(std::move(way));
  }
  note_transposes(graph, statement, solution.state, plan);
  plan.cost = solution.cost;
  plan.problem = std::move(statement.problem);
  plan.seconds = seconds;
  plan.certificate = std::move(solution.certificate);
  return plan;
}

}  // namespace tosaic::layout
