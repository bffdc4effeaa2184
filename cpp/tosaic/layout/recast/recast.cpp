#include "tosaic/layout/recast/recast.h"

#include <algorithm>
#include <optional>

#include "tosaic/base/error.h"
#include "tosaic/layout/options.h"
#include "tosaic/layout/recast/placed_options.h"
#include "tosaic/layout/recast/placed_problem.h"
#include "tosaic/layout/recast/shapes.h"
#include "tosaic/layout/views.h"

namespace tosaic::layout {
namespace {

constexpr std::size_t kWidest = std::size_t{1} << 18;

// Reads the recasts from a solution: which nodes compute in another shape, and which cuts (placement.h) their
// shapes need so that each change of placement is a single transpose.
class RecastReader {
 public:
  RecastReader(const Graph& graph, Placements& placements,
               const std::vector<std::vector<PlacedOption>>& options, const PlacedProblem& stated,
               const std::vector<std::uint32_t>& state, std::size_t most_axes)
      : graph_(graph),
        placements_(placements),
        options_(options),
        stated_(stated),
        state_(state),
        most_axes_(most_axes),
        cuts_(graph.nodes().size()) {}

  Recasts run() && {
    for (std::uint32_t n = 0; n < options_.size(); ++n)
      if (option(n).recast)
        cuts_[n] = needed_cuts(graph_, graph_.nodes()[n], placements_[option(n).results[0]]);
    for (std::uint32_t n = 0; n < options_.size(); ++n) {
      if (stated_.is_view(n)) continue;
      const std::span<const ValueId> operands = graph_.operands(graph_.nodes()[n]);
      for (std::size_t i = 0; i < operands.size(); ++i)
        if (operands[i].valid() && !is_constant(graph_, operands[i]))
          note(operands[i], option(n).operands[i], option(n).recast ? std::optional(n) : std::nullopt);
    }
    for (const Output& output : graph_.outputs())
      if (!is_constant(graph_, output.value))
        note(output.value, placements_.id(shape_of(graph_, output.value), boundary_order(graph_, output)),
             std::nullopt);
    Recasts out;
    for (std::uint32_t n = 0; n < options_.size(); ++n) {
      if (!cuts_[n]) continue;
      (option(n).recast ? out.nodes : out.reshapes).push_back({NodeId(n), *cuts_[n]});
    }
    return out;
  }

 private:
  [[nodiscard]] const PlacedOption& option(std::size_t node) const { return options_[node][state_[node]]; }

  [[nodiscard]] PlacementId made(ValueId data) {
    if (const Node* producer = graph_.producer(data))
      return option(graph_.id(*producer).index()).results[graph_.value(data).result_index];
    for (const Input& input : graph_.inputs())
      if (input.value == data) return placements_.id(shape_of(graph_, data), input.boundary.order);
    throw InternalError({.where = "layout", .what = "a value that nobody makes"});
  }

  // A value between a reader and the data that it reads through views. It has the placement in which the
  // value is wanted, and the one in which the data is made. `made` is none as long as it is not known, or if
  // the result of a permute cannot have that placement without a move.
  struct Seen {
    ValueId value;
    PlacementId wanted;
    std::optional<PlacementId> made;
  };

  void note(ValueId value, PlacementId wanted, std::optional<std::uint32_t> recast_reader) {
    std::vector<Seen> seen{{value, wanted, std::nullopt}};
    while (const Node* view = stated_.view(seen.back().value))
      seen.push_back({graph_.operands(*view)[0], *stated_.in_front(*view, seen.back().wanted), {}});
    seen.back().made = made(seen.back().value);
    if (*seen.back().made == seen.back().wanted) return;
    for (std::size_t i = seen.size() - 1; i-- > 0;)
      if (seen[i + 1].made) seen[i].made = stated_.behind(*stated_.view(seen[i].value), *seen[i + 1].made);
    const Node* producer = graph_.producer(seen.back().value);
    if (producer != nullptr && option(graph_.id(*producer).index()).recast &&
        widen(graph_.id(*producer).index(), seen.back()))
      return;
    // A reader that is recast reads the value in front of the reshapes that precede the reader. So the
    // transpose cannot be applied to a result of these reshapes.
    std::size_t first = 0;
    while (recast_reader && is_reshaped(seen[first].value)) ++first;
    for (std::size_t i = first; i < seen.size(); ++i)
      if (can_be_transposed(seen[i])) return;
    if (recast_reader && widen(*recast_reader, seen.front())) return;
    for (const Seen& each : seen)
      if (is_reshaped(each.value) && widen(graph_.id(*stated_.view(each.value)).index(), each)) return;
  }

  [[nodiscard]] bool is_reshaped(ValueId value) const {
    const Node* view = stated_.view(value);
    return view != nullptr && view->op == Op::kReshape;
  }

  // True if the shape of the value has orders for both placements.
  [[nodiscard]] bool can_be_transposed(const Seen& seen) const {
    const Shape& shape = shape_of(graph_, seen.value);
    return seen.made && order_with(shape, placements_[seen.wanted]) &&
           order_with(shape, placements_[*seen.made]);
  }

  // Adds the cuts of both placements to the cuts that the node needs. Returns false if no shape of at most
  // most_axes_ axes has all of them.
  bool widen(std::size_t node, const Seen& seen) {
    if (!seen.made) return false;
    const std::int64_t elements = num_elements(shape_of(graph_, seen.value));
    std::optional<Cuts> cuts =
        merged(cuts_of(placements_[seen.wanted], elements), cuts_of(placements_[*seen.made], elements));
    if (cuts && cuts_[node]) {
      if (cuts_[node]->back() != elements) return false;  // the node broadcasts the value
      cuts = merged(*cuts, *cuts_[node]);
    }
    if (!cuts || cuts->size() > most_axes_ + 1) return false;
    cuts_[node] = cuts;
    return true;
  }

  const Graph& graph_;
  Placements& placements_;
  const std::vector<std::vector<PlacedOption>>& options_;
  const PlacedProblem& stated_;
  const std::vector<std::uint32_t>& state_;
  std::size_t most_axes_;
  std::vector<std::optional<Cuts>> cuts_;  // by node
};

}  // namespace

bool may_be_recast(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return node.op == Op::kReshape && !is_constant(graph, graph.operands(node)[0]) &&
           !makes_view(graph, node);
  });
}

Recasts recasts_of(const Graph& graph, const Objective& objective, const target::LayoutNeeds& needs) {
  Placements placements;
  const PlacedChoices choices = placed_choices_of(graph, needs, placements);
  if (!choices.more_than_orders) return {};
  PlacedProblem stated(graph, placements, choices.options, needs);
  if (!stated.weigh(objective)) return {};
  const Solution solution = solve(stated.problem(), {.widest = kWidest});
  return RecastReader(graph, placements, choices.options, stated, solution.state, needs.most_elementwise_axes)
      .run();
}

}  // namespace tosaic::layout
