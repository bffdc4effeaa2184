#include "tosaic/layout/recast/shapes.h"

#include <algorithm>

#include "tosaic/base/error.h"
#include "tosaic/layout/recast/recast.h"

namespace tosaic::layout {
namespace {

std::optional<std::int64_t> axis_of_scales(const Node& node) {
  const auto* rescale = get_if<RescaleAttrs>(node.attrs.get());
  return rescale != nullptr ? rescale->axis : std::nullopt;
}

// The cuts between axes along which an operand is broadcast and axes along which it is not. 1 and the number
// of elements are always among them.
Cuts cuts_of_broadcast(const Shape& operand, const Shape& result) {
  const SmallVector<bool, 8> has = has_axes(operand, result);
  const Dims strides = contiguous_strides(result);
  Cuts cuts{1};
  std::optional<bool> last;
  for (std::size_t axis = result.size(); axis-- > 0;) {
    if (result[axis] == 1) continue;
    if (last && *last != has[axis]) cuts.push_back(strides[axis]);
    last = has[axis];
  }
  if (const std::int64_t elements = num_elements(result); elements != 1) cuts.push_back(elements);
  return cuts;
}

}  // namespace

SmallVector<bool, 8> has_axes(const Shape& operand, const Shape& result) {
  SmallVector<bool, 8> out;
  const std::size_t missing = result.size() - operand.size();
  for (std::size_t axis = 0; axis < result.size(); ++axis)
    out.push_back(axis >= missing && operand[axis - missing] == result[axis]);
  return out;
}

std::size_t axis_with(const Shape& shape, std::int64_t stride) {
  const Dims strides = contiguous_strides(shape);
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] != 1 && strides[axis] <= stride && stride < strides[axis] * shape[axis]) return axis;
  throw InternalError({.where = "layout", .what = "a stride that no axis has"});
}

bool can_be_recast(const Graph& graph, const Node& node, const target::LayoutNeeds& needs) {
  const OpInfo& row = info(node.op);
  if (!row.has(kElementwise) || row.has(kComposite) || node.result_count != 1) return false;
  const auto can_be_reshaped = [&](ValueId value) {
    const TensorType& type = graph.type(value);
    return needs.can_transpose(type.dtype) && num_elements(type.shape) > 0 &&
           !(type.qparams && type.qparams->axis);
  };
  const std::span<const ValueId> operands = graph.operands(node);
  const Shape& shape = shape_of(graph, graph.result(node));
  if (num_elements(shape) < 2 || !can_be_reshaped(graph.result(node))) return false;
  bool any = false;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].valid() || is_table(node, i)) continue;
    if (!is_constant(graph, operands[i]) && !can_be_reshaped(operands[i])) return false;
    any |= !is_constant(graph, operands[i]) && shape_of(graph, operands[i]) == shape;
  }
  return any;
}

std::optional<Cuts> needed_cuts(const Graph& graph, const Node& node, const Placement& placement) {
  const Shape& result = shape_of(graph, graph.result(node));
  std::optional<Cuts> cuts = cuts_of(placement, num_elements(result));
  for (std::size_t i = 0; cuts && i < node.operand_count; ++i)
    if (const ValueId operand = graph.operands(node)[i]; operand.valid() && !is_table(node, i))
      cuts = merged(*cuts, cuts_of_broadcast(shape_of(graph, operand), result));
  if (const std::optional<std::int64_t> axis = axis_of_scales(node); cuts && axis) {
    const auto at = static_cast<std::size_t>(*axis);
    const std::int64_t stride = contiguous_strides(result)[at], end = stride * result[at];
    if (stride == end) return std::nullopt;
    Cuts own{1};
    for (const std::int64_t cut : {stride, end, num_elements(result)})
      if (own.back() != cut) own.push_back(cut);
    cuts = merged(*cuts, own);
    if (!cuts) return std::nullopt;
    const Run innermost = split_at(*cuts, placement).back();
    if (!(innermost == Run{result[at], stride})) return std::nullopt;
  }
  return cuts;
}

bool fits(const Graph& graph, const Node& node, const Cuts& needed, const Shape& shape,
          std::size_t most_axes) {
  if (shape.size() > most_axes) return false;
  const Cuts cuts = cuts_of(shape);
  if (!std::all_of(needed.begin(), needed.end(), [&](std::int64_t cut) { return contains(cuts, cut); }))
    return false;
  const std::optional<std::int64_t> axis = axis_of_scales(node);
  if (!axis) return true;
  const Shape& result = shape_of(graph, graph.result(node));
  const auto at = static_cast<std::size_t>(*axis);
  const std::int64_t stride = contiguous_strides(result)[at];
  return std::none_of(cuts.begin(), cuts.end(),
                      [&](std::int64_t cut) { return stride < cut && cut < stride * result[at]; });
}

Shape operand_shape(const Shape& operand, const Shape& result, const Shape& shape) {
  if (operand.empty()) return operand;
  const SmallVector<bool, 8> has = has_axes(operand, result);
  const Dims strides = contiguous_strides(shape);
  Shape out;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    out.push_back(shape[axis] != 1 && has[axis_with(result, strides[axis])] ? shape[axis] : 1);
  return out;
}

std::int64_t axis_in(const Shape& result, std::int64_t axis, const Shape& shape) {
  const std::int64_t stride = contiguous_strides(result)[static_cast<std::size_t>(axis)];
  return static_cast<std::int64_t>(axis_with(shape, stride));
}

}  // namespace tosaic::layout
