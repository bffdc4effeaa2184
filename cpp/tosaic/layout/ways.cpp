#include "tosaic/layout/ways.h"

#include <algorithm>

#include "tosaic/layout/order.h"
#include "tosaic/layout/windows.h"

namespace tosaic::layout {
namespace {

enum class Freedom : std::uint8_t {
  kFixed,    // row-major
  kSpatial,  // channels last
  kWindows,  // as TOSA's pool, or uniform (a reduction)
  kUniform,  // one order for all operands and the result
  kPermute,
  kReduce,
  kReshape,
  kLinear,
  kMatmul,
};

bool is_uniform_movement(Op op) {
  switch (op) {  // NOLINT: the movements that treat each axis on its own
    case Op::kCat:
    case Op::kSlice:
    case Op::kPad:
    case Op::kFlip:
    case Op::kRepeat:
    case Op::kExpand:
    case Op::kClone:
    case Op::kGather:
    case Op::kIndexSelect:
      return true;
    default:
      return false;
  }
}

Freedom foreign_freedom(const Node& node) {
  switch (Graph::attrs<OpaqueAttrs>(node).layout) {
    case ForeignLayout::kRowMajor:
      return Freedom::kFixed;
    case ForeignLayout::kChannelsLast:
      return Freedom::kSpatial;
    case ForeignLayout::kAny:
      return node.result_count == 1 && node.operand_count > 0 ? Freedom::kUniform : Freedom::kFixed;
  }
  return Freedom::kFixed;
}

Freedom freedom_of(const Graph& graph, const Node& node) {
  if (node.op == Op::kOpaque) return foreign_freedom(node);
  if (node.result_count != 1 || !node.regions.empty()) return Freedom::kFixed;
  switch (node.op) {  // NOLINT: the operators with needs of their own
    case Op::kConv:
    case Op::kIntegerConv:
    case Op::kAvgPool:
    case Op::kMaxPool:
    case Op::kTosaAvgPool2d:
    case Op::kResize:
    case Op::kGridSample:  // image and result only; the grid stays row-major
      if (side_by_side(graph, node)) return Freedom::kWindows;
      return graph.type(graph.result(node)).rank() >= 4 && node.op != Op::kTosaAvgPool2d ? Freedom::kSpatial
                                                                                         : Freedom::kFixed;
    case Op::kPermute:
      return Freedom::kPermute;
    case Op::kReshape:
      return Freedom::kReshape;
    case Op::kLinear:
      return Freedom::kLinear;
    case Op::kMatmul:
      return Freedom::kMatmul;
    default:
      break;
  }
  const OpInfo& row = info(node.op);
  if (row.has(kElementwise) || is_uniform_movement(node.op) || is_tosa_reduction(node.op))
    return Freedom::kUniform;
  return holds<ReduceAttrs>(*node.attrs) ? Freedom::kReduce : Freedom::kFixed;
}

std::size_t result_rank(const Graph& graph, const Node& node) {
  return graph.type(graph.result(node)).rank();
}

const Shape& shape_of(const Graph& graph, const Node& node, std::size_t operand) {
  return graph.type(graph.operands(node)[operand]).shape;
}

bool is_innermost(const DimOrder& order, std::size_t rank, std::int64_t axis) {
  return rank == 0 || order.axes(rank).back() == axis;
}

// False for absent operands, for tables, and for lists of indices: the option has no order for them.
bool takes_part(const Graph& graph, const Node& node, std::size_t operand) {
  const bool has_list = node.op == Op::kTosaTable || node.op == Op::kIndexSelect;
  return graph.operands(node)[operand].valid() && !(has_list && operand == 1);
}

// The axis that must be innermost: that of a rescale's multipliers, or the gathered one.
std::optional<std::int64_t> innermost_axis(const Node& node) {
  if (const auto* rescale = get_if<RescaleAttrs>(node.attrs.get())) return rescale->axis;
  if (node.op == Op::kGather) return Graph::attrs<AxisAttrs>(node).axis;
  return std::nullopt;
}

std::optional<Way> uniform_way(const Graph& graph, const Node& node, const DimOrder& lead) {
  const std::size_t rank = result_rank(graph, node);
  if (const std::optional<std::int64_t> axis = innermost_axis(node); axis && !is_innermost(lead, rank, *axis))
    return std::nullopt;
  Way way;
  for (std::size_t i = 0; i < node.operand_count; ++i) {
    const std::size_t own = graph.operands(node)[i].valid() ? shape_of(graph, node, i).size() : 0;
    const bool part = takes_part(graph, node, i) && own <= rank;
    way.operands.push_back(part ? trailing(lead, rank, own) : DimOrder());
  }
  way.results = {lead};
  return way;
}

Way reduced_way(const Graph& graph, const Node& node, const DimOrder& lead) {
  const auto& attrs = Graph::attrs<ReduceAttrs>(node);
  return {{lead}, {attrs.keepdim ? lead : without_axes(lead, shape_of(graph, node, 0).size(), attrs.axes)}};
}

// The leading axes (rows) may be in any order. Weight and bias are row-major.
std::optional<Way> linear_way(const Graph& graph, const Node& node, const DimOrder& lead) {
  const std::size_t rank = result_rank(graph, node);
  if (!is_innermost(lead, rank, static_cast<std::int64_t>(rank) - 1)) return std::nullopt;
  Way way{SmallVector<DimOrder, 3>(node.operand_count), {lead}};
  way.operands[0] = lead;
  return way;
}

bool is_one_matrix(const Shape& shape) {
  for (std::size_t i = 0; i + 2 < shape.size(); ++i)
    if (shape[i] != 1) return false;
  return true;
}

// The batch axes may be in any order. If the right operand is one matrix, the rows of the left one may be
// anywhere among the batch axes.
std::optional<Way> matmul_way(const Graph& graph, const Node& node, const DimOrder& lead) {
  const std::size_t rank = result_rank(graph, node);
  const Shape &a = shape_of(graph, node, 0), &b = shape_of(graph, node, 1);
  Way way{{DimOrder(), DimOrder()}, {lead}};
  if (lead.is_identity()) return way;
  if (a.size() != rank || b.size() < 2 || !is_innermost(lead, rank, static_cast<std::int64_t>(rank) - 1))
    return std::nullopt;
  way.operands[0] = lead;
  if (is_one_matrix(b)) return way;
  if (lead.axes(rank)[rank - 2] != static_cast<std::int64_t>(rank) - 2) return std::nullopt;
  way.operands[1] = trailing(lead, rank, b.size());
  return way;
}

// The option in which the result (of a reduction: the operand) has the order `lead`.
std::optional<Way> way_of(const Graph& graph, const Node& node, const DimOrder& lead) {
  switch (freedom_of(graph, node)) {
    case Freedom::kUniform:
      return uniform_way(graph, node, lead);
    case Freedom::kPermute:
      return Way{{relabelled(lead, inverse_permutation(Graph::attrs<PermuteAttrs>(node).perm))}, {lead}};
    case Freedom::kReduce:
      return reduced_way(graph, node, lead);
    case Freedom::kLinear:
      return linear_way(graph, node, lead);
    case Freedom::kMatmul:
      return matmul_way(graph, node, lead);
    case Freedom::kFixed:
    case Freedom::kSpatial:
    case Freedom::kWindows:
    case Freedom::kReshape:
      break;
  }
  return std::nullopt;
}

// Depthwise (C*M, 1, H, W) is stored as (H, W, C*M, 1), i.e. (H, W, C, M). Transposed (I, O, H, W) is stored
// as (O, H, W, I). All others are channels last.
DimOrder weight_order(const Graph& graph, const Node& node, const ConvAttrs& attrs) {
  const Shape& weight = shape_of(graph, node, 1);
  if (weight.size() == 4 && attrs.transposed) return DimOrder({1, 2, 3, 0});
  const bool depthwise = is_depthwise(shape_of(graph, node, 0), weight, attrs);
  return depthwise ? DimOrder({2, 3, 0, 1}) : DimOrder::channels_last(weight.size());
}

DimOrder channels_last_from_rank_3(const TensorType& type) {
  return type.rank() < 3 ? DimOrder() : DimOrder::channels_last(type.rank());
}

Way foreign_spatial_way(const Graph& graph, const Node& node) {
  Way way;
  for (const ValueId operand : graph.operands(node))
    way.operands.push_back(operand.valid() ? channels_last_from_rank_3(graph.type(operand)) : DimOrder());
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    way.results.push_back(channels_last_from_rank_3(graph.type(graph.result(node, r))));
  return way;
}

Way spatial_way(const Graph& graph, const Node& node) {
  if (node.op == Op::kOpaque) return foreign_spatial_way(graph, node);
  Way way{SmallVector<DimOrder, 3>(node.operand_count), {DimOrder::channels_last(result_rank(graph, node))}};
  way.operands[0] = DimOrder::channels_last(shape_of(graph, node, 0).size());
  if (const auto* conv = get_if<ConvAttrs>(node.attrs.get()))
    way.operands[1] = weight_order(graph, node, *conv);
  else if (const auto* sums = get_if<IntegerConvAttrs>(node.attrs.get()))
    way.operands[1] = weight_order(graph, node, sums->conv);
  return way;
}

// tosa.avg_pool2d, which may be in a graph at stage integer, has its axes in TOSA's order already.
Way pool_way(const Graph& graph, const Node& node) {
  if (node.op != Op::kTosaAvgPool2d) return spatial_way(graph, node);
  return {SmallVector<DimOrder, 3>(node.operand_count), {DimOrder()}};
}

// The option of the pool if `lead` is the order of this value in that option (`pooled`), else that of the
// reduction, with `lead` for operand and result.
Way windows_way(const Graph& graph, const Node& node, const Shape& shape, const DimOrder& lead,
                const DimOrder& pooled) {
  if (same_in_memory(shape, lead, pooled)) return pool_way(graph, node);
  Way way{SmallVector<DimOrder, 3>(node.operand_count), {lead}};
  way.operands[0] = lead;
  return way;
}

// True if the order of an operand determines that of the result. The order of a broadcast operand does not,
// since its axes of extent 1 may be anywhere.
bool tells(const Shape& operand, const Shape& whole) {
  return operand.size() == whole.size() && std::equal(operand.begin(), operand.end(), whole.begin());
}

}  // namespace

const DimOrder& border_order(const Graph& graph, const Output& output) {
  return output.kind == OutputKind::kMutation ? graph.inputs()[output.mutated_input].border.order
                                              : output.border.order;
}

bool is_tosa_reduction(Op op) {
  switch (op) {  // NOLINT: those with an axis that stays
    case Op::kTosaReduceAll:
    case Op::kTosaReduceAny:
    case Op::kTosaReduceMax:
    case Op::kTosaReduceMin:
    case Op::kTosaReduceProduct:
    case Op::kTosaReduceSum:
      return true;
    default:
      return false;
  }
}

bool is_depthwise(const Shape& input, const Shape& weight, const ConvAttrs& attrs) {
  return !attrs.transposed && attrs.groups == input[1] && input[1] > 1 && weight[0] % input[1] == 0 &&
         weight.size() == 4;
}

Way wanted_way(const Graph& graph, const Node& node) {
  const Freedom freedom = freedom_of(graph, node);
  if (freedom == Freedom::kSpatial) return spatial_way(graph, node);
  if (freedom == Freedom::kWindows) return pool_way(graph, node);
  const std::size_t rank = node.result_count == 0 ? 0 : result_rank(graph, node);
  if (const std::optional<std::int64_t> axis = innermost_axis(node); axis && rank > 0)
    return *uniform_way(graph, node, with_innermost({}, rank, *axis));
  return {SmallVector<DimOrder, 3>(node.operand_count), SmallVector<DimOrder, 1>(node.result_count)};
}

bool is_always_tried(const Graph& graph, const Node& node) {
  return is_fixed(graph, node) || freedom_of(graph, node) == Freedom::kWindows;
}

bool is_fixed(const Graph& graph, const Node& node) {
  const Freedom freedom = freedom_of(graph, node);
  return freedom == Freedom::kFixed || freedom == Freedom::kSpatial;
}

std::optional<Way> way_by_operand(const Graph& graph, const Node& node, std::size_t operand,
                                  const DimOrder& order) {
  const Shape& shape = shape_of(graph, node, operand);
  const Shape& result = graph.type(graph.result(node)).shape;
  switch (freedom_of(graph, node)) {
    case Freedom::kFixed:
    case Freedom::kSpatial:
      return std::nullopt;
    case Freedom::kWindows:
      if (operand != 0) return std::nullopt;
      return windows_way(graph, node, shape, order, pool_way(graph, node).operands[0]);
    case Freedom::kUniform: {
      const bool elementwise =
          info(node.op).has(kElementwise) || node.op == Op::kExpand || node.op == Op::kOpaque;
      if (!takes_part(graph, node, operand) || shape.size() != result.size()) return std::nullopt;
      if (elementwise && !tells(shape, result)) return std::nullopt;
      return way_of(graph, node, order);
    }
    case Freedom::kPermute:
      return way_of(graph, node, relabelled(order, Graph::attrs<PermuteAttrs>(node).perm));
    case Freedom::kReduce:
      return way_of(graph, node, order);
    case Freedom::kReshape: {
      const std::optional<DimOrder> after = reshaped(shape, order, result);
      return after ? std::optional(Way{{order}, {*after}}) : std::nullopt;
    }
    case Freedom::kLinear:
      return operand == 0 ? way_of(graph, node, order) : std::nullopt;
    case Freedom::kMatmul:
      return operand == 0 && shape.size() == result.size() ? way_of(graph, node, order) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<Way> way_by_result(const Graph& graph, const Node& node, std::size_t result,
                                 const DimOrder& order) {
  if (result != 0) return std::nullopt;
  const Freedom freedom = freedom_of(graph, node);
  if (freedom == Freedom::kReshape) {
    const std::optional<DimOrder> before =
        reshaped(graph.type(graph.result(node)).shape, order, shape_of(graph, node, 0));
    return before ? std::optional(Way{{*before}, {order}}) : std::nullopt;
  }
  if (freedom == Freedom::kWindows)
    return windows_way(graph, node, graph.type(graph.result(node)).shape, order,
                       pool_way(graph, node).results[0]);
  if (freedom == Freedom::kReduce && !Graph::attrs<ReduceAttrs>(node).keepdim)
    return way_of(graph, node,
                  with_axes(order, shape_of(graph, node, 0).size(), Graph::attrs<ReduceAttrs>(node).axes));
  return way_of(graph, node, order);
}

}  // namespace tosaic::layout
