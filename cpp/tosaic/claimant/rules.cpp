#include "tosaic/claimant/rules.h"

#include <algorithm>
#include <string_view>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"
#include "tosaic/ir/computing_calls.h"

namespace tosaic::claimant {
namespace {

constexpr std::string_view kMatchNames[] = {"name", "where", "module", "op"};

std::string_view op_name(const Node& node) {
  return node.op == Op::kOpaque ? std::string_view(Graph::attrs<OpaqueAttrs>(node).target)
                                : info(node.op).name;
}

// The FX calls by which rules match a node. A dequantize node that insert_quantization put in front of its
// readers has none: its origin names the node whose result it dequantizes, but it belongs to the group of its
// readers.
using Calls = std::vector<OriginRef>;

Calls calls_of(const Graph& graph, const Node& node, const ComputingCalls& computing) {
  Calls found = leaves(node.origin);
  if (node.op == Op::kDequantize && !graph.users(graph.result(node)).empty() && computing.contain(found))
    found.clear();
  return found;
}

bool matches_name(const Graph& graph, const Node& node, const Calls& calls, const std::string& name) {
  if (graph.node_name(node) == name) return true;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (graph.value(graph.result(node, r)).name == name) return true;
  return std::ranges::any_of(calls, [&](const OriginRef& leaf) { return leaf->fx_name == name; });
}

bool is_inside(std::string_view module, std::string_view prefix) {
  return module.starts_with(prefix) && (module.size() == prefix.size() || module[prefix.size()] == '.');
}

bool matches(const Graph& graph, const Node& node, const Calls& calls, const Rule& rule) {
  switch (rule.match) {
    case Match::kName:
      return matches_name(graph, node, calls, rule.value);
    case Match::kPredicate:
      return rule.predicate(graph, node);
    case Match::kModule:
      return std::ranges::any_of(
          calls, [&](const OriginRef& leaf) { return is_inside(leaf->module_path, rule.value); });
    case Match::kOp:
      return op_name(node) == rule.value;
  }
  return false;
}

std::vector<KnownName> known_names(const Graph& graph, const Rule& rule) {
  std::vector<KnownName> known;
  for (const Node& node : graph.nodes()) {
    if (rule.match == Match::kName) known.push_back({graph.node_name(node)});
    if (rule.match == Match::kOp && node.op == Op::kOpaque) known.push_back({std::string(op_name(node))});
    if (rule.match != Match::kModule) continue;
    for (const OriginRef& leaf : leaves(node.origin)) known.push_back({leaf->module_path});
  }
  if (rule.match == Match::kOp)
    for (const OpInfo& row : all_ops())
      if (!row.is_tosa) known.push_back({std::string(row.name)});
  std::ranges::sort(known, {}, &KnownName::name);
  const auto repeated = std::ranges::unique(known, {}, &KnownName::name);
  known.erase(repeated.begin(), repeated.end());
  return known;
}

// Predicates are not called for nodes of regions, so any predicate may be meant for one of them.
bool matches_in_regions(const Graph& graph, const Rule& rule) {
  return std::ranges::any_of(graph.nodes(), [&](const Node& node) {
    return std::ranges::any_of(node.regions, [&](const std::shared_ptr<const Graph>& region) {
      if (rule.match == Match::kPredicate) return true;
      return matches_in_regions(*region, rule) ||
             std::ranges::any_of(region->nodes(), [&](const Node& inner) {
               return matches(*region, inner, leaves(inner.origin), rule);
             });
    });
  });
}

[[noreturn]] void refuse_without_match(const Graph& graph, const Rule& rule) {
  const std::vector<KnownName> known = known_names(graph, rule);
  const bool is_operator = std::ranges::find(known, rule.value, &KnownName::name) != known.end();
  if (rule.match == Match::kOp && !is_operator)
    throw InvalidGraph({.where = "claimant",
                        .what = "no operator has the name of rule " + to_string(rule),
                        .expected = "the name of an operator, such as 'conv'",
                        .got = quoted(rule.value),
                        .hint = did_you_mean(rule.value, known)});
  throw InvalidGraph({.where = "claimant",
                      .what = "rule " + to_string(rule) + " matches no node",
                      .expected = "a rule that matches a node of graph " + quoted(graph.name),
                      .hint = rule.match == Match::kPredicate || rule.match == Match::kOp
                                  ? std::string()
                                  : did_you_mean(rule.value, known)});
}

[[noreturn]] void refuse_contradiction(const Graph& graph, const Node& node, const Rule& a, const Rule& b) {
  throw InvalidGraph(
      located({.where = "claimant",
               .what = "rules " + to_string(a) + " and " + to_string(b) + " contradict each other",
               .expected = "rules of one kind that agree on a node",
               .got = "one that allows it and one that denies it",
               .hint = "A rule by name decides before one by module, and that before one by operator"},
              node.origin, graph.node_name(node)));
}

}  // namespace

std::string to_string(const Rule& rule) {
  const std::string value = rule.match == Match::kPredicate ? rule.value : quoted(rule.value);
  return (rule.allow ? "allow(" : "deny(") + std::string(kMatchNames[static_cast<std::size_t>(rule.match)]) +
         "=" + value + ")";
}

std::vector<const Rule*> deciding_rules(const Graph& graph, std::span<const Rule> rules,
                                        Unmatched unmatched) {
  std::vector<const Rule*> deciding(graph.nodes().size(), nullptr);
  if (rules.empty()) return deciding;
  const ComputingCalls computing(graph);
  std::vector<Calls> calls;
  for (const Node& node : graph.nodes()) calls.push_back(calls_of(graph, node, computing));
  for (const Rule& rule : rules) {
    bool used = false;
    for (const Node& node : graph.nodes()) {
      if (!matches(graph, node, calls[graph.id(node).index()], rule)) continue;
      used = true;
      const Rule*& now = deciding[graph.id(node).index()];
      if (now != nullptr && now->match == rule.match && now->allow != rule.allow)
        refuse_contradiction(graph, node, *now, rule);
      if (now == nullptr || rule.match < now->match) now = &rule;
    }
    if (!used && unmatched == Unmatched::kRefused && !matches_in_regions(graph, rule))
      refuse_without_match(graph, rule);
  }
  return deciding;
}

}  // namespace tosaic::claimant
