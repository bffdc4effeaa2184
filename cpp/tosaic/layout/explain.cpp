#include "tosaic/layout/explain.h"

#include <deque>
#include <set>

#include "tosaic/layout/order.h"
#include "tosaic/layout/views.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kMostDemands = 3;

std::string text_of(const DimOrder& order, std::size_t rank) {
  if (order.is_identity()) return "row-major";
  if (order == DimOrder::channels_last(rank)) return "channels last";
  return "order " + to_string(order.axes(rank));
}

// Of operators that leave some axes free.
std::string_view partial_need(Op op) {
  if (op == Op::kLinear) return "linear wants its channels innermost";
  if (op == Op::kMatmul) return "matmul wants the axes of its matrices innermost";
  if (op == Op::kReshape) return "reshape wants the axes that it joins or splits side by side";
  return {};
}

// Walks from one side of a transpose through values that are read as they are made.
class Region {
 public:
  Region(const Graph& graph, const LayoutPlan& plan, const std::vector<Remedy>& remedies)
      : graph_(graph), plan_(plan), remedies_(remedies) {}

  std::vector<Demand> behind(const Transpose& at) {
    start();
    make(at.value);
    return walk();
  }

  std::vector<Demand> before(const Transpose& at) {
    start();
    read(at.value, at.to);
    return walk();
  }

 private:
  void start() {
    seen_.clear();
    next_.clear();
    found_.clear();
    views_.clear();
  }

  std::vector<Demand> walk() {
    while (!next_.empty() && found_.size() < kMostDemands) {
      const Node& node = graph_.nodes()[next_.front()];
      next_.pop_front();
      if (is_fixed(graph_, node)) {
        found_.push_back(demand_of(node));
        continue;
      }
      if (const std::string_view rule = partial_need(node.op); !rule.empty() && !makes_view(graph_, node))
        (node.op == Op::kReshape ? views_ : found_).push_back(demand_of(node, rule));
      const Way& way = plan_.ways[graph_.id(node).index()];
      const std::span<const ValueId> operands = graph_.operands(node);
      for (std::size_t i = 0; i < operands.size(); ++i) {
        if (!operands[i].valid() || graph_.value(operands[i]).kind == ValueKind::kConstant) continue;
        if (!is_alike(operands[i], way.operands[i], plan_.order[operands[i].index()])) continue;
        make(operands[i]);
        read(operands[i], way.operands[i]);
      }
      for (std::uint32_t r = 0; r < node.result_count; ++r) read(graph_.result(node, r), way.results[r]);
    }
    found_.insert(found_.end(), views_.begin(), views_.end());  // why, where nothing stronger is near
    if (found_.size() > kMostDemands) found_.resize(kMostDemands);
    return std::move(found_);
  }

  [[nodiscard]] bool is_alike(ValueId value, const DimOrder& a, const DimOrder& b) const {
    return same_in_memory(graph_.type(value).shape, a, b);
  }

  // Whoever makes the value.
  void make(ValueId value) {
    if (const Node* producer = graph_.producer(value)) {
      visit(graph_.id(*producer).index());
      return;
    }
    for (const Input& input : graph_.inputs())
      if (input.value == value && found_.size() < kMostDemands) found_.push_back(demand_of(input));
  }

  // Whoever reads it in this order.
  void read(ValueId value, const DimOrder& order) {
    for (const NodeId user : graph_.users(value)) {
      const Node& node = graph_.node(user);
      if (makes_view(graph_, node)) {
        read(graph_.result(node), order_of_view(graph_, node, order));
        continue;
      }
      const std::span<const ValueId> operands = graph_.operands(node);
      for (std::size_t i = 0; i < operands.size(); ++i)
        if (operands[i] == value && is_alike(value, plan_.ways[user.index()].operands[i], order))
          visit(user.index());
    }
    for (const Output& output : graph_.outputs())
      if (output.value == value && is_alike(value, border_order(graph_, output), order) &&
          found_.size() < kMostDemands)
        found_.push_back(demand_of(output));
  }

  void visit(std::uint32_t node) {
    if (seen_.insert(node).second) next_.push_back(node);
  }

  [[nodiscard]] Demand demand_of(const Node& node) const {
    const Way way = wanted_way(graph_, node);
    const DimOrder order = way.operands.empty() ? DimOrder() : way.operands.front();
    return demand_of(node,
                     std::string(info(node.op).name) + " wants " + text_of(order, order.axes(0).size()));
  }

  [[nodiscard]] Demand demand_of(const Node& node, std::string_view rule) const {
    Demand out{graph_.node_name(node), std::string(rule), {}, {}, {}};
    const ErrorParts parts = located({.where = "layout", .what = ""}, node.origin, out.who);
    out.module_path = parts.module_path;
    out.source = parts.source;
    return out;
  }

  [[nodiscard]] Demand demand_of(const Input& input) const {
    const std::size_t rank = graph_.type(input.value).rank();
    return {input.path,
            "the input comes " + text_of(input.border.order, rank),
            {},
            {},
            remedy_of(true, static_cast<std::size_t>(&input - graph_.inputs().data()))};
  }

  [[nodiscard]] Demand demand_of(const Output& output) const {
    const std::size_t rank = graph_.type(output.value).rank();
    return {output.path,
            "the output goes " + text_of(output.border.order, rank),
            {},
            {},
            remedy_of(false, static_cast<std::size_t>(&output - graph_.outputs().data()))};
  }

  [[nodiscard]] std::string remedy_of(bool is_input, std::size_t index) const {
    for (const Remedy& remedy : remedies_)
      for (const DeclaredOrder& each : remedy.declared)
        if (each.is_input == is_input && each.index == index) return layout::text_of(graph_, remedy);
    return {};
  }

  const Graph& graph_;
  const LayoutPlan& plan_;
  const std::vector<Remedy>& remedies_;
  std::set<std::uint32_t> seen_;
  std::deque<std::uint32_t> next_;
  std::vector<Demand> found_, views_;
};

}  // namespace

std::vector<Explanation> explain(const Graph& graph, const LayoutPlan& plan,
                                 const std::vector<Remedy>& remedies) {
  Region region(graph, plan, remedies);
  std::vector<Explanation> out;
  for (const Transpose& each : plan.transposes) out.push_back({region.behind(each), region.before(each)});
  return out;
}

}  // namespace tosaic::layout
