// copied_nodes: adds nodes to the new graph without integer arithmetic.
//
//   copy_node         operands and results are as the graph has them: indices, bools, floats, or integers in
//                     signed form
//   add_over_floats   quantized operands are dequantized, and quantized results are quantized again
#pragma once

#include <string>

#include "tosaic/passes/lower_to_integer/value_map.h"

namespace tosaic::passes {

// Adds a copy of the node. The copy gets its name from `build`.
void copy_node(ValueMap& values, const Node& node, IntegerBuilder& build);
// Adds an operator over floats and, unless `reason` is empty, reports why.
void add_over_floats(ValueMap& values, const Node& node, const std::string& reason);
// Reports that an operator still computes with floats, and why.
void report_float_operator(ValueMap& values, const Node& node, const std::string& reason);
// The types of the node's results without qparams; quantized results are f32.
[[nodiscard]] std::vector<TensorType> float_types(const Graph& graph, const Node& node);

}  // namespace tosaic::passes
