// operands: adds attributes of a node as constant operands of the operator in the file.
//
//   tosa.conv2d(...) {input_zp=3, weight_zp=0}   ->   CONV2D(..., zp_i8_3, zp_i8_0)
//
// tosa/constant_operands.h says which attributes are operands.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tosaic/tosa/writer/tensor_list.h"

namespace tosaic::tosa {

// Throws InvalidGraph, which names the node.
[[noreturn]] void fail_at(const Graph& graph, const Node& node, std::string what, std::string expected,
                          std::string got);

// TOSA has some attributes as constant operands. Adds a constant to `tensors` for each such attribute of the
// node, and appends its index to `operands`. `dtypes` has the dtypes of the node's other operands. Throws for
// attributes out of range.
void append_constant_operands(const Graph& graph, const Node& node, std::span<const DType> dtypes,
                              TensorList& tensors, std::vector<std::uint32_t>& operands);

}  // namespace tosaic::tosa
