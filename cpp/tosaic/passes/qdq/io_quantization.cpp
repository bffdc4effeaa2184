#include "tosaic/passes/qdq/io_quantization.h"

#include <algorithm>

#include "tosaic/base/error_text.h"

namespace tosaic::passes {
namespace {

// True if the node leaves the positions along this axis of its operand as they are.
bool leaves_axis(const Graph& graph, const Node& node, std::int64_t axis) {
  const auto at = static_cast<std::size_t>(axis);
  if (node.op == Op::kPad) {
    const auto& pad = Graph::attrs<PadAttrs>(node);
    return pad.before[at] == 0 && pad.after[at] == 0;
  }
  if (node.op != Op::kSlice) return false;
  const auto& slice = Graph::attrs<SliceAttrs>(node);
  return slice.axis != axis ||
         graph.type(graph.operands(node)[0]).shape[at] == graph.type(graph.result(node)).shape[at];
}

// Padding inserts one integer, so all channels must represent 0 by it.
bool has_one_zero(const Node& node, const std::vector<std::int64_t>& zero_points) {
  return rearranges(node) || std::adjacent_find(zero_points.begin(), zero_points.end(),
                                                std::not_equal_to<>()) == zero_points.end();
}

void add_distinct(std::vector<QuantizeAttrs>& all, const QuantizeAttrs& quantization) {
  if (std::find(all.begin(), all.end(), quantization) == all.end()) all.push_back(quantization);
}

}  // namespace

std::optional<QParamsRef> qparams_behind(const Graph& graph, const Node& movement, const QParamsRef& from) {
  const bool stays = from->axis && leaves_axis(graph, movement, *from->axis) &&
                     (!from->groups || leaves_axis(graph, movement, from->groups->axis));
  return stays ? from : qparams_after(graph, movement, from);
}

bool moves_one_float(const Graph& graph, const Node& node) {
  return moves(node) && node.operand_count == 1 && node.result_count == 1 &&
         graph.type(graph.operands(node)[0]).dtype == DType::kF32;
}

std::optional<QuantizeAttrs> quantization_before(const Graph& graph, const Node& movement,
                                                 const QuantizeAttrs& of_result) {
  if (!of_result.axis) return of_result;
  if (of_result.groups || !has_one_zero(movement, of_result.zero_points)) return std::nullopt;
  const QParamsRef wanted = qparams_of(of_result, of_result.dtype);
  const Shape& shape = graph.type(graph.operands(movement)[0]).shape;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] != static_cast<std::int64_t>(of_result.scales.size())) continue;
    QuantizeAttrs before = of_result;
    before.axis = static_cast<std::int64_t>(axis);
    const std::optional<QParamsRef> behind =
        qparams_behind(graph, movement, qparams_of(before, before.dtype));
    if (behind && **behind == *wanted) return before;
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
    const std::string reader =
        quoted(info(node.op).name) + " reads it as floats (node " + quoted(graph.node_name(node)) + ")";
    if (!moves_one_float(graph, node)) return {{}, reader};
    const ReadersQuantization behind = quantization_by_readers(graph, graph.result(node));
    if (!behind.obstacle.empty()) return {{}, graph.is_output(graph.result(node)) ? reader : behind.obstacle};
    for (const QuantizeAttrs& each : behind.found) {
      const std::optional<QuantizeAttrs> before = quantization_before(graph, node, each);
      if (!before)
        return {{},
                "its scales belong to an axis that it does not have in front of node " +
                    quoted(graph.node_name(node))};
      add_distinct(all.found, *before);
    }
  }
  return all;
}

std::optional<DequantizedOutput> dequantized_output(const Graph& graph, ValueId id) {
  DequantizedOutput out;
  const Node* node = graph.producer(id);
  while (node != nullptr && node->op != Op::kDequantize && moves_one_float(graph, *node)) {
    out.movements.push_back(node);
    node = graph.producer(graph.operands(*node)[0]);
  }
  if (node == nullptr || node->op != Op::kDequantize) return std::nullopt;
  const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
  if (attrs.dtype != DType::kF32) return std::nullopt;
  out.dequantize = node;
  out.qparams = qparams_of(attrs, graph.type(graph.operands(*node)[0]).dtype);
  std::reverse(out.movements.begin(), out.movements.end());
  for (const Node* movement : out.movements) {
    if (!has_one_zero(*movement, attrs.zero_points)) return std::nullopt;
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
