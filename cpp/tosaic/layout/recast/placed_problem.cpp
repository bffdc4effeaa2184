#include "tosaic/layout/recast/placed_problem.h"

#include <algorithm>

#include "tosaic/base/error.h"
#include "tosaic/layout/options.h"
#include "tosaic/layout/recast/shapes.h"

namespace tosaic::layout {

PlacedProblem::PlacedProblem(const Graph& graph, Placements& placements,
                             const std::vector<std::vector<PlacedOption>>& options,
                             const target::LayoutNeeds& needs)
    : graph_(graph),
      placements_(placements),
      options_(options),
      needs_(needs),
      is_view_(graph.nodes().size()),
      tensor_of_(graph.values().size()) {
  find_views();
  const std::size_t nodes = graph.nodes().size(), inputs = graph.inputs().size();
  for (const auto& each : options) problem_.states.push_back(static_cast<std::uint32_t>(each.size()));
  problem_.states.resize(nodes + inputs + graph.outputs().size() + 1, 1);
  for (std::uint32_t i = 0; i < inputs; ++i) {
    const Input& input = graph.inputs()[i];
    make(input.value, static_cast<VariableId>(nodes + i), {id(input.value, input.boundary.order)});
  }
  for (std::uint32_t n = 0; n < nodes; ++n) state_node(n);
  for (std::uint32_t o = 0; o < graph.outputs().size(); ++o) {
    const Output& output = graph.outputs()[o];
    read(output.value, static_cast<VariableId>(nodes + inputs + o),
         {id(output.value, boundary_order(graph, output))});
  }
  first_recast_ = problem_.tensors.size();
  for (std::uint32_t n = 0; n < nodes; ++n) state_recast(n);
}

bool PlacedProblem::weigh(const Objective& objective) {
  for (const int bits : {24, 12, 8})
    if (weigh(objective, bits)) return true;
  return false;
}

const Node* PlacedProblem::view(ValueId value) const {
  const Node* node = graph_.producer(value);
  return node != nullptr && is_view_[graph_.id(*node).index()] ? node : nullptr;
}

std::optional<PlacementId> PlacedProblem::in_front(const Node& view, PlacementId placement) const {
  return relabelled_by(view, graph_.result(view), placement, true);
}

std::optional<PlacementId> PlacedProblem::behind(const Node& view, PlacementId placement) const {
  return relabelled_by(view, graph_.operands(view)[0], placement, false);
}

PlacementId PlacedProblem::id(ValueId value, const DimOrder& order) {
  return placements_.id(shape_of(graph_, value), order);
}

// A reshape is a view of its operand. A permute is a view if every placement in which its result may be read
// corresponds to a placement of its operand.
void PlacedProblem::find_views() {
  std::vector<PlacementIds> read(graph_.values().size());
  const auto note = [&](ValueId value, PlacementId placement) {
    PlacementIds& known = read[value.index()];
    if (std::find(known.begin(), known.end(), placement) == known.end()) known.push_back(placement);
  };
  for (const Output& output : graph_.outputs())
    note(output.value, id(output.value, boundary_order(graph_, output)));
  for (std::size_t n = graph_.nodes().size(); n-- > 0;) {
    const Node& node = graph_.nodes()[n];
    const std::span<const ValueId> operands = graph_.operands(node);
    if ((node.op == Op::kReshape || node.op == Op::kPermute) && !is_constant(graph_, operands[0])) {
      PlacementIds before;
      for (const PlacementId each : read[node.first_result])
        if (const std::optional<PlacementId> known = in_front(node, each)) before.push_back(*known);
      is_view_[n] = before.size() == read[node.first_result].size();
      if (is_view_[n])
        for (const PlacementId each : before) note(operands[0], each);
    }
    if (is_view_[n]) continue;
    for (const PlacedOption& option : options_[n])
      for (std::size_t i = 0; i < operands.size(); ++i)
        if (operands[i].valid()) note(operands[i], option.operands[i]);
  }
}

std::optional<PlacementId> PlacedProblem::relabelled_by(const Node& view, ValueId from, PlacementId placement,
                                                        bool inverse) const {
  if (view.op == Op::kReshape) return placement;
  const Dims& perm = Graph::attrs<PermuteAttrs>(view).perm;
  const std::optional<Placement> there =
      relabelled(shape_of(graph_, from), placements_[placement], inverse ? inverse_permutation(perm) : perm);
  return there ? std::optional(placements_.id(*there)) : std::nullopt;
}

void PlacedProblem::state_node(std::uint32_t n) {
  if (is_view_[n]) return;
  const Node& node = graph_.nodes()[n];
  const std::span<const ValueId> operands = graph_.operands(node);
  PlacementIds each;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].valid()) continue;
    each = {};
    for (const PlacedOption& option : options_[n]) each.push_back(option.operands[i]);
    read(operands[i], n, each);
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    each = {};
    for (const PlacedOption& option : options_[n]) each.push_back(option.results[r]);
    make(graph_.result(node, r), n, each);
  }
}

void PlacedProblem::state_recast(std::uint32_t n) {
  const bool any =
      std::any_of(options_[n].begin(), options_[n].end(), [](const auto& option) { return option.recast; });
  if (!any || is_view_[n]) return;
  Access read{n, {}};
  for (const PlacedOption& option : options_[n]) read.order.push_back(option.recast ? 1 : 0);
  Tensor tensor{{static_cast<VariableId>(problem_.states.size() - 1), {0}}, {}, 0};
  tensor.read.push_back(read);
  problem_.tensors.push_back(std::move(tensor));
}

void PlacedProblem::make(ValueId value, VariableId variable, const PlacementIds& placements) {
  tensor_of_[value.index()] = static_cast<std::uint32_t>(problem_.tensors.size());
  data_.push_back(value);
  known_.emplace_back();
  problem_.tensors.push_back({{variable, numbered(problem_.tensors.size(), placements)}, {}, 0});
}

void PlacedProblem::read(ValueId value, VariableId variable, PlacementIds placements) {
  while (const Node* node = view(value)) {
    for (PlacementId& each : placements) each = *in_front(*node, each);
    value = graph_.operands(*node)[0];
  }
  if (const std::optional<std::uint32_t>& tensor = tensor_of_[value.index()])
    problem_.tensors[*tensor].read.push_back({variable, numbered(*tensor, placements)});
}

StateOrders PlacedProblem::numbered(std::size_t tensor, const PlacementIds& placements) {
  StateOrders out;
  PlacementIds& known = known_[tensor];
  for (const PlacementId each : placements) {
    const auto* const at = std::find(known.begin(), known.end(), each);
    const auto number = static_cast<std::size_t>(at - known.begin());
    if (at == known.end()) known.push_back(each);
    if (number > 255) throw InternalError({.where = "layout", .what = "a value has more than 256 orders"});
    out.push_back(static_cast<std::uint8_t>(number));
  }
  return out;
}

// Sets the weights of transposes and recasts. Plans of equal cost are compared by the number of transposes
// (for Measure::kCount: by their bytes), and then by the number of recasts:
//
//   transpose   cost * 2^bits + 2^(bits / 3)   cost: the bytes, the caller's cost, or, for Measure::kCount,
//   recast      1                              the bytes + the sum of all bytes + 1
//
// Tensors that cannot be transposed get a weight above the sum of all others.
bool PlacedProblem::weigh(const Objective& objective, int bits) {
  const Cost finer = Cost{1} << bits, one = Cost{1} << (bits / 3);
  double all = 0, fixed = 1, bytes = 0;
  for (const ValueId value : data_) bytes += static_cast<double>(needs_.bytes_of(graph_.type(value)));
  if (bytes > 0x1p40) return false;
  for (std::size_t t = 0; t < problem_.tensors.size(); ++t) {
    Tensor& tensor = problem_.tensors[t];
    tensor.weight = 1;
    if (t < first_recast_) {
      const TensorType& type = graph_.type(data_[t]);
      if (!needs_.can_transpose(type.dtype)) {
        fixed += uses_of(tensor);
        continue;
      }
      const auto* own = std::get_if<TransposeCost>(&objective);
      if (own != nullptr)
        tensor.weight = std::max<Cost>((*own)(graph_, data_[t]), 0);
      else if (std::get<Measure>(objective) == Measure::kBytes)
        tensor.weight = needs_.bytes_of(type);
      else
        tensor.weight = needs_.bytes_of(type) + static_cast<Cost>(bytes) + 1;
      if (static_cast<double>(tensor.weight) > 0x1p60 / static_cast<double>(finer)) return false;
      tensor.weight = tensor.weight * finer + one;
    }
    all += static_cast<double>(tensor.weight) * uses_of(tensor);
  }
  if (all * fixed >= 0x1p60) return false;
  for (std::size_t t = 0; t < first_recast_; ++t)
    if (!needs_.can_transpose(graph_.type(data_[t]).dtype))
      problem_.tensors[t].weight = static_cast<Cost>(all) + 1;
  return true;
}

}  // namespace tosaic::layout
