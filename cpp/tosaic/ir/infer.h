// infer: the result types of an operator from the types of its operands.
//
// Checks what torch (canonical operators) or the TOSA 1.0 specification (tosa.*) requires of dtypes, ranks,
// shapes and attributes, so a graph whose stored types equal the inferred ones cannot index out of bounds
// when run. Results have identity dim order and no qparams. Throws InvalidGraph (inconsistent) or
// UnsupportedOp (valid torch, not supported).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

// operands[i] is null where an optional operand is absent. Not for ops whose results are given by stored
// types (opaque, cond, while_loop): these give InternalError.
[[nodiscard]] std::vector<TensorType> infer(Op op, const Attrs& attrs,
                                            std::span<const TensorType* const> operands);

// True if infer() knows the result types of `op` (all but opaque, cond, while_loop).
[[nodiscard]] bool has_inference(Op op);

// The same over a graph's values; errors name the node, its module path and source line.
[[nodiscard]] std::vector<TensorType> infer_node(const Graph& graph, Op op, const Attrs& attrs,
                                                 std::span<const ValueId> operands, const OriginRef& origin,
                                                 const std::string& name);

// A value's dtype as an operator of this graph sees it: at stage quantized an operator over values with
// qparams means q(op(dq(x))), so to all but quantize and dequantize these are f32.
[[nodiscard]] DType dtype_seen_by(const Graph& graph, Op op, const TensorType& type);

// torch's result dtype of a binary operator: tensors of rank >= 1 outrank rank-0 ones of the same or a lower
// category.
[[nodiscard]] DType promoted_dtype(std::span<const TensorType* const> operands);

}  // namespace tosaic
