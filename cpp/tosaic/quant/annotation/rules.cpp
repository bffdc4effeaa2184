#include "tosaic/quant/annotation/rules.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "tosaic/base/error.h"
#include "tosaic/base/error_text.h"
#include "tosaic/base/near_names.h"
#include "tosaic/quant/annotation/assign.h"

namespace tosaic::quant {
namespace {

std::string text_of(const PortKey& key) {
  if (const auto* const name = std::get_if<std::string>(&key)) return quoted(*name);
  return std::to_string(std::get<std::int64_t>(key));
}

// What a rule works with.
struct Work {
  AnnotationPlan& plan;
  RuleId id;
  bool allow_unmatched;
  std::vector<Assignment> assignments = {};
  std::vector<FloatOutput> floats = {};
  std::vector<Slot> withdrawn = {};

  [[nodiscard]] const CallGraph& graph() const { return plan.graph(); }
  // "Inputs" of "Inputs({0: Observed()})".
  [[nodiscard]] std::string name() const {
    const std::string& name = plan.rule(id).name;
    return name.substr(0, name.find('('));
  }
  [[nodiscard]] InvalidGraph refusal(std::string what, std::string hint = {}, NodeIndex node = {}) const {
    ErrorParts parts{.where = name(), .what = std::move(what), .expected = {}, .got = {}};
    if (node.valid()) {
      parts.node = graph().node(node).name;
      parts.source = graph().node(node).source;
    }
    parts.hint = std::move(hint);
    return InvalidGraph(parts);
  }
  void note(std::string text) const { plan.rule(id).notes.push_back(std::move(text)); }

  // Makes the collected changes, floats first.
  void finish() {
    if (!floats.empty()) withdraw_outputs(plan, floats, id);
    if (!withdrawn.empty()) withdraw(plan, withdrawn, Withdrawal::kFloat, id);
    settle_overlaps();
    if (!assignments.empty()) assign(plan, assignments, id);
  }

  // The rule names the first slot of an assignment; the others are slots of the same tensor. Removes a slot
  // if the rule gives it another spec elsewhere, or made it float.
  void settle_overlaps() {
    std::unordered_map<Slot, const QSpec*> asked;
    for (const Assignment& each : assignments) asked.emplace(each.slots.front(), &each.spec);
    for (Assignment& each : assignments) {
      const auto is_settled = [&](Slot slot) {
        const auto found = asked.find(slot);
        if (found != asked.end()) return *found->second != each.spec;
        const PlanEntry* const entry = plan.find(slot);
        return entry != nullptr && is_float(entry->spec) && entry->rule == id;
      };
      std::erase_if(each.slots, is_settled);
    }
    std::erase_if(assignments, [](const Assignment& each) { return each.slots.empty(); });
  }
};

// The positions of the ports that have this position, path or node name. Throws if there are none.
std::vector<std::size_t> find_ports(const Work& work, const std::vector<GraphPort>& ports, const PortKey& key,
                                    const char* kind) {
  std::vector<std::size_t> found;
  std::vector<KnownName> known;
  if (const auto* const position = std::get_if<std::int64_t>(&key)) {
    if (*position >= 0 && *position < static_cast<std::int64_t>(ports.size()))
      found.push_back(static_cast<std::size_t>(*position));
  } else {
    const std::string& name = std::get<std::string>(key);
    for (std::size_t p = 0; p < ports.size(); ++p) {
      const std::string node = ports[p].node.valid() ? work.graph().node(ports[p].node).name : "";
      if (ports[p].path == name || node == name) found.push_back(p);
      known.push_back({ports[p].path});
      if (!node.empty() && node != ports[p].path) known.push_back({node});
    }
  }
  if (found.empty() && !work.allow_unmatched) {
    const bool named = std::holds_alternative<std::string>(key);
    throw InvalidGraph({.where = work.name(),
                        .what = "unknown " + std::string(kind),
                        .expected = "a position below " + std::to_string(ports.size()) + ", a path or a name",
                        .got = text_of(key),
                        .hint = named ? did_you_mean(std::get<std::string>(key), known) : ""});
  }
  return found;
}

// The nodes of the ports to which the keys refer, with their specs. Each node is returned once.
std::vector<std::pair<NodeIndex, QSpec>> find_nodes(Work& work, const std::vector<GraphPort>& ports,
                                                    const PortSpecs& specs, const char* kind,
                                                    std::size_t& matches) {
  std::vector<std::pair<NodeIndex, QSpec>> out;
  for (const auto& [key, spec] : specs) {
    for (const std::size_t p : find_ports(work, ports, key, kind)) {
      ++matches;
      const NodeIndex node = ports[p].node;
      const std::string port =
          std::string(kind) + " " + std::to_string(p) + ", " + quoted(ports[p].path) + ",";
      if (!node.valid() || !work.graph().may_be_float(node)) {
        if (is_float(spec)) continue;
        const std::string dtype = node.valid() ? " of dtype " + work.graph().node(node).dtype : "";
        throw work.refusal(port + " is no tensor of floats" + (dtype.empty() ? "" : ", but" + dtype),
                           "Leave it out, or ask for None", node);
      }
      const auto known =
          std::find_if(out.begin(), out.end(), [&](const auto& each) { return each.first == node; });
      if (known == out.end())
        out.emplace_back(node, spec);
      else if (known->second != spec)
        throw work.refusal(
            port + " has two specs",
            "It is one tensor with another " + std::string(kind) + " of the rule, or two keys mean it", node);
    }
  }
  return out;
}

struct Apply {
  Work& work;

  std::size_t operator()(const InputsRule& rule) const {
    std::size_t matches = 0;
    for (const auto& [node, spec] : find_nodes(work, work.graph().inputs(), rule.specs, "input", matches)) {
      std::vector<Slot> slots = tensor_slots(work.plan, node);
      if (is_float(spec))
        work.withdrawn.insert(work.withdrawn.end(), slots.begin(), slots.end());
      else
        work.assignments.push_back({std::move(slots), spec});
    }
    return matches;
  }

  std::size_t operator()(const OutputsRule& rule) const {
    std::size_t matches = 0;
    const auto last = static_cast<std::uint32_t>(work.graph().size() - 1);
    const NodeIndex end =
        !work.graph().nodes().empty() && work.graph().nodes()[last].kind == CallKind::kOutput
            ? NodeIndex(last)
            : NodeIndex();
    for (const auto& [node, spec] : find_nodes(work, work.graph().outputs(), rule.specs, "output", matches)) {
      if (is_float(spec))
        work.floats.push_back({node, end});
      else
        work.assignments.push_back({tensor_slots(work.plan, node), spec});
    }
    return matches;
  }

  std::size_t operator()(const AroundRule& rule) const {
    std::size_t matches = 0;
    std::vector<bool> used(rule.operands.size());
    const std::vector<NodeIndex> nodes = select_some(rule.where);
    for (const NodeIndex node : nodes) {
      matches += add_operands(rule, node, used);
      if (!rule.result || !work.graph().may_be_float(node)) continue;
      ++matches;
      if (is_float(*rule.result))
        work.floats.push_back({node});
      else
        work.assignments.push_back({tensor_slots(work.plan, node), *rule.result});
    }
    for (std::size_t i = 0; i < used.size(); ++i)
      if (!used[i] && !nodes.empty() && !work.allow_unmatched) refuse_operand(nodes, rule.operands[i].first);
    if (matches == 0 && !nodes.empty() && !work.allow_unmatched)
      throw work.refusal("no selected node has a float operand or result that the rule is about", "",
                         nodes.front());
    return matches;
  }

  std::size_t operator()(const ExcludeFeedingRule& rule) const {
    const std::vector<NodeIndex> nodes = select_some(rule.where);
    const std::vector<bool> stops = rule.until ? marked(select(work.graph(), *rule.until)) : marked({});
    if (rule.until && !work.allow_unmatched && std::find(stops.begin(), stops.end(), true) == stops.end())
      throw work.refusal("`until` selects no node: " + explain_empty(work.graph(), *rule.until));
    bool has_operand = false;
    const std::vector<NodeIndex> excluded = find_feeding(rule, marked(nodes), stops, has_operand);
    if (!has_operand && !nodes.empty() && !work.allow_unmatched) refuse_operand(nodes, rule.operand);
    if (excluded.empty() && !nodes.empty() && !work.allow_unmatched)
      throw work.refusal("nothing feeds operand " + text_of(rule.operand) + " of " +
                             quoted(work.graph().node(nodes.front()).name) + " only",
                         "Its producer also feeds other nodes, or `until` selects it", nodes.front());
    // The selected operators quantize these tensors at their own edges.
    for (const NodeIndex node : excluded)
      if (feeds_marked(node, nodes)) quantize_at_edges(work.plan, {node}, work.id);
    clear(excluded);
    return excluded.size();
  }

  std::size_t operator()(const ClearRule& rule) const {
    const std::vector<NodeIndex> nodes = select_some(rule.where);
    clear(nodes);
    return nodes.size();
  }

  std::size_t operator()(const ShareRule& rule) const {
    if (rule.slots.empty()) return 0;
    for (const Slot slot : rule.slots)
      if (!work.graph().contains(slot))
        throw work.refusal("the graph has no slot " + quoted(work.graph().text(slot)), "", slot.node);
    const PlanEntry* entry = work.plan.find(rule.slots.front());
    for (std::size_t steps = 0; entry != nullptr && is_shared(entry->spec) && steps <= work.plan.size();
         ++steps)
      entry = work.plan.find(std::get<SharedSpec>(entry->spec).with);
    if (entry == nullptr || is_shared(entry->spec) || is_float(entry->spec))
      throw work.refusal(
          "the first slot, " + quoted(work.graph().text(rule.slots.front())) + ", has no spec to share", "",
          rule.slots.front().node);
    if (std::holds_alternative<DerivedSpec>(entry->spec))
      throw work.refusal("the first slot, " + quoted(work.graph().text(rule.slots.front())) +
                             ", has a derived spec, which cannot be shared",
                         "", rule.slots.front().node);
    work.assignments.push_back({.slots = rule.slots, .spec = entry->spec, .names_slots = true});
    return rule.slots.size();
  }

 private:
  [[nodiscard]] std::vector<NodeIndex> select_some(const Selection& where) const {
    std::vector<NodeIndex> nodes = select(work.graph(), where);
    if (nodes.empty() && !work.allow_unmatched) throw work.refusal(explain_empty(work.graph(), where));
    return nodes;
  }

  [[nodiscard]] std::vector<bool> marked(const std::vector<NodeIndex>& nodes) const {
    std::vector<bool> marks(work.graph().size());
    for (const NodeIndex node : nodes) marks[node.index()] = true;
    return marks;
  }

  [[nodiscard]] static bool is_operand(const CallOperand& operand, const PortKey& key) {
    if (const auto* const name = std::get_if<std::string>(&key))
      return operand.name == *name || operand.path == *name;
    const std::string path = "args[" + std::to_string(std::get<std::int64_t>(key)) + "]";
    return operand.path == path || operand.path.starts_with(path + "[");
  }

  // Adds the changes of a node's operands. Returns how many operands there are.
  std::size_t add_operands(const AroundRule& rule, NodeIndex node, std::vector<bool>& used) const {
    std::size_t matches = 0;
    std::map<NodeIndex, std::pair<QSpec, std::string>> specs;  // one spec for the edge from each producer
    for (const CallOperand& operand : work.graph().node(node).operands) {
      for (std::size_t i = 0; i < rule.operands.size(); ++i) {
        const auto& [key, spec] = rule.operands[i];
        if (!is_operand(operand, key)) continue;
        used[i] = true;
        if (!work.graph().may_be_float(operand.producer)) continue;
        ++matches;
        const auto [known, added] = specs.emplace(operand.producer, std::pair(spec, operand.path));
        if (!added && known->second.first != spec)
          throw work.refusal("operands " + known->second.second + " and " + operand.path +
                                 " are one tensor, and the rule has two specs for it",
                             "", node);
        if (added) add_operand(operand.producer, node, spec);
      }
    }
    return matches;
  }

  void add_operand(NodeIndex producer, NodeIndex node, const QSpec& spec) const {
    if (is_float(spec)) return work.floats.push_back({producer, node});
    const Slot edge = Slot::edge(producer, node);
    const std::vector<Slot> tensor = tensor_slots(work.plan, producer);
    const bool others =
        std::any_of(tensor.begin() + 1, tensor.end(), [&](Slot slot) { return slot != edge; });
    const PlanEntry* const output = work.plan.output(producer);
    const bool quantized = output != nullptr && !is_float(output->spec);
    if (others || !quantized) {
      if (others && quantized && output->spec != spec)
        work.note(quoted(work.graph().text(edge)) +
                  " is quantized a second time: other nodes read the tensor, too");
      work.assignments.push_back({{edge}, spec, false});
    } else {
      work.assignments.push_back({{edge, Slot::output(producer)}, spec});
    }
  }

  [[noreturn]] void refuse_operand(const std::vector<NodeIndex>& nodes, const PortKey& key) const {
    std::set<std::string> names;
    for (const NodeIndex node : nodes)
      for (const CallOperand& operand : work.graph().node(node).operands)
        names.insert(operand.name.empty() ? operand.path : operand.name);
    std::vector<KnownName> known;
    for (const std::string& name : names) known.push_back({name});
    const auto* const name = std::get_if<std::string>(&key);
    std::string hint = name == nullptr ? "" : did_you_mean(*name, known);
    if (hint.empty()) hint = "It reads " + joined(std::vector<std::string>(names.begin(), names.end()));
    throw work.refusal(
        quoted(work.graph().node(nodes.front()).target) + " reads no node as operand " + text_of(key), hint,
        nodes.front());
  }

  // The nodes that feed this operand of the marked nodes and nothing else, in the order of the graph.
  [[nodiscard]] std::vector<NodeIndex> find_feeding(const ExcludeFeedingRule& rule,
                                                    const std::vector<bool>& nodes,
                                                    const std::vector<bool>& stops, bool& has_operand) const {
    const std::vector<CallNode>& all = work.graph().nodes();
    // feeds: the operand or an excluded node reads the node. feeds_others: anything else reads it.
    std::vector<bool> feeds(all.size()), feeds_others(all.size()), is_excluded(all.size());
    for (std::size_t n = all.size(); n-- > 0;) {
      is_excluded[n] = feeds[n] && !feeds_others[n] && !stops[n] && !nodes[n];
      for (const CallOperand& operand : all[n].operands) {
        const bool is_asked = nodes[n] && is_operand(operand, rule.operand);
        has_operand = has_operand || is_asked;
        (is_asked || is_excluded[n] ? feeds : feeds_others)[operand.producer.index()] = true;
      }
    }
    std::vector<NodeIndex> excluded;
    for (std::uint32_t n = 0; n < all.size(); ++n)
      if (is_excluded[n]) excluded.emplace_back(n);
    return excluded;
  }

  [[nodiscard]] bool feeds_marked(NodeIndex node, const std::vector<NodeIndex>& sorted) const {
    const std::vector<NodeIndex>& users = work.graph().node(node).users;
    return std::any_of(users.begin(), users.end(), [&](NodeIndex user) {
      return std::binary_search(sorted.begin(), sorted.end(), user);
    });
  }

  void clear(const std::vector<NodeIndex>& nodes) const {
    std::vector<Slot> slots;
    for (const NodeIndex node : nodes) {
      for (const PlanEntry& entry : work.plan.edges(node)) slots.push_back(entry.slot);
      if (work.plan.output(node) != nullptr) slots.push_back(Slot::output(node));
    }
    withdraw(work.plan, slots, Withdrawal::kErase, work.id);
    for (const NodeIndex node : nodes) work.plan.clear(node, work.id);
  }
};

}  // namespace

void apply(const Rule& rule, AnnotationPlan& plan, RuleId id, bool allow_unmatched) {
  Work work{plan, id, allow_unmatched};
  const std::size_t matches = std::visit(Apply{work}, rule);
  if (matches == 0 && !allow_unmatched) throw work.refusal("the rule matches nothing");
  work.finish();
  plan.rule(id).matches = matches;
}

}  // namespace tosaic::quant
