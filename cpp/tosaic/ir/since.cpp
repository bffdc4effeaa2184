#include "tosaic/ir/since.h"

#include <algorithm>

namespace tosaic {
namespace {

bool has_dtype(const Graph& graph, const Node& node, DType dtype) {
  const auto is = [&](ValueId id) { return id.valid() && graph.type(id).dtype == dtype; };
  for (const ValueId operand : graph.operands(node))
    if (is(operand)) return true;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (is(graph.result(node, r))) return true;
  return false;
}

}  // namespace

std::string to_string(TosaVersion version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

std::span<const SinceRow> newer_than_1_0() { return {}; }

TosaVersion since(const Graph& graph, const Node& node, std::span<const SinceRow> newer) {
  TosaVersion found;
  for (const SinceRow& row : newer)
    if ((!row.op || *row.op == node.op) && (!row.dtype || has_dtype(graph, node, *row.dtype)))
      found = std::max(found, row.version);
  return found;
}

TosaVersion least_version(const Graph& graph, std::span<const SinceRow> newer) {
  TosaVersion found;
  for (const SinceRow& row : newer)
    for (const Value& value : graph.values())
      if (!row.op && row.dtype == value.type.dtype) found = std::max(found, row.version);
  for (const Node& node : graph.nodes()) {
    found = std::max(found, since(graph, node, newer));
    for (const auto& region : node.regions) found = std::max(found, least_version(*region, newer));
  }
  return found;
}

}  // namespace tosaic
