#include "tosaic/exec/compare/labels.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "tosaic/exec/compare/numbers.h"

namespace tosaic::exec {
namespace {

std::int64_t place_of(std::int64_t axis, const Dims& order) {
  return std::find(order.begin(), order.end(), axis) - order.begin();
}

// The qparams of a canonical value, with their axes as the legalized value of `rank` axes stores them.
QParamsRef stored(const TensorType& canonical, std::size_t rank) {
  const QParamsRef& qparams = canonical.qparams;
  const auto more = static_cast<std::int64_t>(rank - canonical.rank());
  if (!qparams->axis || (canonical.order.is_identity() && more == 0)) return qparams;
  const Dims order = canonical.order.axes(canonical.rank());
  auto out = std::make_shared<QParams>(*qparams);
  out->axis = place_of(*qparams->axis, order) + more;
  if (out->groups) out->groups->axis = place_of(qparams->groups->axis, order) + more;
  return out;
}

// A legalized value may have leading axes of extent 1 (the pass unit-axes).
bool is_same_value(const TensorType& type, const TensorType& canonical) {
  Shape shape = type.shape;
  while (shape.size() > canonical.rank() && shape[0] == 1) shape.erase(0);
  return !is_float(type.dtype) && byte_size(type.dtype) == byte_size(canonical.dtype) &&
         shape == permuted(canonical.shape, canonical.order.axes(canonical.rank()));
}

void add_canonical(const Graph& graph, const Graph& canonical, std::vector<QParamsRef>& out) {
  std::unordered_map<std::string_view, const TensorType*> known;
  for (const Value& value : canonical.values())
    if (value.type.qparams) known.emplace(value.name, &value.type);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Value& value = graph.values()[i];
    const auto found = known.find(value.name);
    if (out[i] || found == known.end() || !is_same_value(value.type, *found->second)) continue;
    out[i] = stored(*found->second, value.type.rank());
  }
}

// For a node that only moves elements: the qparams that all operands with the dtype of the result have. Null
// if they differ, or if they are per channel: the node may move the channels to another axis.
QParamsRef moved(const Graph& graph, const Node& node, const std::vector<QParamsRef>& known) {
  if (!moves_elements(node.op)) return nullptr;
  const DType dtype = graph.type(graph.result(node)).dtype;
  QParamsRef common;
  for (const ValueId operand : graph.operands(node)) {
    if (!operand.valid() || graph.type(operand).dtype != dtype) continue;
    const QParamsRef& own = known[operand.index()];
    if (!own || own->axis || (common && !is_same(common, own))) return nullptr;
    common = own;
  }
  return common;
}

// By value: the qparams that the results have of all nodes that only move its elements. Null if there is no
// such node, or if the qparams differ.
std::vector<QParamsRef> moved_later(const Graph& graph, const std::vector<QParamsRef>& known) {
  std::vector<QParamsRef> out(known.size());
  std::vector<bool> differ(known.size(), false);
  const std::span<const Node> nodes = graph.nodes();
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const Node& node = nodes[n];
    if (node.result_count != 1 || !moves_elements(node.op)) continue;
    const ValueId result = graph.result(node);
    const QParamsRef& own = known[result.index()] ? known[result.index()] : out[result.index()];
    if (!own || own->axis) continue;
    for (const ValueId operand : graph.operands(node)) {
      if (!operand.valid() || graph.type(operand).dtype != graph.type(result).dtype) continue;
      QParamsRef& later = out[operand.index()];
      if (later && !is_same(later, own)) differ[operand.index()] = true;
      later = differ[operand.index()] ? nullptr : own;
    }
  }
  return out;
}

}  // namespace

std::vector<QParamsRef> labels(const Graph& graph, const Graph* canonical) {
  std::vector<QParamsRef> out;
  for (const Value& value : graph.values()) out.push_back(value.type.qparams);
  if (canonical != nullptr) add_canonical(graph, *canonical, out);
  const std::vector<QParamsRef> after = moved_later(graph, out);
  for (const Node& node : graph.nodes()) {
    if (node.result_count == 0) continue;
    const QParamsRef common = moved(graph, node, out);
    for (std::uint32_t r = 0; common && r < node.result_count; ++r) {
      const ValueId result = graph.result(node, r);
      const QParamsRef& later = after[result.index()];
      const bool differs = later && !is_same(common, later);
      if (!out[result.index()] && !differs &&
          graph.type(result).dtype == graph.type(graph.result(node)).dtype)
        out[result.index()] = common;
    }
  }
  return out;
}

}  // namespace tosaic::exec
