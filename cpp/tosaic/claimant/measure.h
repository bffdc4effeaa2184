// measure: the numbers of a node that limits bound.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tosaic/claimant/limits.h"
#include "tosaic/ir/graph.h"

namespace tosaic::claimant {

struct NodeView {
  const Graph& graph;
  const Node& node;
  std::int64_t unit = 1;  // LimitRow::unit

  [[nodiscard]] std::span<const ValueId> operands() const { return graph.operands(node); }
  [[nodiscard]] const TensorType& input() const { return graph.type(operands()[0]); }
  [[nodiscard]] const TensorType& result() const { return graph.type(graph.result(node)); }
};

struct QuantityInfo {
  Quantity quantity;
  std::string_view name;  // "kernel-height"
  std::string_view what;  // "the height of the kernel"
  // For a quantity that is yes or no: the description of a node with this answer.
  std::string_view yes = {}, no = {};
  std::vector<std::int64_t> (*measure)(const NodeView&);
};
[[nodiscard]] const QuantityInfo& info(Quantity quantity);

[[nodiscard]] bool holds(When when, const NodeView& view);
// " with padding"; empty for kAlways.
[[nodiscard]] std::string_view text_of(When when);

}  // namespace tosaic::claimant
