#include "tosaic/layout/recast/placed_options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tosaic/base/work.h"
#include "tosaic/layout/options.h"
#include "tosaic/layout/order.h"
#include "tosaic/layout/recast/shapes.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kMostOptions = 8;  // the most options that a node may have

std::uint64_t mixed(std::uint64_t key, std::uint64_t value) {
  key = (key ^ value) * 0x9e3779b97f4a7c15u;
  return key ^ key >> 29;
}

// The option in which an elementwise node computes in another shape, and its result has placement `lead`.
// Returns nothing if no shape allows it.
std::optional<PlacedOption> recast_option(const Graph& graph, const Node& node, PlacementId lead,
                                          const target::LayoutNeeds& needs, Placements& placements) {
  const ValueId made = graph.result(node);
  const std::optional<Cuts> cuts = needed_cuts(graph, node, placements[lead]);
  if (!cuts || cuts->size() > needs.most_elementwise_axes + 1) return std::nullopt;
  PlacedOption option{{}, {lead}, true};
  const Placement parts = split_at(*cuts, placements[lead]);
  for (std::size_t i = 0; i < node.operand_count; ++i) {
    const ValueId operand = graph.operands(node)[i];
    if (!operand.valid() || is_constant(graph, operand) || is_table(node, i)) {
      option.operands.push_back(operand.valid() ? placements.id(shape_of(graph, operand), {}) : lead);
      continue;
    }
    const Shape& shape = shape_of(graph, operand);
    if (shape == shape_of(graph, made)) {
      option.operands.push_back(lead);
      continue;
    }
    const SmallVector<bool, 8> has = has_axes(shape, shape_of(graph, made));
    const auto has_part = [&](const Run& part) { return has[axis_with(shape_of(graph, made), part.stride)]; };
    Placement own;
    for (const Run& part : parts) {
      if (!has_part(part)) continue;
      std::int64_t stride = 1;
      for (const Run& other : parts)
        if (other.stride < part.stride && has_part(other)) stride *= other.extent;
      append(own, {part.extent, stride});
    }
    option.operands.push_back(placements.id(own));
  }
  return option;
}

class PlacedOptionSearch {
 public:
  PlacedOptionSearch(const Graph& graph, const target::LayoutNeeds& needs, Placements& placements)
      : graph_(graph),
        rules_(graph, needs),
        placements_(placements),
        options_(graph.nodes().size()),
        offered_(graph.values().size()) {}

  PlacedChoices run() && {
    for (const Input& input : graph_.inputs()) offer(input.value, input.boundary.order);
    for (const Output& output : graph_.outputs()) offer(output.value, boundary_order(graph_, output));
    for (const Node& node : graph_.nodes())
      if (rules_.always_considers_preferred(node)) add(node, preferred(node));
    follow_offers();
    for (const Node& node : graph_.nodes())
      if (options_of(node).empty()) add(node, preferred(node));
    follow_offers();
    const bool more = offers_more_than_orders();
    return {std::move(options_), more};
  }

 private:
  [[nodiscard]] bool offers_more_than_orders() const {
    for (const Node& node : graph_.nodes()) {
      const std::vector<PlacedOption>& known = options_[graph_.id(node).index()];
      if (std::any_of(known.begin(), known.end(), [](const PlacedOption& option) { return option.recast; }))
        return true;
      if (node.op == Op::kReshape && can_be_passed_at_once(node, known)) return true;
    }
    return false;
  }

  // True if the reshape has two placements between which a single transpose is possible only in a third
  // shape: neither the shape in front of the reshape nor the one after it has orders for both placements.
  [[nodiscard]] bool can_be_passed_at_once(const Node& reshape,
                                           const std::vector<PlacedOption>& known) const {
    SmallVector<std::uint8_t, 8> sides;  // by placement, in bits: front (1), after (2) has an order
    for (const PlacedOption& option : known) {
      const Placement& placement = placements_[option.results[0]];
      if (placement.size() < 2) continue;
      const bool front = order_with(shape_of(graph_, graph_.operands(reshape)[0]), placement).has_value();
      const bool behind = order_with(shape_of(graph_, graph_.result(reshape)), placement).has_value();
      sides.push_back(static_cast<std::uint8_t>((front ? 1 : 0) | (behind ? 2 : 0)));
    }
    for (std::size_t i = 0; i < sides.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if ((sides[i] & sides[k]) == 0) return true;
    return false;
  }

  struct Offer {
    ValueId value;
    PlacementId placement;
  };

  std::vector<PlacedOption>& options_of(const Node& node) { return options_[graph_.id(node).index()]; }

  void offer(ValueId value, const DimOrder& order) {
    offer(value, placements_.id(shape_of(graph_, value), order));
  }
  void offer(ValueId value, PlacementId placement) {
    if (is_constant(graph_, value)) return;
    PlacementIds& known = offered_[value.index()];
    if (std::find(known.begin(), known.end(), placement) != known.end()) return;
    known.push_back(placement);
    offers_.push_back({value, placement});
  }

  void follow_offers() {
    while (!offers_.empty()) {
      const Offer next = offers_.back();
      offers_.pop_back();
      if (const Node* producer = graph_.producer(next.value);
          producer != nullptr && !rules_.has_one_option(*producer))
        add(*producer, by_result(*producer, next));
      for (const NodeId user : graph_.users(next.value)) {
        const Node& node = graph_.node(user);
        if (rules_.has_one_option(node)) continue;
        const std::span<const ValueId> operands = graph_.operands(node);
        for (std::size_t i = 0; i < operands.size(); ++i)
          if (operands[i] == next.value) add(node, by_operand(node, i, next.placement));
      }
    }
  }

  PlacedOption by_result(const Node& node, const Offer& next) {
    const ValueId result = next.value;
    if (node.op == Op::kReshape) return {{next.placement}, {next.placement}, false};
    if (node.op == Op::kPermute) {
      const Dims& perm = Graph::attrs<PermuteAttrs>(node).perm;
      const std::optional<Placement> before =
          relabelled(shape_of(graph_, result), placements_[next.placement], inverse_permutation(perm));
      if (before) return {{placements_.id(*before)}, {next.placement}, false};
      return preferred(node);
    }
    if (const std::optional<DimOrder> order =
            order_with(shape_of(graph_, result), placements_[next.placement]))
      if (const std::optional<LayoutOption> option =
              rules_.by_result(node, graph_.value(result).result_index, *order))
        return in_placements(node, *option);
    return recast_or_preferred(node, next.placement);
  }

  PlacedOption by_operand(const Node& node, std::size_t operand, PlacementId placement) {
    const ValueId value = graph_.operands(node)[operand];
    if (node.op == Op::kReshape) return {{placement}, {placement}, false};
    if (node.op == Op::kPermute) {
      const Dims& perm = Graph::attrs<PermuteAttrs>(node).perm;
      if (const std::optional<Placement> behind =
              relabelled(shape_of(graph_, value), placements_[placement], perm))
        return {{placement}, {placements_.id(*behind)}, false};
      return preferred(node);
    }
    if (const std::optional<DimOrder> order = order_with(shape_of(graph_, value), placements_[placement]))
      if (const std::optional<LayoutOption> option = rules_.by_operand(node, operand, *order))
        return in_placements(node, *option);
    if (can_be_recast(graph_, node, rules_.needs()) &&
        shape_of(graph_, value) == shape_of(graph_, graph_.result(node)))
      return recast_or_preferred(node, placement);
    return preferred(node);
  }

  PlacedOption recast_or_preferred(const Node& node, PlacementId lead) {
    if (can_be_recast(graph_, node, rules_.needs()))
      if (std::optional<PlacedOption> option = recast_option(graph_, node, lead, rules_.needs(), placements_))
        return std::move(*option);
    return preferred(node);
  }

  // The preferred option of a node (options.h). The preferred option of a permute moves no element, so if its
  // operand is row-major, its result is not.
  PlacedOption preferred(const Node& node) {
    if (node.op != Op::kPermute) return in_placements(node, rules_.preferred(node));
    const Shape& shape = shape_of(graph_, graph_.operands(node)[0]);
    const DimOrder behind = layout::relabelled(DimOrder(), Graph::attrs<PermuteAttrs>(node).perm);
    return {
        {placements_.id(shape, {})}, {placements_.id(shape_of(graph_, graph_.result(node)), behind)}, false};
  }

  PlacedOption in_placements(const Node& node, const LayoutOption& option) {
    PlacedOption out;
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      out.operands.push_back(
          operands[i].valid() ? placements_.id(shape_of(graph_, operands[i]), option.operands[i]) : 0);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      out.results.push_back(placements_.id(shape_of(graph_, graph_.result(node, r)), option.results[r]));
    return out;
  }

  void add(const Node& node, PlacedOption option) {
    work::add(1);
    std::vector<PlacedOption>& known = options_of(node);
    if (known.size() >= kMostOptions) return;
    for (const PlacedOption& each : known)
      if (each.operands == option.operands && each.results == option.results) return;
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid()) offer(operands[i], option.operands[i]);
    for (std::uint32_t r = 0; r < node.result_count; ++r) offer(graph_.result(node, r), option.results[r]);
    known.push_back(std::move(option));
  }

  const Graph& graph_;
  LayoutRules rules_;
  Placements& placements_;
  std::vector<std::vector<PlacedOption>> options_;  // by node
  std::vector<PlacementIds> offered_;               // by value
  std::vector<Offer> offers_;
};

}  // namespace

PlacementId Placements::id(const Placement& placement) {
  if (placement.empty()) return 0;
  std::uint64_t key = 0;
  for (const Run& run : placement) {
    key = mixed(key, static_cast<std::uint64_t>(run.extent));
    key = mixed(key, static_cast<std::uint64_t>(run.stride));
  }
  for (;; ++key) {  // two placements with one key: the second one gets the next free key
    const auto [it, is_new] = ids_.emplace(key, static_cast<PlacementId>(known_.size()));
    if (is_new) known_.push_back(placement);
    if (known_[it->second] == placement) return it->second;
  }
}

PlacementId Placements::id(const Shape& shape, const DimOrder& order) {
  if (!order.is_identity()) return id(placement_of(shape, order));
  const std::int64_t elements = num_elements(shape);
  return elements < 2 ? 0 : id(Placement{Run{elements, 1}});
}

PlacedChoices placed_choices_of(const Graph& graph, const target::LayoutNeeds& needs,
                                Placements& placements) {
  return PlacedOptionSearch(graph, needs, placements).run();
}

}  // namespace tosaic::layout
