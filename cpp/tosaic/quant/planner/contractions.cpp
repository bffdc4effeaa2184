// contractions: the specs of the data, weights and biases of contractions.
#include <algorithm>

#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {

void Planner::round_contraction(NodeIndex i, const Precision& p) {
  Call& c = call(i);
  if (!is_float(graph_.type(graph_.result(*c.main)).dtype)) return;  // products of integers are exact
  const auto operands = graph_.operands(*c.main);
  std::size_t bias_at = operands.size();
  if (c.main->op == Op::kConv || c.main->op == Op::kLinear) bias_at = 2;
  if (c.main->op == Op::kAddmm || c.main->op == Op::kBaddbmm) bias_at = 0;
  std::optional<Slot> data, weight;
  std::vector<std::pair<NodeIndex, std::size_t>> found;
  for (std::size_t k = 0; k < operands.size(); ++k)
    if (k != bias_at && operands[k].valid())
      if (const NodeIndex producer = producer_among(c, operands[k]); producer.valid())
        found.emplace_back(producer, k);
  // Other operands, from which the call computes the factors of the contraction.
  for (const NodeIndex operand : c.operands) {
    if (input_.every_operator) break;
    const bool is_bias = bias_at < operands.size() && producer_among(c, operands[bias_at]) == operand;
    const bool is_factor =
        std::ranges::any_of(found, [&](const auto& each) { return each.first == operand; });
    if (is_bias || is_factor) continue;
    if (is_data(operand)) round_operand(operand, i, p, false);
    const auto looks_up = [&](const Node* each) {
      return (each->op == Op::kIndex || each->op == Op::kEmbedding) &&
             graph_.operands(*each)[0] == value(operand);
    };
    if (call(operand).dependence == Dependence::kNothing && std::ranges::any_of(c.nodes, looks_up)) {
      ObservedSpec spec = p.weight;
      if (spec.scheme && spec.scheme->starts_with("per_channel"))
        spec.scheme = "per_tensor_symmetric", spec.observer = p.observer_without_axis;
      set(Slot::edge(operand, i), spec, "weight");
    }
  }
  for (const auto& [producer, k] : found) {
    if (call(producer).dependence == Dependence::kNothing) continue;
    if (c.main->op == Op::kConv)
      round_data_of_conv(producer, i, p);
    else
      round_operand(producer, i, p, true);
    const Root root = root_of(producer, i);
    const Slot edge = Slot::edge(producer, i);
    data = input_.every_operator && plan_.find(edge) != nullptr ? edge
           : call(root.call).rounding == Rounding::kRounded     ? Slot::output(root.call)
           : plan_.find(root.edge) != nullptr                   ? root.edge
                                                                : edge;
    // The bounds of a clamp need not be integers. Its result is rounded, since products read few bits.
    if (plan_.find(*data) != nullptr) round_bounded(producer, i, *data, "bounded operand");
  }
  for (const auto& [producer, k] : found) {
    if (call(producer).dependence != Dependence::kNothing) continue;
    weight = Slot::edge(producer, i);
    const std::optional<std::int64_t> axis = channel_axis(*c.main, k);
    const char* rule = "weight";
    ObservedSpec spec = p.weight;
    if (p.grouped_weight && is_divided(operands[k], axis, *p.grouped_weight->group_size))
      spec = *p.grouped_weight;
    else if (p.grouped_weight && !is_one_group(operands[k], axis, *p.grouped_weight->group_size))
      rule = kUngroupedWeight;
    if (spec.scheme && spec.scheme->starts_with("per_channel")) {
      if (axis)
        spec.axis = axis;
      else
        spec.scheme = "per_tensor_symmetric", spec.observer = p.observer_without_axis;
    }
    set(*weight, spec, rule);
  }
  if (bias_at >= operands.size() || !operands[bias_at].valid()) return;
  const NodeIndex bias = producer_among(c, operands[bias_at]);
  if (!bias.valid()) return;
  if (call(bias).dependence != Dependence::kNothing) {
    if (c.masked && call(bias).is_mask)
      round_mask(bias, i, p);
    else if (is_data(bias))
      round_operand(bias, i, p, false);
    else
      round_table(bias, i, p);
    return;
  }
  if (!p.bias || !data || !weight || plan_.find(*data) == nullptr || has_groups(*weight)) return;
  if (graph_.type(operands[bias_at]).rank() != 1) return;
  DerivedSpec spec = *p.bias;
  spec.from = {*data, *weight};
  const auto* of_weight = std::get_if<ObservedSpec>(&plan_.find(*weight)->spec);
  if (of_weight != nullptr && of_weight->scheme && of_weight->scheme->starts_with("per_channel")) {
    spec.scheme = "per_channel_symmetric";
    spec.axis = 0;
  }
  set(Slot::edge(bias, i), spec, "bias");
}

// Torch fuses conv and batch norm for training only if the conv has specs for its input and its weight.
void Planner::round_data_of_conv(NodeIndex producer, NodeIndex i, const Precision& p) {
  round_operand(producer, i, p, true);
  const Slot edge = Slot::edge(producer, i);
  if (plan_.find(edge) != nullptr) return;
  const Root root = root_of(producer, i);
  const Slot rounded = call(root.call).rounding == Rounding::kRounded ? Slot::output(root.call) : root.edge;
  if (rounded == edge || plan_.find(rounded) == nullptr) return;
  set(edge, SharedSpec{rounded}, "operand");
}

// The input channels of a weight with result channels on `axis`. Returns nothing unless `axis` is 0 or 1.
std::optional<std::int64_t> Planner::input_channels(ValueId weight, std::optional<std::int64_t> axis) const {
  const TensorType& type = graph_.type(weight);
  if (!axis || *axis > 1 || type.rank() < 2) return {};
  return type.shape[static_cast<std::size_t>(1 - *axis)];
}

// True if the number of input channels of the weight is a multiple of `size`, and greater than `size`.
bool Planner::is_divided(ValueId weight, std::optional<std::int64_t> axis, std::int64_t size) const {
  const std::optional<std::int64_t> channels = input_channels(weight, axis);
  return channels && *channels > size && *channels % size == 0;
}

bool Planner::is_one_group(ValueId weight, std::optional<std::int64_t> axis, std::int64_t size) const {
  return input_channels(weight, axis) == size;
}

bool Planner::has_groups(Slot weight) const {
  const auto* entry = plan_.find(weight);
  const auto* spec = entry == nullptr ? nullptr : std::get_if<ObservedSpec>(&entry->spec);
  return spec != nullptr && spec->group_size;
}

// The axis of the result's channels in operand k of a contraction.
std::optional<std::int64_t> Planner::channel_axis(const Node& main, std::size_t k) const {
  const std::int64_t rank = graph_.type(graph_.operands(main)[k]).rank();
  if (main.op == Op::kConv) {
    const auto& attrs = Graph::attrs<ConvAttrs>(main);
    if (k != 1 || (attrs.transposed && attrs.groups != 1)) return {};
    return attrs.transposed ? 1 : 0;
  }
  if (rank != 2) return {};
  if (main.op == Op::kLinear && k == 1) return 0;
  if (main.op == Op::kMatmul && k == 1) return 1;
  if (main.op == Op::kAddmm && k == 2) return 1;
  return {};
}

}  // namespace tosaic::quant
