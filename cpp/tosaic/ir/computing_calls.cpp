#include "tosaic/ir/computing_calls.h"

#include <algorithm>

namespace tosaic {

ComputingCalls::ComputingCalls(const Graph& graph) {
  for (const Node& node : graph.nodes())
    if (node.op != Op::kDequantize)
      for (const OriginRef& leaf : leaves(node.origin)) names_.insert(leaf->fx_name);
}

bool ComputingCalls::contain(const std::vector<OriginRef>& calls) const {
  return std::ranges::all_of(calls, [&](const OriginRef& leaf) { return names_.contains(leaf->fx_name); });
}

}  // namespace tosaic
