// equalize: cross-layer equalisation.
//
//   first  = conv(x, W / s, b / s)  -->  relu  -->  second = conv(., V * s)
//
// s_c = sqrt(max |W_c| / max |V_c|), so that both weights have the range sqrt(max |W_c| max |V_c|) in channel
// c: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019). All pairs
// are equalised in turns until no scale changes by more than 0.1 %, since a weight is the second of one pair
// and the first of another. Chains such as conv -> depthwise -> conv are two pairs.
//
// The result of the graph is unchanged but for the rounding of weights and biases. A pair is found wherever
// channel_paths.h can move scales; if several contractions read the tensor, the range covers all of them.
// Batch norms should be folded before. Channels that have only zeros in one of the weights are not scaled.
#pragma once

#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::quant {

struct EqualizedPair {
  std::string first;                                // the name of the node that computes the channels
  std::vector<std::string> readers;                 // contractions that read them
  std::vector<std::string> between;                 // operators in between
  std::vector<double> scales;                       // s, by channel
  std::vector<double> first_before, first_after;    // ranges of weights, by channel
  std::vector<double> reader_before, reader_after;  // the same, of all readers together
};

struct Equalized {
  Graph graph;
  std::vector<EqualizedPair> pairs;  // in the order of the graph
};

[[nodiscard]] Equalized equalize(const Graph& graph);

}  // namespace tosaic::quant
