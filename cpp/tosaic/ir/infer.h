// infer: the result types of an operator from the types of its operands.
//
// Inference checks what torch (canonical operators) or the TOSA 1.0 specification (tosa.*) requires of
// dtypes, ranks, shapes and attributes. So a graph whose stored types equal the inferred ones cannot index
// out of bounds when it runs. Inferred types have the identity dim order and no qparams. Throws InvalidGraph
// for inconsistent operands or attributes, and UnsupportedOp for calls that are valid in torch but not
// supported.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

// operands[i] is null if the optional operand i is absent. Throws InternalError for operators without
// inference.
[[nodiscard]] std::vector<TensorType> infer(Op op, const Attrs& attrs,
                                            std::span<const TensorType* const> operands);

// True if infer() determines the result types of `op`. The result types of opaque, tosa.custom and of control
// flow (cond, while_loop, tosa.cond_if, tosa.while_loop) are stored with the node instead.
[[nodiscard]] bool has_inference(Op op);

// Does the same as infer() for operands that are values of a graph. Errors name the node, its module path and
// source line.
[[nodiscard]] std::vector<TensorType> infer_node(const Graph& graph, Op op, const Attrs& attrs,
                                                 std::span<const ValueId> operands, const OriginRef& origin,
                                                 const std::string& name);

// The dtype in which an operator of this graph sees a value of this type. At stage quantized an operator on
// values with qparams means q(op(dq(x))), so it sees them as f32. Only quantize and dequantize see the
// integers.
[[nodiscard]] DType dtype_seen_by(const Graph& graph, Op op, const TensorType& type);

// torch's result dtype for these operands: a rank-0 tensor counts only if its category (bool, integer, float)
// is higher than that of all tensors of rank >= 1. Null operands are ignored.
[[nodiscard]] DType promoted_dtype(std::span<const TensorType* const> operands);

}  // namespace tosaic
