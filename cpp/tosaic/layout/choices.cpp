#include "tosaic/layout/choices.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tosaic/base/work.h"
#include "tosaic/layout/order.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kMostOptions = 8;  // the most options that a node may have

class OptionSearch {
 public:
  OptionSearch(const Graph& graph, const target::LayoutNeeds& needs)
      : graph_(graph), rules_(graph, needs), known_(graph.nodes().size()), offered_(graph.values().size()) {
    pool_.reserve(4 * graph.nodes().size());
  }

  Choices run() && {
    for (const Input& input : graph_.inputs()) offer(input.value, input.boundary.order);
    for (const Output& output : graph_.outputs()) offer(output.value, boundary_order(graph_, output));
    for (const Node& node : graph_.nodes())
      if (rules_.always_considers_preferred(node)) add(node, rules_.preferred(node));
    follow_offers();
    for (const Node& node : graph_.nodes())
      if (known_[graph_.id(node).index()].count == 0) add(node, rules_.preferred(node));
    follow_offers();
    return by_node();
  }

 private:
  struct Offer {
    ValueId value;
    DimOrder order;
  };

  // Offers each order of a value once, however many nodes lead to it.
  void offer(ValueId value, const DimOrder& order) {
    if (graph_.value(value).kind == ValueKind::kConstant) return;
    ValueOrders& known = offered_[value.index()];
    if (std::find(known.begin(), known.end(), order) != known.end()) return;
    known.push_back(order);
    offers_.push_back({value, order});
  }

  void follow_offers() {
    while (!offers_.empty()) {
      const Offer next = std::move(offers_.back());
      offers_.pop_back();
      if (const Node* producer = graph_.producer(next.value);
          producer != nullptr && !rules_.has_one_option(*producer))
        consider(*producer, rules_.by_result(*producer, graph_.value(next.value).result_index, next.order));
      NodeId previous;
      for (const NodeId user : graph_.users(next.value)) {
        const Node& node = graph_.node(user);
        const bool again = user == std::exchange(previous, user);  // a node reads the value several times
        if (again || rules_.has_one_option(node)) continue;
        const std::span<const ValueId> operands = graph_.operands(node);
        for (std::size_t i = 0; i < operands.size(); ++i)
          if (operands[i] == next.value) consider(node, rules_.by_operand(node, i, next.order));
      }
    }
  }

  // Adds the option that fits an offered order, or the preferred option if none fits (`option` is empty).
  void consider(const Node& node, std::optional<LayoutOption> option) {
    add(node, option ? std::move(*option) : rules_.preferred(node));
  }

  void add(const Node& node, LayoutOption option) {
    work::add(1);
    Known& known = known_[graph_.id(node).index()];
    if (known.count >= kMostOptions) return;
    for (std::uint32_t i = known.first; i != kNone; i = pool_[i].next)
      if (same(node, pool_[i].option, option)) return;
    const std::span<const ValueId> operands = graph_.operands(node);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (operands[i].valid()) offer(operands[i], option.operands[i]);
    for (std::uint32_t r = 0; r < node.result_count; ++r) offer(graph_.result(node, r), option.results[r]);
    const auto added = static_cast<std::uint32_t>(pool_.size());
    pool_.push_back({std::move(option), kNone});
    (known.count == 0 ? known.first : pool_[known.last].next) = added;
    known.last = added;
    ++known.count;
  }

  Choices by_node() {
    Choices out;
    out.options.reserve(pool_.size());
    out.first.reserve(known_.size() + 1);
    for (const Known& known : known_) {
      out.first.push_back(static_cast<std::uint32_t>(out.options.size()));
      for (std::uint32_t i = known.first; i != kNone; i = pool_[i].next)
        out.options.push_back(std::move(pool_[i].option));
    }
    out.first.push_back(static_cast<std::uint32_t>(out.options.size()));
    out.offered = std::move(offered_);
    return out;
  }

  [[nodiscard]] bool same(const Node& node, const LayoutOption& a, const LayoutOption& b) const {
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
    LayoutOption option;
    std::uint32_t next = kNone;
  };
  struct Known {
    std::uint32_t first = kNone, last = kNone, count = 0;
  };

  const Graph& graph_;
  LayoutRules rules_;
  std::vector<Pooled> pool_;
  std::vector<Known> known_;          // by node
  std::vector<ValueOrders> offered_;  // by value
  std::vector<Offer> offers_;
};

}  // namespace

Choices choices_of(const Graph& graph, const target::LayoutNeeds& needs) {
  return OptionSearch(graph, needs).run();
}

}  // namespace tosaic::layout
