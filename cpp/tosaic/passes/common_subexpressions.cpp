// common-subexpressions: value numbering front to back.
//
//   %a = exp(%x)  %b = exp(%x)  %c = add(%a, %b)      ->      %a = exp(%x)  %c = add(%a, %a)
//
// Constants of at most 256 bytes are compared by content, larger ones by the memory they name (tied weights).
// Foreign nodes, nodes with regions and those that touch variables are never merged.

#include <cstring>
#include <string>
#include <unordered_map>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

constexpr std::size_t kMaxComparedBytes = 256;

void append(std::string& key, const void* data, std::size_t size) {
  key.append(static_cast<const char*>(data), size);
}

std::string constant_key(const Constant& constant) {
  std::string key = std::string(to_string(constant.dtype)) + to_string(constant.shape) + "|";
  if (!constant.storage.bound()) return key + "unbound " + constant.name;
  const std::span<const std::byte> bytes = constant.bytes();
  if (bytes.size() <= kMaxComparedBytes) {
    append(key, bytes.data(), bytes.size());
    return key;
  }
  const std::byte* first = bytes.data();
  key += "at";
  append(key, static_cast<const void*>(&first), sizeof first);
  return key;
}

std::string node_key(const Graph& graph, const Node& node, const std::vector<ValueId>& leader) {
  std::string key(1, '\0');
  append(key, &node.op, sizeof node.op);
  for (const ValueId operand : graph.operands(node)) {
    const std::uint32_t index = operand.valid() ? leader[operand.index()].index() : ~0u;
    append(key, &index, sizeof index);
  }
  key += to_string(*node.attrs);
  return key;
}

}  // namespace

std::optional<Graph> common_subexpressions(const Graph& graph) {
  std::unordered_map<std::string, ValueId> seen;
  std::vector<ValueId> leader(graph.values().size());
  for (std::uint32_t i = 0; i < leader.size(); ++i) {
    leader[i] = ValueId(i);
    const Value& value = graph.values()[i];
    if (value.kind != ValueKind::kConstant) continue;
    leader[i] = seen.try_emplace(constant_key(*value.constant), ValueId(i)).first->second;
    if (!(graph.type(leader[i]).order == value.type.order)) leader[i] = ValueId(i);
  }
  Rewriter rewriter(graph);
  bool merged_constants = false;
  for (std::uint32_t i = 0; i < leader.size(); ++i)
    merged_constants = merged_constants || leader[i] != ValueId(i);
  if (merged_constants) {
    rewriter.start();
    for (std::uint32_t i = 0; i < leader.size(); ++i)
      if (leader[i] != ValueId(i)) rewriter.bind(ValueId(i), rewriter.map(leader[i]));
  }
  for (const Node& node : graph.nodes()) {
    if (is_foreign(node.op) || !node.regions.empty() || node.result_count == 0 || touches_variables(node)) {
      rewriter.keep(node);
      continue;
    }
    const auto [it, fresh] = seen.try_emplace(node_key(graph, node, leader), graph.result(node));
    // The key says nothing of dim orders and qparams.
    if (fresh || !(graph.type(it->second) == graph.type(graph.result(node)))) {
      rewriter.keep(node);
      continue;
    }
    std::vector<ValueId> results;
    static_cast<void>(rewriter.out(node));
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId first(it->second.index() + r);
      leader[node.first_result + r] = first;
      results.push_back(rewriter.map(first));
    }
    rewriter.replace(node, results);
  }
  std::optional<Graph> out = std::move(rewriter).finish();
  if (!out) return out;
  std::optional<Graph> clean = dead_code(*out);
  return clean ? std::move(clean) : std::move(out);
}

}  // namespace tosaic::passes
