#include "tosaic/passes/fold_value.h"

#include <set>
#include <unordered_map>
#include <vector>

#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

constexpr std::size_t kMostNodes = 256;
constexpr std::int64_t kMostElements = std::int64_t{1} << 24;  // of each computed value

// The first results of the nodes that the value depends on, in the order of the graph. Returns nothing if
// there are too many values, if one of them has too many elements, or if one of them depends on an input, a
// state or a constant without data.
std::optional<std::set<ValueId>> computed_from_constants(const Graph& graph, ValueId value) {
  std::set<ValueId> found;
  std::vector<ValueId> todo{value};
  while (!todo.empty()) {
    const ValueId at = todo.back();
    todo.pop_back();
    const Node* const node = graph.producer(at);
    if (node == nullptr) {
      const ConstantRef& constant = graph.value(at).constant;
      if (!constant || !constant->storage.bound()) return std::nullopt;
    } else if (found.insert(graph.result(*node)).second) {
      if (found.size() > kMostNodes) return std::nullopt;
      for (std::uint32_t r = 0; r < node->result_count; ++r)
        if (num_elements(graph.value(graph.result(*node, r)).type.shape) > kMostElements) return std::nullopt;
      for (const ValueId operand : graph.operands(*node))
        if (operand.valid()) todo.push_back(operand);
    }
  }
  return found;
}

}  // namespace

ConstantRef fold_value(const Graph& graph, ValueId value) {
  const std::optional<std::set<ValueId>> computed = computed_from_constants(graph, value);
  if (!computed) return nullptr;
  if (computed->empty()) return graph.value(value).constant;

  Graph part;
  part.stage = graph.stage;
  std::unordered_map<std::uint32_t, ValueId> copies;
  std::vector<ValueId> operands;
  for (const ValueId first : *computed) {
    const Node& node = *graph.producer(first);
    operands.clear();
    for (const ValueId operand : graph.operands(node)) {
      if (operand.valid() && !copies.contains(operand.index()))
        copies[operand.index()] = part.add_constant(graph.value(operand).constant);
      operands.push_back(operand.valid() ? copies[operand.index()] : ValueId());
    }
    const NodeId copy = part.add_copy(graph, node, operands);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      copies[graph.result(node, r).index()] = part.result(part.node(copy), r);
  }
  part.add_output({.value = copies[value.index()],
                   .kind = OutputKind::kUser,
                   .path = "value",
                   .mutated_input = 0,
                   .boundary = {}});
  const std::optional<Graph> folded = fold_constants(part);
  if (!folded) return nullptr;
  const ConstantRef& constant = folded->value(folded->outputs()[0].value).constant;
  return constant && constant->storage.bound() ? constant : nullptr;
}

}  // namespace tosaic::passes
