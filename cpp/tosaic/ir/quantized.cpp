#include "tosaic/ir/quantized.h"

#include <algorithm>

namespace tosaic {
namespace {

// The constant that a movement inserts. Returns nothing if it inserts none.
std::optional<double> filling(const Node& node) {
  if (node.op == Op::kTril || node.op == Op::kTriu) return 0.0;
  if (node.op != Op::kPad) return std::nullopt;
  const auto& attrs = Graph::attrs<PadAttrs>(node);
  return attrs.mode == PadMode::kConstant ? std::optional(as_double(attrs.value)) : std::nullopt;
}

}  // namespace

bool has_zero(const QParams& qparams) {
  return std::all_of(qparams.zero_points.begin(), qparams.zero_points.end(),
                     [&](std::int64_t zero) { return zero >= qparams.qmin && zero <= qparams.qmax; });
}

bool rearranges(const Node& node) {
  return (info(node.op).has(kMovement) || info(node.op).has(kView)) && !filling(node);
}

bool moves(const Node& node) { return rearranges(node) || filling(node) == 0.0; }

bool selects_elements(const Node& node) { return info(node.op).has(kSelection) || moves(node); }

bool commutes_with_quantize(const Node& node) { return node.op == Op::kClamp || selects_elements(node); }

namespace {

// The axis of the result to which a permute or reshape moves the whole axis `from`, if there is one.
std::optional<std::int64_t> moved_axis(const Graph& graph, const Node& node, std::int64_t from) {
  if (node.op == Op::kPermute) {
    const Dims& perm = Graph::attrs<PermuteAttrs>(node).perm;
    return std::find(perm.begin(), perm.end(), from) - perm.begin();
  }
  // In a reshape, that axis of the result has the same extent as `from` and the same product of the extents
  // before it.
  const Shape& before = graph.type(graph.operands(node)[0]).shape;
  const Shape& after = graph.type(graph.result(node)).shape;
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

}  // namespace

std::optional<QParamsRef> qparams_after(const Graph& graph, const Node& node, const QParamsRef& from) {
  if (!from->axis || node.op == Op::kClone) return from;
  if (node.op != Op::kPermute && node.op != Op::kReshape) return std::nullopt;
  const std::optional<std::int64_t> axis = moved_axis(graph, node, *from->axis);
  std::optional<std::int64_t> along;
  if (from->groups) along = moved_axis(graph, node, from->groups->axis);
  if (!axis || (from->groups && (!along || *along == *axis))) return std::nullopt;
  QParams out = *from;
  out.axis = axis;
  if (along) out.groups->axis = *along;
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
