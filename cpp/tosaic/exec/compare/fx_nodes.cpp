#include "tosaic/exec/compare/fx_nodes.h"

#include <algorithm>
#include <utility>

#include "tosaic/exec/compare/numbers.h"

namespace tosaic::exec {
namespace {

bool rounds(Op op) { return op == Op::kQuantize || op == Op::kDequantize; }

// True if the operator only rearranges, copies, rounds or dequantizes the numbers of its operands.
bool carries(Op op) { return moves_elements(op) || op == Op::kClone || rounds(op); }

}  // namespace

FxId FxNodes::add(const std::string& name) {
  const auto [it, fresh] = ids_.try_emplace(name, FxId(static_cast<std::uint32_t>(names_.size())));
  if (fresh) names_.push_back(name);
  return it->second;
}

void FxNodes::add_origins_of(const Graph& a, const Graph& b) {
  // A node that rounds counts only if its FX node does not compute: it may come long before its reader.
  std::set<std::string_view> computing;
  for (const Node& node : a.nodes())
    for (const OriginRef& leaf : leaves(node.origin))
      if (!rounds(node.op)) computing.insert(leaf->fx_name);
  for (const Node& node : a.nodes())
    for (const OriginRef& leaf : leaves(node.origin))
      if (!is_left_out(leaf->fx_name) && (!rounds(node.op) || !computing.contains(leaf->fx_name)))
        add(leaf->fx_name);
  common_.assign(names_.size(), false);
  for (const Node& node : b.nodes())
    for (const OriginRef& leaf : leaves(node.origin))
      if (const auto it = ids_.find(leaf->fx_name); it != ids_.end()) common_[it->second.index()] = true;
}

FxId FxNodes::latest(const OriginRef& origin) const {
  FxId best;
  const auto rank = [this](FxId id) {
    return std::pair(id.index() < common_.size() && common_[id.index()], id.index());
  };
  for (const OriginRef& leaf : leaves(origin)) {
    const auto it = ids_.find(leaf->fx_name);
    if (it == ids_.end() || (best.valid() && rank(it->second) < rank(best))) continue;
    best = it->second;
  }
  return best;
}

std::string FxNodes::label(const FxResult& result) const {
  const std::string& node = name(result.fx);
  return result.index == 0 ? node : node + "." + std::to_string(result.index);
}

NodesOfFx::NodesOfFx(const Graph& graph, const FxNodes& fx, const std::map<FxId, FxId>& moved)
    : nodes_(fx.size()) {
  find_owners(graph, fx, moved);
  for (const Node& node : graph.nodes()) {
    const FxId id = owner(node);
    if (!id.valid() || unrounded_.contains(&node)) continue;
    std::vector<const Node*>& nodes = nodes_[id.index()];
    // One FX node may become a quantize and the dequantize that reads it. Only the quantize is listed then:
    // the dequantize has the same value.
    const Node* rounded =
        node.op == Op::kDequantize && !nodes.empty() ? graph.producer(graph.operands(node)[0]) : nullptr;
    if (rounded == nullptr || rounded->op != Op::kQuantize || nodes.back() != rounded) nodes.push_back(&node);
  }
  drop_carried(graph, fx);
  drop_roundings_of_readers(graph, fx);
}

void NodesOfFx::find_owners(const Graph& graph, const FxNodes& fx, const std::map<FxId, FxId>& moved) {
  for (const Node& node : graph.nodes()) {
    FxId id = fx.latest(node.origin);
    const bool quantizes =
        !id.valid() && std::ranges::any_of(leaves(node.origin), [&](const OriginRef& leaf) {
          return fx.is_left_out(leaf->fx_name);
        });
    for (const ValueId operand : graph.operands(node)) {
      const Node* producer = operand.valid() && quantizes ? graph.producer(operand) : nullptr;
      if (producer == nullptr) continue;
      id = owner(*producer);
      break;
    }
    if (const auto to = moved.find(id); id.valid() && to != moved.end()) id = to->second;
    owners_.emplace(&node, id);
    const bool floats = node.result_count != 0 && is_float(graph.type(graph.result(node)).dtype);
    if (quantizes && floats) unrounded_.insert(&node);
  }
}

std::vector<const Node*> NodesOfFx::computing(const Graph& graph, const std::vector<const Node*>& nodes,
                                              bool (*is_carrier)(Op), std::string_view name) {
  std::vector<const Node*> own;
  std::set<ValueId> computed;
  for (const Node* node : nodes) {
    const auto operands = graph.operands(*node);
    const bool is_named = node->result_count != 0 && graph.value(graph.result(*node)).name == name;
    const bool counts = is_named || !is_carrier(node->op) || std::ranges::any_of(operands, [&](ValueId id) {
                          return id.valid() && computed.contains(id);
                        });
    if (!counts) continue;
    own.push_back(node);
    for (std::uint32_t r = 0; r < node->result_count; ++r) computed.insert(graph.result(*node, r));
  }
  return own;
}

void NodesOfFx::drop_carried(const Graph& graph, const FxNodes& fx) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    std::vector<const Node*>& nodes = nodes_[i];
    std::vector<const Node*> own = computing(graph, nodes, carries);
    const std::string& name = fx.name(FxId(static_cast<std::uint32_t>(i)));
    if (own.empty())  // the FX node only moves numbers
      own = computing(graph, nodes, rounds);
    else if (own.back() < nodes.back() && nodes.back()->result_count != 0 &&
             graph.value(graph.result(*nodes.back())).name == name)
      own = computing(graph, nodes, carries, name);  // it computes an index and moves numbers by it
    if (!own.empty()) nodes = std::move(own);
  }
}

// A result of integers that has the name of the FX node is final. What follows rounds it again for a reader.
void NodesOfFx::drop_roundings_of_readers(const Graph& graph, const FxNodes& fx) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    std::vector<const Node*>& nodes = nodes_[i];
    const std::string& name = fx.name(FxId(static_cast<std::uint32_t>(i)));
    const auto named = std::ranges::find_if(nodes, [&](const Node* node) {
      if (node->result_count != 1) return false;
      const ValueId result = graph.result(*node);
      return graph.value(result).name == name && is_integer(graph.type(result).dtype);
    });
    if (named == nodes.end()) continue;
    const bool only_round = std::all_of(named + 1, nodes.end(), [](const Node* node) {
      return node->op == Op::kTosaRescale || node->op == Op::kRescale;
    });
    if (only_round) nodes.erase(named + 1, nodes.end());
  }
}

}  // namespace tosaic::exec
