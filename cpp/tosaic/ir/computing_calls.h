// ComputingCalls: the names of the FX calls from which at least one node was made that is not a dequantize
// node. These names distinguish dequantize nodes of insert_quantization from dequantize calls of torch:
//
//   %c = conv(...)                    loc(conv2d)
//   %c.quantize = quantize(%c)        loc(conv2d)                  inserted, with the origin of %c
//   %c.dequantize = dequantize(...)   loc(conv2d)                  inserted, with the origin of %c
//   %x = dequantize(...)              loc(dequantize_per_tensor)   a call of torch
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

class ComputingCalls {
 public:
  explicit ComputingCalls(const Graph& graph);

  // True if all leaves of an origin are in the set. A dequantize node with such an origin was inserted: its
  // origin names the node whose result it dequantizes, and says nothing about the nodes that read it.
  [[nodiscard]] bool contain(const std::vector<OriginRef>& calls) const;

 private:
  std::unordered_set<std::string> names_;
};

}  // namespace tosaic
