#include "tosaic/exec/compare/references.h"

#include "tosaic/exec/compare/numbers.h"

namespace tosaic::exec {
namespace {

// The quantized integers, if `value` is quantize and then dequantize of a float; otherwise the value itself.
ValueId rounded(const Graph& graph, ValueId value) {
  const Node* const node = graph.producer(value);
  if (node == nullptr || node->op != Op::kDequantize) return value;
  const ValueId integers = graph.operands(*node)[0];
  const Node* const maker = graph.producer(integers);
  return maker != nullptr && maker->op == Op::kQuantize ? integers : value;
}

// By value: true if an output or a node of another FX node reads the value, or reads its dequantized floats.
std::vector<bool> read_outside(const Graph& graph, const NodesOfFx& nodes) {
  std::vector<bool> read(graph.values().size(), false);
  for (const Output& output : graph.outputs()) read[rounded(graph, output.value).index()] = true;
  for (const Node& node : graph.nodes()) {
    const FxId own = nodes.owner(node);
    for (const ValueId operand : graph.operands(node)) {
      const Node* producer = operand.valid() ? graph.producer(operand) : nullptr;
      if (producer != nullptr && nodes.owner(*producer) != own) read[rounded(graph, operand).index()] = true;
    }
  }
  return read;
}

// The value, and all values from which nodes of the FX node compute it.
std::set<ValueId> sources(const Graph& graph, const NodesOfFx& nodes, FxId fx, ValueId value) {
  std::set<ValueId> found{value};
  std::vector<ValueId> waiting{value};
  while (!waiting.empty()) {
    const Node* const node = graph.producer(waiting.back());
    waiting.pop_back();
    if (node == nullptr || nodes.owner(*node) != fx) continue;
    for (const ValueId operand : graph.operands(*node))
      if (operand.valid() && found.insert(operand).second) waiting.push_back(operand);
  }
  return found;
}

bool is_number(const TensorType& type) { return is_float(type.dtype) || type.qparams; }

}  // namespace

std::set<FxId> with_several_values(const Graph& graph, const NodesOfFx& nodes, const FxNodes& fx) {
  const std::vector<bool> read = read_outside(graph, nodes);
  std::set<FxId> out;
  for (std::uint32_t k = 0; k < fx.size(); ++k) {
    const std::vector<const Node*>& group = nodes.of(FxId(k));
    if (group.empty() || group.back()->result_count == 0) continue;
    const ValueId last = rounded(graph, graph.result(*group.back()));
    const TensorType& last_type = graph.type(last);
    const std::set<ValueId> before = sources(graph, nodes, FxId(k), last);
    for (const Node* node : group)
      for (std::uint32_t i = 0; node != group.back() && i < node->result_count; ++i) {
        const ValueId value = rounded(graph, graph.result(*node, i));
        const TensorType& type = graph.type(value);
        if (value == last || !read[value.index()] || type.shape != last_type.shape) continue;
        const bool other_form = is_number(type) && is_number(last_type) && !before.contains(value);
        if (type.dtype == last_type.dtype || other_form) out.insert(FxId(k));
      }
  }
  return out;
}

std::vector<Reference> final_values(const RunValues& a, const NodesOfFx& nodes,
                                    const std::set<FxId>& left_out) {
  std::vector<Reference> out;
  for (const Node& node : a.graph().nodes()) {
    const FxId id = nodes.owner(node);
    if (!id.valid() || nodes.of(id).back() != &node || left_out.contains(id)) continue;
    for (std::uint32_t i = 0; i < node.result_count; ++i) {
      const ValueId value = a.graph().result(node, i);
      if (a[value].data == nullptr) continue;
      const bool rounded = node.op == Op::kQuantize;
      out.push_back({{id, i},
                     a[value],
                     rounded ? qparams_of(node) : a.qparams(value),
                     rounded,
                     false,
                     a.graph().value(value).canonical_order});
    }
  }
  return out;
}

std::vector<Reference> given_values(std::span<const NamedArray> arrays, FxNodes& fx) {
  std::vector<Reference> out;
  for (const NamedArray& named : arrays)
    out.push_back({{fx.add(named.fx_name), named.result}, named.array, nullptr});
  return out;
}

void mark_several(std::vector<Reference>& references) {
  std::set<FxId> several;
  for (const Reference& each : references)
    if (each.of.index != 0) several.insert(each.of.fx);
  for (Reference& each : references) each.several = several.contains(each.of.fx);
}

void add_qparams(std::vector<Reference>& references, const NodesOfFx& nodes) {
  for (Reference& each : references) {
    const std::vector<const Node*>& group = nodes.of(each.of.fx);
    if (group.empty() || group.back()->op != Op::kQuantize || is_float(each.array.dtype)) continue;
    each.qparams = qparams_of(*group.back());
    each.rounded = true;
  }
}

}  // namespace tosaic::exec
