#include "tosaic/claimant/verdicts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "tosaic/base/error_text.h"
#include "tosaic/claimant/trial.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/partition/float_regions.h"
#include "tosaic/pipeline/lower.h"
#include "tosaic/target/spec.h"

namespace tosaic::claimant {
namespace {

// The reasons against a node: those that no rule of the user can remove, and the limits of the device.
struct Findings {
  std::vector<Reason> hard, limits;
};

// The first operand or result that is a float between nodes; constants are part of the node.
ValueId float_border(const Graph& graph, const Node& node) {
  const auto is_float_value = [&](ValueId id) {
    return id.valid() && !graph.value(id).constant && is_float(graph.type(id).dtype);
  };
  for (const ValueId operand : graph.operands(node))
    if (is_float_value(operand)) return operand;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (is_float_value(graph.result(node, r))) return graph.result(node, r);
  return {};
}

Reason float_reason(const Graph& graph, const Node& node, ValueId value, const Claimant& claimant) {
  const bool moves = info(node.op).has(kMovement) || info(node.op).has(kView);
  return {"float",
          {.where = "claimant",
           .what = quoted(info(node.op).name) + (moves ? " moves" : " computes with") + " floats, and " +
                   claimant.name + " has integers only",
           .expected = "quantized operands and results",
           .got = to_string(graph.type(value)) + " in " + quoted(graph.value(value).name)}};
}

// The first operand or result whose integers represent numbers.
ValueId quantized_border(const Graph& graph, const Node& node) {
  for (const ValueId operand : graph.operands(node))
    if (operand.valid() && graph.type(operand).qparams) return operand;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (graph.type(graph.result(node, r)).qparams) return graph.result(node, r);
  return {};
}

Reason integer_reason(const Graph& graph, const Node& node, ValueId value, const Claimant& claimant) {
  return {
      "integer",
      {.where = "claimant",
       .what =
           quoted(info(node.op).name) + " is quantized, and " + claimant.name + " has no integer arithmetic",
       .expected = "floats",
       .got = std::string(to_string(graph.type(value).dtype)) + (" in " + quoted(graph.value(value).name))}};
}

bool is_at_boundary(const Graph& graph, const Node& node) {
  return graph.producer(graph.operands(node)[0]) == nullptr || graph.is_output(graph.result(node));
}

// Transposes at the inputs and outputs of a node alone change the dim order, unless the node itself moves
// elements. In a program, the layout plan decides where they are.
bool is_layout_change(const Graph& tosa, const Node& node, Op canonical) {
  if (node.op != Op::kTosaTranspose || info(canonical).has(kMovement) || info(canonical).has(kView))
    return false;
  return is_at_boundary(tosa, node);
}

class Judge {
 public:
  Judge(std::shared_ptr<const Graph> graph, const Claimant& claimant)
      : graph_(std::move(graph)),
        claimant_(claimant),
        pipeline_(pipeline::default_pipeline(claimant.lowers_to_tosa() ? target::parse_target(claimant.target)
                                                                       : target::TargetSpec{})) {}

  std::vector<Findings> all() {
    std::vector<Findings> out(graph_->nodes().size());
    // A program that lowers as a whole lowers in parts, too.
    const bool takes_stage =
        graph_->stage == Stage::kExported || pipeline_.target().has(target::Profile::kInt);
    lowers_ = claimant_.lowers_to_tosa() && !claimant_.limits && takes_stage &&
              trial_of(graph_, pipeline_).problems.empty();
    const std::vector<std::optional<Findings>> of_regions = regions();
    for (const Node& node : graph_->nodes()) {
      const std::size_t i = graph_->id(node).index();
      Findings found = of_regions[i] ? *of_regions[i] : of(node);
      for (std::vector<Reason>* reasons : {&found.hard, &found.limits})
        for (Reason& reason : *reasons) reason.parts = placed(std::move(reason.parts), node);
      out[i] = std::move(found);
    }
    return out;
  }

 private:
  ErrorParts placed(ErrorParts parts, const Node& node) const {
    parts.node = parts.module_path = parts.source = {};
    return located(std::move(parts), node.origin, graph_->node_name(node));
  }

  // By node: the findings of its region of floats (partition/float_regions.h), if that lowers as a whole.
  std::vector<std::optional<Findings>> regions() {
    std::vector<std::optional<Findings>> out(graph_->nodes().size());
    if (!claimant_.lowers_to_tosa() || !pipeline_.target().has(target::Profile::kInt)) return out;
    for (const std::vector<partition::DagNode>& region : partition::float_regions(*graph_)) {
      const std::vector<NodeId> nodes(region.begin(), region.end());
      if (std::ranges::any_of(nodes, [&](NodeId id) { return info(graph_->node(id).op).has(kEffect); }))
        continue;
      const std::shared_ptr<const Graph> part = alone(*graph_, nodes, graph_->stage);
      if (!pipeline_.target().has(target::Profile::kFp) && has_float_boundary(*part)) continue;
      Findings found;
      if (!lowers_) {
        found = judged(part, [](const Graph& tosa, const Node& each) {
          return each.op == Op::kTosaTranspose && is_at_boundary(tosa, each);
        });
        if (!found.hard.empty()) continue;
      }
      for (const NodeId id : nodes) out[id.index()] = found;
    }
    return out;
  }

  static bool has_float_boundary(const Graph& graph) {
    return std::ranges::any_of(graph.inputs(),
                               [&](const Input& each) { return is_float(graph.type(each.value).dtype); }) ||
           std::ranges::any_of(graph.outputs(),
                               [&](const Output& each) { return is_float(graph.type(each.value).dtype); });
  }

  Findings of(const Node& node) {
    if (!claimant_.lowers_to_tosa() && !claimant_.limits) return {};
    if (info(node.op).has(kEffect))
      return {{{"state",
                {.where = "claimant",
                 .what = quoted(info(node.op).name) +
                         " reads or assigns a variable, which only a whole program has"}}},
              {}};
    if (!claimant_.lowers_to_tosa()) {
      Findings found;
      judge(*graph_, node, *claimant_.limits, claimant_.name, found.limits);
      // A rule of the user cannot allow float operands for a kernel of integers.
      if (node.op != Op::kQuantize && node.op != Op::kDequantize && !lists_floats(*claimant_.limits, node.op))
        if (const ValueId value = float_border(*graph_, node); value.valid())
          found.hard.push_back(float_reason(*graph_, node, value, claimant_));
      return found;
    }
    if (!pipeline_.target().has(target::Profile::kFp))
      if (const ValueId value = float_border(*graph_, node); value.valid())
        return {{float_reason(*graph_, node, value, claimant_)}, {}};
    if (!pipeline_.target().has(target::Profile::kInt))
      if (const ValueId value = quantized_border(*graph_, node); value.valid())
        return {{integer_reason(*graph_, node, value, claimant_)}, {}};
    return lowers_ ? Findings{} : tried(node);
  }

  Findings tried(const Node& node) {
    const std::string key = trial_key(*graph_, node);
    if (const auto known = known_.find(key); !key.empty() && known != known_.end()) return known->second;
    const Stage stage = pipeline_.target().has(target::Profile::kInt) ? graph_->stage : Stage::kExported;
    const Findings found = judged(
        alone(*graph_, std::array{graph_->id(node)}, stage),
        [op = node.op](const Graph& tosa, const Node& each) { return is_layout_change(tosa, each, op); });
    if (!key.empty()) known_.emplace(key, found);
    return found;
  }

  // The reasons why a graph does not fit the target, and the limits that its operators of TOSA exceed.
  // Operators for which `is_exempt` is true have no limits.
  Findings judged(const std::shared_ptr<const Graph>& graph,
                  const std::function<bool(const Graph&, const Node&)>& is_exempt) const {
    Findings found;
    const pipeline::Trial trial = trial_of(graph, pipeline_);
    for (const ErrorParts& parts : trial.problems) found.hard.push_back({"lowering", parts});
    if (trial.tosa && claimant_.limits)
      for (const Node& each : trial.tosa->nodes())
        if (!is_exempt(*trial.tosa, each))
          judge(*trial.tosa, each, *claimant_.limits, claimant_.name, found.limits);
    drop_repeated(found.limits);
    return found;
  }

  // Reasons may be repeated, since an operator may become the same operator of TOSA several times.
  static void drop_repeated(std::vector<Reason>& reasons) {
    std::vector<Reason> kept;
    for (Reason& reason : reasons) {
      const auto is_same = [&](const Reason& other) {
        return other.rule == reason.rule && other.parts.what == reason.parts.what &&
               other.parts.expected == reason.parts.expected && other.parts.got == reason.parts.got;
      };
      if (std::ranges::none_of(kept, is_same)) kept.push_back(std::move(reason));
    }
    reasons = std::move(kept);
  }

  std::shared_ptr<const Graph> graph_;
  const Claimant& claimant_;
  pipeline::Pipeline pipeline_;
  bool lowers_ = false;
  std::unordered_map<std::string, Findings> known_;
};

Reason denied(const Graph& graph, const Node& node, const Rule& rule) {
  return {"deny", located({.where = "claimant",
                           .what = "rule " + to_string(rule) + " denies it" +
                                   (rule.text.empty() ? std::string() : ": " + rule.text)},
                          node.origin, graph.node_name(node))};
}

}  // namespace

std::vector<Verdict> verdicts(const std::shared_ptr<const Graph>& graph, const Claimant& claimant,
                              std::span<const Rule> rules, Unmatched unmatched) {
  if (graph->stage != Stage::kExported && graph->stage != Stage::kQuantized)
    throw InvalidGraph({.where = "claimant",
                        .what = "claimants judge programs before they are lowered",
                        .expected = "a graph at stage exported or quantized",
                        .got = "a graph at stage " + std::string(to_string(graph->stage))});
  const std::vector<const Rule*> deciding = deciding_rules(*graph, rules, unmatched);
  std::vector<Findings> findings = Judge(graph, claimant).all();
  std::vector<Verdict> out(findings.size());
  for (const Node& node : graph->nodes()) {
    const std::size_t i = graph->id(node).index();
    std::vector<Reason>& reasons = out[i].reasons = std::move(findings[i].hard);
    const Rule* const rule = deciding[i];
    if (rule == nullptr || !rule->allow) std::ranges::move(findings[i].limits, std::back_inserter(reasons));
    if (rule != nullptr && !rule->allow) reasons.push_back(denied(*graph, node, *rule));
  }
  return out;
}

}  // namespace tosaic::claimant
