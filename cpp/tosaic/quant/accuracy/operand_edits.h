// operand_edits: a graph whose nodes read other constants.
#pragma once

#include <map>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::quant {

// By node: the new constants by operand. Operands that the node lacks are added.
using OperandEdits = std::map<NodeId, std::map<std::size_t, ConstantRef>>;

// The graph with these constants as operands. Constants that no node reads any more are removed.
[[nodiscard]] Graph with_operands(const Graph& graph, const OperandEdits& edits);

// The graph without constants that nothing reads.
[[nodiscard]] Graph without_unread_constants(const Graph& graph);

// A constant of this dtype and shape with the name of `like`.
[[nodiscard]] ConstantRef edited_constant(const Constant& like, const Shape& shape,
                                          const std::vector<double>& values);

// The elements as doubles. Throws what Constant::bytes() throws.
[[nodiscard]] std::vector<double> elements_of(const Constant& constant);

}  // namespace tosaic::quant
