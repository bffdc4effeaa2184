// copy_node: copies a node, or the inputs, for passes that build a new graph value by value.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Copies a node of `source` to `out`. `operand` maps the id of an operand, invalid if the operand is absent,
// to its id in `out`. The ids of the results in `out` are stored in `made`, by the index of the old value.
template <class Operand>
void copy_node(const Graph& source, const Node& node, Graph& out, std::vector<ValueId>& made,
               Operand operand) {
  std::vector<ValueId> operands;
  for (const ValueId id : source.operands(node)) operands.push_back(operand(id));
  const NodeId copy = out.add_copy(source, node, operands);
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    made[node.first_result + r] = out.result(out.node(copy), r);
}

// Copies the inputs of `source` to `out`, and stores their new ids in `made`.
inline void copy_inputs(const Graph& source, Graph& out, std::vector<ValueId>& made) {
  for (const Input& input : source.inputs()) {
    const Value& value = source.value(input.value);
    made[input.value.index()] =
        out.add_input(input.kind, value.name, value.type, input.path, input.boundary, input.initial);
  }
}

}  // namespace tosaic::passes
