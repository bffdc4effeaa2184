// copy_node: copies a node for passes that build a new graph value by value.
#pragma once

#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Copies a node of `source` to `out`. `operand` returns the new value of each operand, which may be absent.
// The new ids of the results are stored in `made`, by the index of the old value.
template <class Operand>
void copy_node(const Graph& source, const Node& node, Graph& out, std::vector<ValueId>& made,
               Operand operand) {
  std::vector<ValueId> operands;
  for (const ValueId id : source.operands(node)) operands.push_back(operand(id));
  const NodeId copy = out.add_copy(source, node, operands);
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    made[node.first_result + r] = out.result(out.node(copy), r);
}

}  // namespace tosaic::passes
