#include "tosaic/exec/compare/fx_nodes.h"

namespace tosaic::exec {

FxId FxNodes::add(const std::string& name) {
  const auto [it, fresh] = ids_.try_emplace(name, FxId(static_cast<std::uint32_t>(names_.size())));
  if (fresh) names_.push_back(name);
  return it->second;
}

FxId FxNodes::latest(const OriginRef& origin) const {
  FxId best;
  for (const OriginRef& leaf : leaves(origin)) {
    const auto it = ids_.find(leaf->fx_name);
    if (it == ids_.end() || (best.valid() && it->second.index() < best.index())) continue;
    best = it->second;
  }
  return best;
}

std::string FxNodes::label(const FxResult& result) const {
  const std::string& node = name(result.fx);
  return result.index == 0 ? node : node + "." + std::to_string(result.index);
}

NodesOfFx::NodesOfFx(const Graph& graph, const FxNodes& fx) : nodes_(fx.size()) {
  for (const Node& node : graph.nodes()) {
    const FxId id = fx.latest(node.origin);
    if (!id.valid()) continue;
    std::vector<const Node*>& nodes = nodes_[id.index()];
    // One FX node may become a quantize and the dequantize that reads it. Only the quantize is listed then:
    // the dequantize has the same value.
    const Node* rounded =
        node.op == Op::kDequantize && !nodes.empty() ? graph.producer(graph.operands(node)[0]) : nullptr;
    if (rounded == nullptr || rounded->op != Op::kQuantize || nodes.back() != rounded) nodes.push_back(&node);
  }
}

}  // namespace tosaic::exec
