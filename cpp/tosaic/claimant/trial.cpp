#include "tosaic/claimant/trial.h"

#include <cstdint>
#include <map>
#include <utility>

#include "tosaic/pipeline/lower.h"

namespace tosaic::claimant {
namespace {

TensorType plain(TensorType type) {
  type.order = {};
  return type;
}

void append(std::string& key, const std::string& text) { key.append(text).append("|"); }

}  // namespace

std::shared_ptr<const Graph> alone(const Graph& graph, const Node& node, Stage stage) {
  auto out = std::make_shared<Graph>();
  out->name = graph.name;
  out->stage = stage;
  std::map<ValueId, ValueId> made;
  std::vector<ValueId> operands;
  for (const ValueId operand : graph.operands(node)) {
    const auto [at, is_new] = made.try_emplace(operand);
    if (is_new && operand.valid()) {
      const Value& value = graph.value(operand);
      if (value.constant) {
        at->second = out->add_constant(value.constant);
        out->set_qparams(at->second, value.type.qparams);
      } else {
        at->second = out->add_input(InputKind::kUser, value.name, plain(value.type), value.name);
      }
    }
    operands.push_back(at->second);
  }
  const NodeId copy = out->add_copy(graph, node, operands);
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = out->result(out->node(copy), r);
    out->set_order(result, {});
    Output output;
    output.value = result;
    output.path = out->value(result).name;
    out->add_output(std::move(output));
  }
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

Trial try_to_lower(const std::shared_ptr<const Graph>& graph, const pipeline::Pipeline& pipeline) {
  Trial trial;
  pipeline::LowerOptions options;
  options.verify_each = false;
  options.on_change = [&trial](const pipeline::Step&, const Graph& changed) {
    if (changed.stage == Stage::kTosa) trial.tosa = std::make_shared<const Graph>(changed);
  };
  trial.problems = pipeline::problems(graph, pipeline, options);
  if (!trial.problems.empty()) trial.tosa = nullptr;
  return trial;
}

}  // namespace tosaic::claimant
