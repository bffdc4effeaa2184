#include "tosaic/layout/explain.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "tosaic/base/work.h"
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

// What an operator with several layout options requires of the order. Returns "" if it takes any order.
std::string_view partial_demand(const Node& node, target::LayoutNeed need) {
  if (need == target::LayoutNeed::kChannelsInnermost) return " wants its channels innermost";
  if (need == target::LayoutNeed::kMatricesInnermost) return " wants the axes of its matrices innermost";
  if (node.op == Op::kReshape) return " wants the axes that it joins or splits side by side";
  return {};
}

// Breadth-first walks from the demands (explain.h) explain all transposes. Vertices ("spots") are nodes and
// places. A place is the data of a value in one order. A value and its views (views.h) share places.
//
//   conv -- place (0,2,3,1), made -- relu       A node is connected with the places that it reads and makes.
//                  |                            A demand spreads from its node to these places, and from a
//              transpose                        place to further nodes only if the data is made in that
//                  |                            order: a transposed copy passes nothing on. Each spot stores
//           place (0,1,2,3) -- linear           the kMostDemands nearest demands.
class Regions {
 public:
  Regions(const Graph& graph, const LayoutPlan& plan, const std::vector<Remedy>& remedies)
      : graph_(graph),
        plan_(plan),
        rules_(graph, plan.needs),
        remedies_(remedies),
        views_(views_of(graph)),
        places_of_(graph.values().size()),
        spots_(graph.nodes().size()) {
    for (const Input& input : graph_.inputs())
      note(place(input.value, input.boundary.order), &input, Strength::kNeed);
    for (const Node& node : graph_.nodes())
      if (!makes_view(graph_, node)) add(node);
    for (const Output& output : graph_.outputs())
      if (graph_.value(output.value).kind != ValueKind::kConstant)
        note(place(output.value, boundary_order(graph_, output)), &output, Strength::kNeed);
    needs_ = nearest(Strength::kNeed);
    habits_ = nearest(Strength::kHabit);
  }

  std::vector<Demand> behind(const Transpose& at) {
    const Node* producer = graph_.producer(at.value);
    if (producer != nullptr) return demands_at(graph_.id(*producer).index());
    return {demand(graph_.value(at.value).result_index)};  // an input: sources_ begins with the inputs
  }

  std::vector<Demand> before(const Transpose& at) { return demands_at(place(at.value, at.to)); }

 private:
  // The number of a node (its index) or of a place. Places are numbered after all nodes.
  using SpotId = std::uint32_t;
  using Nearest = std::vector<SmallVector<std::uint32_t, kMostDemands>>;  // by spot: indices into sources_

  struct Spot {
    bool passes_on = true;  // false for nodes with one layout option, and for transposed copies
    std::vector<SpotId> next = {};
  };
  struct Place {
    DimOrder order;
    SpotId spot;
  };
  // The demand of a reshape is a habit, every other demand is a need. A list of demands has the needs first,
  // then habits up to a total of kMostDemands.
  enum class Strength : std::uint8_t { kNeed, kHabit };
  struct Source {
    SpotId at;
    std::variant<const Node*, const Input*, const Output*> who;
    Strength strength;
    std::optional<Demand> demand = {};
  };

  template <class Who>
  void note(SpotId at, const Who* who, Strength strength) {
    sources_.push_back({at, who, strength});
  }

  void add(const Node& node) {
    const SpotId spot = graph_.id(node).index();
    const LayoutOption& option = plan_.options[spot];
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid() && graph_.value(operands[i]).kind != ValueKind::kConstant)
        join(spot, place(operands[i], option.operands[i]));
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      join(spot, place(graph_.result(node, r), option.results[r]));
    if (rules_.has_one_option(node)) {
      spots_[spot].passes_on = false;
      note(spot, &node, Strength::kNeed);
    } else if (!partial_demand(node, rules_.need_of(node).need).empty()) {
      note(spot, &node, node.op == Op::kReshape ? Strength::kHabit : Strength::kNeed);
    }
  }

  void join(SpotId node, SpotId place) {
    spots_[node].next.push_back(place);
    if (spots_[place].passes_on) spots_[place].next.push_back(node);
  }

  SpotId place(ValueId value, const DimOrder& of_value) {
    const View& view = views_[value.index()];
    const DimOrder order = view.of == value ? of_value : view.of_data(of_value);
    const Shape& shape = graph_.type(view.of).shape;
    for (const Place& known : places_of_[view.of.index()])
      if (same_in_memory(shape, known.order, order)) return known.spot;
    const auto spot = static_cast<SpotId>(spots_.size());
    spots_.push_back({same_in_memory(shape, order, plan_.order[view.of.index()])});
    places_of_[view.of.index()].push_back({order, spot});
    return spot;
  }

  [[nodiscard]] Nearest nearest(Strength strength) const {
    Nearest known(spots_.size());
    std::deque<std::pair<SpotId, std::uint32_t>> next;
    const auto tell = [&](SpotId spot, std::uint32_t source) {
      auto& sources = known[spot];
      if (sources.size() == kMostDemands ||
          std::find(sources.begin(), sources.end(), source) != sources.end())
        return;
      sources.push_back(source);
      next.emplace_back(spot, source);
    };
    for (std::uint32_t s = 0; s < sources_.size(); ++s)
      if (sources_[s].strength == strength) tell(sources_[s].at, s);
    while (!next.empty()) {
      const auto [spot, source] = next.front();
      next.pop_front();
      work::add(1 + spots_[spot].next.size());
      for (const SpotId other : spots_[spot].next)
        if (is_place(other) || spots_[other].passes_on) tell(other, source);
    }
    return known;
  }

  [[nodiscard]] bool is_place(SpotId spot) const { return spot >= graph_.nodes().size(); }

  std::vector<Demand> demands_at(SpotId spot) {
    std::vector<Demand> out;
    for (const Nearest* known : {&needs_, &habits_})
      if (spot < known->size())
        for (const std::uint32_t source : (*known)[spot])
          if (out.size() < kMostDemands) out.push_back(demand(source));
    return out;
  }

  const Demand& demand(std::uint32_t source) {
    Source& from = sources_[source];
    if (!from.demand) from.demand = std::visit([this](const auto* who) { return demand_of(*who); }, from.who);
    return *from.demand;
  }

  [[nodiscard]] Demand demand_of(const Node& node) const {
    const std::string name(info(node.op).name);
    if (!rules_.has_one_option(node))
      return demand_of(node, name + std::string(partial_demand(node, rules_.need_of(node).need)));
    const LayoutOption option = rules_.preferred(node);
    const DimOrder order = option.operands.empty() ? DimOrder() : option.operands.front();
    return demand_of(node, name + " wants " + text_of(order, order.axes(0).size()));
  }

  [[nodiscard]] Demand demand_of(const Node& node, std::string rule) const {
    Demand out{graph_.node_name(node), std::move(rule), {}, {}, {}};
    const ErrorParts parts = located({.where = "layout", .what = ""}, node.origin, out.who);
    out.module_path = parts.module_path;
    out.source = parts.source;
    return out;
  }

  [[nodiscard]] Demand demand_of(const Input& input) const {
    const std::size_t rank = graph_.type(input.value).rank();
    return {input.path,
            "the input comes " + text_of(input.boundary.order, rank),
            {},
            {},
            remedy_of(true, static_cast<std::size_t>(&input - graph_.inputs().data()))};
  }

  [[nodiscard]] Demand demand_of(const Output& output) const {
    const std::size_t rank = graph_.type(output.value).rank();
    return {output.path,
            "the output goes " + text_of(output.boundary.order, rank),
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
  LayoutRules rules_;
  const std::vector<Remedy>& remedies_;
  std::vector<View> views_;
  std::vector<SmallVector<Place, 2>> places_of_;  // by the value that owns the data
  std::vector<Spot> spots_;
  std::vector<Source> sources_;
  Nearest needs_, habits_;
};

}  // namespace

std::vector<Explanation> explain(const Graph& graph, const LayoutPlan& plan,
                                 const std::vector<Remedy>& remedies) {
  std::vector<Explanation> out;
  if (plan.transposes.empty()) return out;
  Regions regions(graph, plan, remedies);
  for (const Transpose& each : plan.transposes) out.push_back({regions.behind(each), regions.before(each)});
  return out;
}

}  // namespace tosaic::layout
