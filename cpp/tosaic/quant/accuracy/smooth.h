// smooth: SmoothQuant. Moves ranges of activations, which differ between channels, into weights.
//
//   x = layer_norm(., g, b)           linear(x, W)
//   x = layer_norm(., g / s, b / s)   linear(x, W * s)      s_c = max |x_c|^alpha / max |W_c|^(1 - alpha)
//
// as in Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
// Models" (2022). The scales go into the nearest node in front of the linear layers that constants can scale:
// a norm, a product with a constant, or another contraction (scale_moves.h). All readers of the channels must
// be contractions (channel_paths.h): the scales fit all of them, e.g. query, key and value. The result of the
// graph is unchanged but for the rounding of weights. Channels of which an activation or a weight is always
// zero are not scaled.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/quant/accuracy/channel_statistics.h"

namespace tosaic::quant {

struct SmoothedInput {
  std::string source;                // the name of the node whose result is divided; empty if there is none
  std::vector<std::string> readers;  // the contractions whose weights are multiplied
  std::vector<double> scales;        // s, by channel
  std::vector<double> input_before, input_after;    // largest magnitudes, by channel
  std::vector<double> weight_before, weight_after;  // the same of the weights of all readers together
  std::string skipped;  // why nothing moves: a clause; then `scales` and the ranges are empty
};

struct Smoothed {
  Graph graph;
  std::vector<SmoothedInput> inputs;  // in the order of the sources; skipped inputs are last
};

// `magnitudes` has the largest magnitude of each channel that a contraction contracts, by the name of the
// value that the contraction reads. A contraction that reads another value is smoothed only together with one
// that reads a value of `magnitudes`. Throws QuantMismatch unless 0 <= alpha <= 1, InvalidGraph for a name of
// no value, and LayoutMismatch for another number of channels.
[[nodiscard]] Smoothed smooth(const Graph& graph, const std::map<std::string, ChannelAbsMax>& magnitudes,
                              double alpha = 0.5);

}  // namespace tosaic::quant
