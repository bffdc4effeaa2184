#include "tosaic/ir/quantized.h"

#include <algorithm>
#include <set>
#include <vector>

#include "tosaic/ir/op_table.h"

namespace tosaic {

std::optional<double> inserted_number(const Node& node) {
  if (node.op == Op::kTril || node.op == Op::kTriu) return 0.0;
  if (node.op != Op::kPad) return std::nullopt;
  const auto& attrs = Graph::attrs<PadAttrs>(node);
  return attrs.mode == PadMode::kConstant ? std::optional(as_double(attrs.value)) : std::nullopt;
}

bool has_zero(const QParams& qparams) {
  return std::all_of(qparams.zero_points.begin(), qparams.zero_points.end(),
                     [&](std::int64_t zero) { return zero >= qparams.qmin && zero <= qparams.qmax; });
}

bool rearranges(const Node& node) {
  return (info(node.op).has(kMovement) || info(node.op).has(kView)) && !inserted_number(node);
}

bool moves(const Node& node) { return rearranges(node) || inserted_number(node) == 0.0; }

bool selects_elements(const Node& node) { return info(node.op).has(kSelection) || moves(node); }

bool commutes_with_quantize(const Node& node) { return node.op == Op::kClamp || selects_elements(node); }

namespace {

// The axis of the result that an axis of the operand becomes in a movement.
struct MovedAxis {
  std::int64_t axis = 0;           // of the result
  std::vector<std::int64_t> from;  // for each index along it, the index along the axis of the operand
};

// The axis of a reshaped tensor that has the same extent as axis `from`, and the same product of the extents
// before it.
std::optional<std::int64_t> reshaped_axis(const Shape& before, const Shape& after, std::int64_t from) {
  std::int64_t lead = 1;
  for (std::int64_t i = 0; i < from; ++i) lead *= before[static_cast<std::size_t>(i)];
  std::int64_t product = 1;
  for (std::size_t i = 0; i < after.size() && product <= lead; ++i) {
    if (product == lead && after[i] == before[static_cast<std::size_t>(from)])
      return static_cast<std::int64_t>(i);
    product *= after[i];
  }
  return std::nullopt;
}

// The axis of the result that has the positions of the operand's axis. Returns nothing if there is none, or
// if the node inserts a number that is not an element of the operand.
using AxisRule = std::optional<std::int64_t> (*)(const Graph&, const Node&, std::int64_t from);

std::optional<std::int64_t> same_axis(const Graph&, const Node&, std::int64_t from) { return from; }

std::optional<std::int64_t> permuted_axis(const Graph&, const Node& node, std::int64_t from) {
  const Dims& perm = Graph::attrs<PermuteAttrs>(node).perm;
  return std::find(perm.begin(), perm.end(), from) - perm.begin();
}

std::optional<std::int64_t> axis_of_reshape(const Graph& graph, const Node& node, std::int64_t from) {
  return reshaped_axis(graph.type(graph.operands(node)[0]).shape, graph.type(graph.result(node)).shape, from);
}

// Expand and repeat add axes in front.
std::optional<std::int64_t> axis_from_the_end(const Graph& graph, const Node& node, std::int64_t from) {
  const auto rank = [&](ValueId id) { return static_cast<std::int64_t>(graph.type(id).rank()); };
  return from + rank(graph.result(node)) - rank(graph.operands(node)[0]);
}

std::optional<std::int64_t> unpadded_axis(const Graph&, const Node& node, std::int64_t from) {
  const auto& pad = Graph::attrs<PadAttrs>(node);
  const auto at = static_cast<std::size_t>(from);
  if (inserted_number(node) || pad.before[at] != 0 || pad.after[at] != 0) return std::nullopt;
  return from;
}

std::optional<std::int64_t> other_axis(const Graph&, const Node& node, std::int64_t from) {
  return Graph::attrs<AxisAttrs>(node).axis == from ? std::nullopt : std::optional(from);
}

// For movements without an entry, per-channel scales do not move: qparams_after() returns nothing.
constexpr OpTable<AxisRule> kAxisRules = {
    {Op::kClone, same_axis},          {Op::kFlip, same_axis},    {Op::kSlice, same_axis},
    {Op::kPermute, permuted_axis},    {Op::kPad, unpadded_axis}, {Op::kReshape, axis_of_reshape},
    {Op::kExpand, axis_from_the_end}, {Op::kCat, other_axis},    {Op::kIndexSelect, other_axis},
    {Op::kRepeat, axis_from_the_end},
};

std::optional<MovedAxis> moved_axis(const Graph& graph, const Node& node, std::int64_t from) {
  const AxisRule* rule = kAxisRules.find(node.op);
  const std::optional<std::int64_t> axis = rule != nullptr ? (*rule)(graph, node, from) : std::nullopt;
  if (!axis) return std::nullopt;
  const std::int64_t extent = graph.type(graph.operands(node)[0]).shape[static_cast<std::size_t>(from)];
  MovedAxis out{*axis, {}};
  out.from.resize(
      static_cast<std::size_t>(graph.type(graph.result(node)).shape[static_cast<std::size_t>(*axis)]));
  std::int64_t start = 0, step = 1;
  if (node.op == Op::kFlip) {
    const Dims& axes = Graph::attrs<AxesAttrs>(node).axes;
    if (std::find(axes.begin(), axes.end(), from) != axes.end()) start = extent - 1, step = -1;
  } else if (node.op == Op::kSlice && Graph::attrs<SliceAttrs>(node).axis == from) {
    start = Graph::attrs<SliceAttrs>(node).start;
    step = Graph::attrs<SliceAttrs>(node).step;
  }
  for (std::size_t i = 0; i < out.from.size(); ++i)
    out.from[i] = extent == 0 ? 0 : (start + static_cast<std::int64_t>(i) * step) % extent;
  return out;
}

// True if the movement does not change the indices along the axis.
bool leaves_indices(const MovedAxis& moved, std::int64_t extent) {
  if (static_cast<std::int64_t>(moved.from.size()) != extent) return false;
  for (std::size_t i = 0; i < moved.from.size(); ++i)
    if (moved.from[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}

template <class T>
std::vector<T> chosen(const std::vector<T>& all, const std::vector<std::int64_t>& indices) {
  std::vector<T> out;
  out.reserve(indices.size());
  for (const std::int64_t i : indices) out.push_back(all[static_cast<std::size_t>(i)]);
  return out;
}

}  // namespace

std::optional<QParamsRef> qparams_after(const Graph& graph, const Node& node, const QParamsRef& from) {
  if (!from->axis || node.op == Op::kClone) return from;
  const Shape& shape = graph.type(graph.operands(node)[0]).shape;
  const auto extent = [&](std::int64_t axis) { return shape[static_cast<std::size_t>(axis)]; };
  const std::optional<MovedAxis> moved = moved_axis(graph, node, *from->axis);
  if (!moved) return std::nullopt;
  QParams out = *from;
  out.axis = moved->axis;
  if (from->groups) {
    const std::optional<MovedAxis> along = moved_axis(graph, node, from->groups->axis);
    if (!along || along->axis == moved->axis || !leaves_indices(*along, extent(from->groups->axis)) ||
        !leaves_indices(*moved, extent(*from->axis)))
      return std::nullopt;
    out.groups->axis = along->axis;
  } else if (!leaves_indices(*moved, extent(*from->axis))) {
    if (moved->from.empty()) return std::nullopt;
    out.scales = chosen(from->scales, moved->from);
    out.zero_points = chosen(from->zero_points, moved->from);
  }
  if (out == *from) return from;
  return std::make_shared<const QParams>(std::move(out));
}

bool runs_on_integers(const Graph& graph, const Node& node) {
  if (!rearranges(node)) return false;
  QParamsRef common;
  for (const ValueId id : graph.operands(node)) {
    if (!id.valid()) continue;
    const TensorType& type = graph.type(id);
    if (!type.qparams && !is_float(type.dtype)) continue;  // indices
    if (!type.qparams || (common && !same_qparams(common, type.qparams))) return false;
    common = type.qparams;
  }
  if (!common) return false;
  const std::optional<QParamsRef> behind = qparams_after(graph, node, common);
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (!behind || !same_qparams(*behind, graph.type(graph.result(node, r)).qparams)) return false;
  return true;
}

bool is_tested_for_nan(const Graph& graph, ValueId value) {
  std::vector<ValueId> waiting{value};
  std::set<std::uint32_t> seen;
  while (!waiting.empty()) {
    const ValueId at = waiting.back();
    waiting.pop_back();
    if (!seen.insert(at.index()).second) continue;
    for (const NodeId user : graph.users(at)) {
      const Node& node = graph.node(user);
      const auto operands = graph.operands(node);
      if (node.op == Op::kNanToNum) return true;
      if ((node.op == Op::kNe || node.op == Op::kEq) && operands[0] == operands[1]) return true;
      if (node.result_count != 1 || !is_float(graph.type(graph.result(node)).dtype)) continue;
      if (info(node.op).has(kElementwise) || rearranges(node)) waiting.push_back(graph.result(node));
    }
  }
  return false;
}

bool has_integer_kernel(const Node& node) {
  return node.op == Op::kOpaque && Graph::attrs<OpaqueAttrs>(node).integers;
}

bool computes_dequantized(const Graph& graph, const Node& node) {
  if (node.op == Op::kQuantize || node.op == Op::kDequantize) return false;
  const auto has_qparams = [&](ValueId id) { return id.valid() && graph.type(id).qparams != nullptr; };
  const std::span<const ValueId> operands = graph.operands(node);
  bool any = std::any_of(operands.begin(), operands.end(), has_qparams);
  for (std::uint32_t r = 0; r < node.result_count; ++r) any = any || has_qparams(graph.result(node, r));
  return any;
}

}  // namespace tosaic
