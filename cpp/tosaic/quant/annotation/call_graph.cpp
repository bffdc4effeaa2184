#include "tosaic/quant/annotation/call_graph.h"

#include <algorithm>
#include <array>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"

namespace tosaic::quant {
namespace {

constexpr std::array<std::string_view, 4> kKinds = {"placeholder", "get_attr", "call", "output"};

constexpr const char* kWhere = "CallGraph";

InvalidGraph refusal(const std::string& what, const CallNode* node, const std::string& expected = {},
                     const std::string& got = {}) {
  return InvalidGraph({.where = kWhere,
                       .what = what,
                       .expected = expected,
                       .got = got,
                       .node = node == nullptr ? "" : node->name,
                       .source = node == nullptr ? "" : node->source});
}

// The users of each node, in the order of the graph.
std::vector<std::vector<NodeIndex>> users_of(const std::vector<CallNode>& nodes) {
  std::vector<std::vector<NodeIndex>> users(nodes.size());
  for (std::uint32_t n = 0; n < nodes.size(); ++n) {
    for (const CallOperand& operand : nodes[n].operands) {
      if (!operand.producer.valid() || operand.producer.index() >= n)
        throw refusal("operand " + operand.path + " has no producer in front of its user", &nodes[n]);
      std::vector<NodeIndex>& known = users[operand.producer.index()];
      if (known.empty() || known.back().index() != n) known.emplace_back(n);
    }
  }
  return users;
}

void set_users(std::vector<CallNode>& nodes) {
  std::vector<std::vector<NodeIndex>> users = users_of(nodes);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].users.empty()) {
      nodes[n].users = std::move(users[n]);
    } else {
      std::vector<NodeIndex> sorted = nodes[n].users;
      std::sort(sorted.begin(), sorted.end());
      if (sorted != users[n])
        throw refusal("the users of the node are not the nodes that read it", &nodes[n],
                      std::to_string(users[n].size()) + " users", std::to_string(sorted.size()) + " users");
    }
  }
}

void check_ports(const std::vector<CallNode>& nodes, const std::vector<GraphPort>& inputs,
                 const std::vector<GraphPort>& outputs) {
  for (const GraphPort& port : inputs)
    if (!port.node.valid() || port.node.index() >= nodes.size() ||
        nodes[port.node.index()].kind != CallKind::kPlaceholder)
      throw refusal("input '" + port.path + "' is no placeholder", nullptr);
  for (const GraphPort& port : outputs)
    if (port.node.valid() && port.node.index() >= nodes.size())
      throw refusal("output '" + port.path + "' is no node of the graph", nullptr);
}

}  // namespace

std::string_view to_string(CallKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::optional<CallKind> parse_call_kind(std::string_view text) {
  const auto found = std::find(kKinds.begin(), kKinds.end(), text);
  if (found == kKinds.end()) return std::nullopt;
  return static_cast<CallKind>(found - kKinds.begin());
}

CallGraph::CallGraph(std::vector<CallNode> nodes, std::vector<GraphPort> inputs,
                     std::vector<GraphPort> outputs)
    : nodes_(std::move(nodes)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
  set_users(nodes_);
  check_ports(nodes_, inputs_, outputs_);
  by_name_.reserve(nodes_.size());
  for (std::uint32_t n = 0; n < nodes_.size(); ++n)
    if (!by_name_.emplace(nodes_[n].name, NodeIndex(n)).second)
      throw refusal("two nodes have the same name", &nodes_[n]);
  for (std::uint32_t n = 0; n < nodes_.size(); ++n)
    for (const std::string& alias : nodes_[n].aliases) by_name_.emplace(alias, NodeIndex(n));
}

NodeIndex CallGraph::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? NodeIndex() : found->second;
}

NodeIndex CallGraph::at(std::string_view name, const std::string& where) const {
  const NodeIndex found = find(name);
  if (found.valid()) return found;
  std::vector<KnownName> known;
  known.reserve(nodes_.size());
  for (const CallNode& node : nodes_) known.push_back({node.name});
  throw InvalidGraph({.where = where,
                      .what = "the graph has no node " + quoted(name),
                      .expected = {},
                      .got = {},
                      .hint = did_you_mean(name, known)});
}

bool CallGraph::contains(Slot slot) const {
  if (slot.node.index() >= nodes_.size()) return false;
  if (!slot.is_edge()) return true;
  const std::vector<CallOperand>& operands = node(slot.node).operands;
  return std::any_of(operands.begin(), operands.end(),
                     [&](const CallOperand& operand) { return operand.producer == slot.producer; });
}

bool CallGraph::may_be_float(NodeIndex index) const {
  const std::string& dtype = node(index).dtype;
  return dtype.empty() || dtype.front() == 'f' || dtype.starts_with("bf");
}

std::string CallGraph::text(Slot slot) const {
  const std::string& name = node(slot.node).name;
  return slot.is_edge() ? node(slot.producer).name + " -> " + name : name;
}

std::string_view short_target(std::string_view target) {
  const std::size_t first = target.find('.');
  if (first == std::string_view::npos) return target;
  const std::size_t last = target.rfind('.');
  return last == first ? target.substr(first + 1) : target.substr(first + 1, last - first - 1);
}

}  // namespace tosaic::quant
