// explain_qdq: reports why quantize and dequantize nodes remain in a quantized graph.
#pragma once

#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// There is one entry for each reason why an operator next to quantized values computes in floats: an operand
// was never quantized, a result is read as a float, or the operator cannot be quantized. There is also one
// entry for each dequantize node with whose integers another operator computes, or whose integers were
// quantized with other parameters. Operators without a quantized neighbour are not reported, nor are the
// nodes that quantize an input or dequantize an output.
[[nodiscard]] std::vector<ErrorParts> explain_qdq(const Graph& quantized);

}  // namespace tosaic::passes
