// explain-qdq: why quantize and dequantize nodes are left in a quantized graph.
#pragma once

#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// One entry for each reason why an operator between quantized values computes in floats: an operand that was
// never quantized, a result that somebody reads as a float, an operator that cannot be quantized; and for
// each dequantize node whose integers are not what it takes them for. Operators without a quantized neighbour
// are no border, and what quantizes an input or dequantizes an output needs no reason.
[[nodiscard]] std::vector<ErrorParts> explain_qdq(const Graph& quantized);

}  // namespace tosaic::passes
