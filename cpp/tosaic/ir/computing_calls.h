// ComputingCalls: the FX calls of a graph that left a node other than dequantize.
//
//   %c.integers = quantize(%c)            loc(conv2d)   made by insert_quantization, with the origin of %c
//   %c.dequantize = dequantize(...)       loc(conv2d)   no call of its own
//   %x = dequantize(...)                  loc(dequantize_per_tensor)   a call of torch
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

class ComputingCalls {
 public:
  explicit ComputingCalls(const Graph& graph);

  // True if all of these leaves of an origin are such calls. A dequantize node for whose origin this holds is no
  // call of its own, and its origin is not that of the nodes that read it.
  [[nodiscard]] bool contain(const std::vector<OriginRef>& calls) const;

 private:
  std::unordered_set<std::string> names_;
};

}  // namespace tosaic
