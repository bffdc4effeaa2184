#include "tosaic/layout/options.h"

#include "tosaic/ir/dims.h"
#include "tosaic/layout/order.h"
#include "tosaic/layout/windows.h"

namespace tosaic::layout {
namespace {

using target::LayoutNeed;

LayoutNeed need_of_foreign(const Node& node) {
  switch (Graph::attrs<OpaqueAttrs>(node).layout) {
    case ForeignLayout::kRowMajor:
      return LayoutNeed::kRowMajor;
    case ForeignLayout::kChannelsLast:
      return LayoutNeed::kChannelsLast;
    case ForeignLayout::kAny:
      return LayoutNeed::kAny;
  }
  return LayoutNeed::kRowMajor;
}

bool is_innermost(const DimOrder& order, std::size_t rank, std::int64_t axis) {
  return rank == 0 || order.axes(rank).back() == axis;
}

bool is_last_innermost(const DimOrder& order, std::size_t rank) {
  return is_innermost(order, rank, static_cast<std::int64_t>(rank) - 1);
}

LayoutOption row_major(const Node& node) {
  return {SmallVector<DimOrder, 3>(node.operand_count), SmallVector<DimOrder, 1>(node.result_count)};
}

bool is_one_matrix(const Shape& shape) {
  for (std::size_t i = 0; i + 2 < shape.size(); ++i)
    if (shape[i] != 1) return false;
  return true;
}

// True if the operand is a table or a list of indices. These are row-major, whatever the orders of the other
// values are.
bool is_list(const Node& node, std::size_t operand) {
  return operand == 1 && (node.op == Op::kTosaTable || node.op == Op::kIndexSelect);
}

// True if operands may be broadcast. Also true for foreign operators, since it is not known whether they are.
bool may_broadcast(const Node& node) {
  return info(node.op).has(kElementwise) || node.op == Op::kExpand || node.op == Op::kOpaque;
}

DimOrder channels_last_from_rank_3(const TensorType& type) {
  return type.rank() < 3 ? DimOrder() : DimOrder::channels_last(type.rank());
}

}  // namespace

const DimOrder& boundary_order(const Graph& graph, const Output& output) {
  return output.kind == OutputKind::kMutation ? graph.inputs()[output.mutated_input].boundary.order
                                              : output.boundary.order;
}

bool is_depthwise(const Shape& input, const Shape& weight, const ConvAttrs& attrs) {
  return !attrs.transposed && attrs.groups == input[1] && input[1] > 1 && weight[0] % input[1] == 0 &&
         weight.size() == 4;
}

target::OpLayout LayoutRules::need_of(const Node& node) const {
  return node.op == Op::kOpaque ? target::OpLayout{need_of_foreign(node)} : needs_.of(node.op);
}

LayoutOption LayoutRules::preferred(const Node& node) const {
  if (need_of(node).need == LayoutNeed::kChannelsLast) {
    if (node.op == Op::kOpaque) return foreign_channels_last(node);
    if (node.result_count == 1 && result_rank(node) >= 4) return channels_last(node);
  }
  if (const std::optional<std::int64_t> axis = innermost_axis(node); axis && result_rank(node) > 0)
    return *same(node, with_innermost({}, result_rank(node), *axis));
  return row_major(node);
}

bool LayoutRules::has_one_option(const Node& node) const { return relation_of(node) == Relation::kNone; }

bool LayoutRules::always_considers_preferred(const Node& node) const {
  const Relation relation = relation_of(node);
  return relation == Relation::kNone || relation == Relation::kWindows;
}

std::optional<LayoutOption> LayoutRules::by_operand(const Node& node, std::size_t operand,
                                                    const DimOrder& order) const {
  const Shape& shape = operand_shape(node, operand);
  switch (relation_of(node)) {
    case Relation::kNone:
      return std::nullopt;
    case Relation::kSame:
      if (is_list(node, operand) || shape.size() != result_rank(node)) return std::nullopt;
      // A broadcast operand does not determine the order: its axes of extent 1 may be anywhere.
      if (may_broadcast(node) && !(shape == result_shape(node))) return std::nullopt;
      return same(node, order);
    case Relation::kPermuted:
      return LayoutOption{{order}, {relabelled(order, Graph::attrs<PermuteAttrs>(node).perm)}};
    case Relation::kReduced:
      return reduced(node, order);
    case Relation::kReshaped: {
      const std::optional<DimOrder> after = reshaped(shape, order, result_shape(node));
      return after ? std::optional(LayoutOption{{order}, {*after}}) : std::nullopt;
    }
    case Relation::kRows:
      return operand == 0 ? rows(node, order) : std::nullopt;
    case Relation::kMatrices:
      return operand == 0 && shape.size() == result_rank(node) ? matrices(node, order) : std::nullopt;
    case Relation::kWindows:
      if (operand != 0) return std::nullopt;
      return windows(node, shape, order, preferred(node).operands[0]);
  }
  return std::nullopt;
}

std::optional<LayoutOption> LayoutRules::by_result(const Node& node, std::size_t result,
                                                   const DimOrder& order) const {
  if (result != 0) return std::nullopt;
  switch (relation_of(node)) {
    case Relation::kNone:
      return std::nullopt;
    case Relation::kSame:
      return same(node, order);
    case Relation::kPermuted:
      return LayoutOption{{relabelled(order, inverse_permutation(Graph::attrs<PermuteAttrs>(node).perm))},
                          {order}};
    case Relation::kReduced: {
      const auto& attrs = Graph::attrs<ReduceAttrs>(node);
      return reduced(node,
                     attrs.keepdim ? order : with_axes(order, operand_shape(node, 0).size(), attrs.axes));
    }
    case Relation::kReshaped: {
      const std::optional<DimOrder> before = reshaped(result_shape(node), order, operand_shape(node, 0));
      return before ? std::optional(LayoutOption{{*before}, {order}}) : std::nullopt;
    }
    case Relation::kRows:
      return rows(node, order);
    case Relation::kMatrices:
      return matrices(node, order);
    case Relation::kWindows:
      return windows(node, result_shape(node), order, preferred(node).results[0]);
  }
  return std::nullopt;
}

LayoutRules::Relation LayoutRules::relation_of(const Node& node) const {
  if (node.result_count != 1 || node.operand_count == 0 || !node.regions.empty()) return Relation::kNone;
  const target::OpLayout layout = need_of(node);
  if (layout.reduces_windows && side_by_side(graph_, node)) return Relation::kWindows;
  switch (layout.need) {
    case LayoutNeed::kRowMajor:
    case LayoutNeed::kChannelsLast:
      return Relation::kNone;
    case LayoutNeed::kAny:
    case LayoutNeed::kAxisInnermost:
      if (node.op == Op::kPermute) return Relation::kPermuted;
      if (node.op == Op::kReshape) return Relation::kReshaped;
      return holds<ReduceAttrs>(*node.attrs) ? Relation::kReduced : Relation::kSame;
    case LayoutNeed::kChannelsInnermost:
      return Relation::kRows;
    case LayoutNeed::kMatricesInnermost:
      return Relation::kMatrices;
  }
  return Relation::kNone;
}

std::optional<LayoutOption> LayoutRules::same(const Node& node, const DimOrder& lead) const {
  const std::size_t rank = result_rank(node);
  if (const std::optional<std::int64_t> axis = innermost_axis(node); axis && !is_innermost(lead, rank, *axis))
    return std::nullopt;
  LayoutOption option;
  for (std::size_t i = 0; i < node.operand_count; ++i) {
    const bool has_order =
        graph_.operands(node)[i].valid() && !is_list(node, i) && operand_shape(node, i).size() <= rank;
    option.operands.push_back(has_order ? trailing(lead, rank, operand_shape(node, i).size()) : DimOrder());
  }
  option.results = {lead};
  return option;
}

LayoutOption LayoutRules::reduced(const Node& node, const DimOrder& lead) const {
  const auto& attrs = Graph::attrs<ReduceAttrs>(node);
  return {{lead}, {attrs.keepdim ? lead : without_axes(lead, operand_shape(node, 0).size(), attrs.axes)}};
}

// The leading axes (rows) may be in any order. Weight and bias are row-major.
std::optional<LayoutOption> LayoutRules::rows(const Node& node, const DimOrder& lead) const {
  if (!is_last_innermost(lead, result_rank(node))) return std::nullopt;
  LayoutOption option{SmallVector<DimOrder, 3>(node.operand_count), {lead}};
  option.operands[0] = lead;
  return option;
}

// The batch axes may be in any order. If the right operand is one matrix, the rows of the left one may be
// anywhere among the batch axes.
std::optional<LayoutOption> LayoutRules::matrices(const Node& node, const DimOrder& lead) const {
  const std::size_t rank = result_rank(node);
  const Shape &a = operand_shape(node, 0), &b = operand_shape(node, 1);
  LayoutOption option{{DimOrder(), DimOrder()}, {lead}};
  if (lead.is_identity()) return option;
  if (a.size() != rank || b.size() < 2 || !is_last_innermost(lead, rank)) return std::nullopt;
  option.operands[0] = lead;
  if (is_one_matrix(b)) return option;
  if (lead.axes(rank)[rank - 2] != static_cast<std::int64_t>(rank) - 2) return std::nullopt;
  option.operands[1] = trailing(lead, rank, b.size());
  return option;
}

// The preferred option, if its order for the value of this shape (`preferred_order`) is the same in memory as
// `lead`. If it is not, the option of a reduction, with `lead` for operand and result.
LayoutOption LayoutRules::windows(const Node& node, const Shape& shape, const DimOrder& lead,
                                  const DimOrder& preferred_order) const {
  if (same_in_memory(shape, lead, preferred_order)) return preferred(node);
  LayoutOption option{SmallVector<DimOrder, 3>(node.operand_count), {lead}};
  option.operands[0] = lead;
  return option;
}

LayoutOption LayoutRules::channels_last(const Node& node) const {
  LayoutOption option{SmallVector<DimOrder, 3>(node.operand_count),
                      {DimOrder::channels_last(result_rank(node))}};
  option.operands[0] = DimOrder::channels_last(operand_shape(node, 0).size());
  if (const auto* conv = get_if<ConvAttrs>(node.attrs.get()))
    option.operands[1] = weight_order(node, *conv);
  else if (const auto* sums = get_if<IntegerConvAttrs>(node.attrs.get()))
    option.operands[1] = weight_order(node, sums->conv);
  return option;
}

LayoutOption LayoutRules::foreign_channels_last(const Node& node) const {
  LayoutOption option;
  for (const ValueId operand : graph_.operands(node))
    option.operands.push_back(operand.valid() ? channels_last_from_rank_3(graph_.type(operand)) : DimOrder());
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    option.results.push_back(channels_last_from_rank_3(graph_.type(graph_.result(node, r))));
  return option;
}

DimOrder LayoutRules::weight_order(const Node& node, const ConvAttrs& attrs) const {
  const Shape& weight = operand_shape(node, 1);
  if (weight.size() == 4 && attrs.transposed) return needs_.transposed_weight;
  return is_depthwise(operand_shape(node, 0), weight, attrs) ? needs_.depthwise_weight
                                                             : DimOrder::channels_last(weight.size());
}

// The axis that must be innermost, if there is one: for a rescale the axis of its multipliers, for other
// operators the axis that their attributes name.
std::optional<std::int64_t> LayoutRules::innermost_axis(const Node& node) const {
  if (need_of(node).need != LayoutNeed::kAxisInnermost) return std::nullopt;
  if (const auto* rescale = get_if<RescaleAttrs>(node.attrs.get())) return rescale->axis;
  const auto* with_dtype = get_if<AxisDtypeAttrs>(node.attrs.get());
  const std::int64_t axis = with_dtype != nullptr ? with_dtype->axis : Graph::attrs<AxisAttrs>(node).axis;
  return static_cast<std::int64_t>(normalize_axis(axis, result_rank(node)));
}

std::size_t LayoutRules::result_rank(const Node& node) const { return result_shape(node).size(); }

const Shape& LayoutRules::operand_shape(const Node& node, std::size_t operand) const {
  return graph_.type(graph_.operands(node)[operand]).shape;
}

const Shape& LayoutRules::result_shape(const Node& node) const {
  return graph_.type(graph_.result(node)).shape;
}

}  // namespace tosaic::layout
