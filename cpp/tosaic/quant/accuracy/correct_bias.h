// correct_bias: removes the mean error of a contraction's result, by channel, from its bias.
//
//   result[c] - E[result[c] - wanted[c]]        bias[c] - error[c]
//
// Quantized weights change the mean of a result: Nagel et al., "Data-Free Quantization Through Weight
// Equalization and Bias Correction" (2019). ChannelSums computes error[c], the mean over all samples.
#pragma once

#include <span>
#include <string>

#include "tosaic/ir/graph.h"

namespace tosaic::quant {

// Returns the graph in which error c is subtracted from channel c of the node's result. conv and linear get a
// bias if they have none; a node that adds a constant follows a matmul. Throws InvalidGraph if the node is
// not a contraction with a constant weight or has a bias that is not a constant, and LayoutMismatch for
// another number of errors.
[[nodiscard]] Graph correct_bias(const Graph& graph, const std::string& node, std::span<const double> errors);

}  // namespace tosaic::quant
