#include "tosaic/passes/qdq/io_quantization.h"

#include <algorithm>
#include <numeric>

#include "tosaic/base/error_text.h"

namespace tosaic::passes {
namespace {

// True if the node inserts 0, and not along this axis of its operand.
bool pads_other_axes(const Node& node, std::int64_t axis) {
  const auto* pad = get_if<PadAttrs>(node.attrs.get());
  const auto at = static_cast<std::size_t>(axis);
  return pad != nullptr && !rearranges(node) && pad->before[at] == 0 && pad->after[at] == 0;
}

// True if the integer that the movement inserts represents 0. Padding inserts one integer, so all channels
// must represent 0 by it; tril and triu insert the integer 0.
bool inserts_zero(const Node& node, const std::vector<std::int64_t>& zero_points) {
  if (rearranges(node)) return true;
  const std::int64_t zero = node.op == Op::kPad ? zero_points.front() : 0;
  return std::all_of(zero_points.begin(), zero_points.end(),
                     [zero](std::int64_t each) { return each == zero; });
}

// Why quantization_before() returns nothing, as a part of a sentence.
std::string why_not_before(const Graph& graph, const Node& movement, const QuantizeAttrs& of_result) {
  const std::string name = quoted(graph.node_name(movement));
  if (!inserts_zero(movement, of_result.zero_points))
    return "node " + name + " inserts 0, which its integers represent otherwise";
  return "its scales belong to an axis that it does not have in front of node " + name;
}

void add_distinct(std::vector<QuantizeAttrs>& all, const QuantizeAttrs& quantization) {
  if (std::find(all.begin(), all.end(), quantization) == all.end()) all.push_back(quantization);
}

}  // namespace

std::optional<QParamsRef> qparams_behind(const Graph& graph, const Node& movement, const QParamsRef& from) {
  const bool stays = from->axis && pads_other_axes(movement, *from->axis) &&
                     (!from->groups || pads_other_axes(movement, from->groups->axis));
  return stays ? from : qparams_after(graph, movement, from);
}

bool widens(const Graph& graph, const Node& node) {
  return node.op == Op::kCast && graph.type(graph.result(node)).dtype == DType::kF32 &&
         is_half(graph.type(graph.operands(node)[0]).dtype);
}

bool narrows(const Graph& graph, const Node& node) {
  return node.op == Op::kCast && is_half(graph.type(graph.result(node)).dtype) &&
         graph.type(graph.operands(node)[0]).dtype == DType::kF32;
}

bool moves_one_float(const Graph& graph, const Node& node) {
  return moves(node) && node.operand_count == 1 && node.result_count == 1 &&
         has_integer_form(graph.type(graph.operands(node)[0]).dtype);
}

std::optional<QuantizeAttrs> quantization_before(const Graph& graph, const Node& movement,
                                                 const QuantizeAttrs& of_result) {
  if (!inserts_zero(movement, of_result.zero_points)) return std::nullopt;
  if (!of_result.axis) return of_result;
  if (of_result.groups) return std::nullopt;
  const QParamsRef wanted = qparams_of(of_result, of_result.dtype);
  const std::size_t count = of_result.scales.size();
  const Shape& shape = graph.type(graph.operands(movement)[0]).shape;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] != static_cast<std::int64_t>(count)) continue;
    // Zero points that are the indices along the axis show where the movement takes each index.
    QParams indices = *wanted;
    indices.axis = static_cast<std::int64_t>(axis);
    std::iota(indices.zero_points.begin(), indices.zero_points.end(), 0);
    const std::optional<QParamsRef> behind =
        qparams_behind(graph, movement, std::make_shared<const QParams>(indices));
    if (!behind || (*behind)->axis != of_result.axis || (*behind)->zero_points.size() != count) continue;
    QuantizeAttrs before = of_result;
    before.axis = indices.axis;
    std::vector<bool> known(count, false);
    for (std::size_t i = 0; i < count; ++i) {
      const auto from = static_cast<std::size_t>((*behind)->zero_points[i]);
      known[from] = true;
      before.scales[from] = of_result.scales[i];
      before.zero_points[from] = of_result.zero_points[i];
    }
    if (std::find(known.begin(), known.end(), false) == known.end()) return before;
  }
  return std::nullopt;
}

ReadersQuantization quantization_by_readers(const Graph& graph, ValueId id) {
  if (graph.is_output(id)) return {{}, "it is an output, too"};
  if (graph.users(id).empty()) return {{}, "nothing reads it"};
  ReadersQuantization all;
  for (const NodeId user : graph.users(id)) {
    const Node& node = graph.node(user);
    if (node.op == Op::kQuantize) {
      add_distinct(all.found, Graph::attrs<QuantizeAttrs>(node));
      continue;
    }
    const bool only_widens = widens(graph, node);
    const std::string reader =
        quoted(info(node.op).name) + " reads it as floats (node " + quoted(graph.node_name(node)) + ")";
    if (!only_widens && !moves_one_float(graph, node)) return {{}, reader};
    const ReadersQuantization behind = quantization_by_readers(graph, graph.result(node));
    if (!behind.obstacle.empty()) return {{}, graph.is_output(graph.result(node)) ? reader : behind.obstacle};
    for (const QuantizeAttrs& each : behind.found) {
      const std::optional<QuantizeAttrs> before = only_widens ? each : quantization_before(graph, node, each);
      if (!before) return {{}, why_not_before(graph, node, each)};
      add_distinct(all.found, *before);
    }
  }
  return all;
}

std::optional<DequantizedOutput> dequantized_output(const Graph& graph, ValueId id) {
  DequantizedOutput out;
  const Node* node = graph.producer(id);
  while (node != nullptr && (narrows(graph, *node) || moves_one_float(graph, *node))) {
    if (node->op != Op::kCast) out.movements.push_back(node);
    node = graph.producer(graph.operands(*node)[0]);
  }
  if (node == nullptr || node->op != Op::kDequantize) return std::nullopt;
  const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
  if (!has_integer_form(attrs.dtype)) return std::nullopt;
  out.dequantize = node;
  out.qparams = qparams_of(attrs, graph.type(graph.operands(*node)[0]).dtype);
  std::reverse(out.movements.begin(), out.movements.end());
  for (const Node* movement : out.movements) {
    if (!inserts_zero(*movement, attrs.zero_points)) return std::nullopt;
    const std::optional<QParamsRef> behind = qparams_behind(graph, *movement, out.qparams);
    if (!behind) return std::nullopt;
    out.qparams = *behind;
  }
  return out;
}

Attrs attrs_on_integers(const Node& movement, std::int64_t zero_point) {
  Attrs attrs = *movement.attrs;
  if (auto* pad = get_if<PadAttrs>(&attrs)) pad->value = zero_point;
  return attrs;
}

}  // namespace tosaic::passes
