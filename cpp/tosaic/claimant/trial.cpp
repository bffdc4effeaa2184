#include "tosaic/claimant/trial.h"

#include <cstdint>
#include <map>
#include <utility>

#include "tosaic/partition/split.h"

namespace tosaic::claimant {
namespace {

TensorType plain(TensorType type) {
  type.order = {};
  return type;
}

void append(std::string& key, const std::string& text) { key.append(text).append("|"); }

}  // namespace

std::shared_ptr<const Graph> alone(const Graph& graph, std::span<const NodeId> nodes, Stage stage) {
  auto out =
      std::make_shared<Graph>(std::move(partition::part_of(graph, nodes, partition::Unread::kOutput).graph));
  out->stage = stage;
  for (const Node& node : out->nodes())
    for (std::uint32_t r = 0; r < node.result_count; ++r) out->set_order(out->result(node, r), {});
  return out;
}

std::string trial_key(const Graph& graph, const Node& node) {
  if (!node.regions.empty() || node.op == Op::kOpaque) return {};
  std::string key;
  append(key, std::string(info(node.op).name));
  append(key, to_string(*node.attrs));
  std::map<ValueId, std::size_t> places;
  for (const ValueId operand : graph.operands(node)) {
    if (!operand.valid()) {
      append(key, "none");
      continue;
    }
    const Value& value = graph.value(operand);
    append(key, std::to_string(places.try_emplace(operand, places.size()).first->second));
    append(key, to_string(plain(value.type)));
    // Constants with other elements may lower otherwise: indices, divisors, sums of weights.
    append(key, std::to_string(reinterpret_cast<std::uintptr_t>(value.constant.get())));
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    append(key, to_string(plain(graph.type(graph.result(node, r)))));
  return key;
}

pipeline::Trial trial_of(const std::shared_ptr<const Graph>& graph, const pipeline::Pipeline& pipeline) {
  pipeline::LowerOptions options;
  options.verify_each = false;
  return pipeline::try_to_lower(graph, pipeline, options);
}

}  // namespace tosaic::claimant
