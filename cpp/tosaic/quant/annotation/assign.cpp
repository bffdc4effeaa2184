#include "tosaic/quant/annotation/assign.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tosaic/base/error_text.h"
#include "tosaic/quant/annotation/sharing.h"

namespace tosaic::quant {
namespace {

using Slots = std::vector<Slot>;
using SlotSet = std::unordered_set<Slot>;

bool has_numbers(const PlanEntry* entry) { return entry != nullptr && !is_float(entry->spec); }

// Sorts slots in the order of the plan. Edges without specs come after those with specs.
void sort_by_plan(const AnnotationPlan& plan, Slots& slots) {
  const auto key = [&](Slot slot) {
    std::size_t position = 0;
    if (slot.is_edge()) {
      const std::span<const PlanEntry> edges = plan.edges(slot.node);
      while (position < edges.size() && edges[position].slot != slot) ++position;
    }
    return std::tuple(slot.node.index(), slot.is_edge() ? 0 : 1, position);
  };
  std::stable_sort(slots.begin(), slots.end(), [&](Slot a, Slot b) { return key(a) < key(b); });
}

// Slot -> the slots that refer to it.
using Referrers = std::unordered_map<Slot, Slots>;

Referrers referrers_of(const AnnotationPlan& plan) {
  Referrers referrers;
  for (const Slot slot : plan.slots())
    if (const auto* const shared = std::get_if<SharedSpec>(&plan.find(slot)->spec))
      referrers[shared->with].push_back(slot);
  return referrers;
}

// Slots that refer to a slot of `changed`, but are not in `changed`, get the old spec of their group: the
// first of them gets the spec, the others share with the first. `referrers` may be older than the plan.
void take_over(AnnotationPlan& plan, const SharingGroups& groups, const Referrers& referrers,
               const Slots& changed, RuleId rule) {
  const SlotSet is_changed(changed.begin(), changed.end());
  std::map<std::uint32_t, Slots> left;
  for (const Slot target : changed) {
    const auto found = referrers.find(target);
    if (found == referrers.end()) continue;
    for (const Slot slot : found->second) {
      const PlanEntry* const entry = plan.find(slot);
      const std::optional<std::uint32_t> group = groups.group_of(slot);
      if (!is_changed.contains(slot) && group && entry != nullptr && entry->spec == QSpec(SharedSpec{target}))
        left[*group].push_back(slot);
    }
  }
  for (auto& [g, slots] : left) {
    const SharingGroup& group = groups.groups()[g];
    if (!group.spec) continue;
    sort_by_plan(plan, slots);
    const QSpec spec = plan.find(*group.spec)->spec;
    const std::string reason = "the slot that it shared with has another spec now";
    for (const Slot slot : slots)
      plan.set(slot, slot == slots.front() ? spec : QSpec(SharedSpec{slots.front()}), rule, reason);
  }
}

// ---- assign ----

// Finds joins: calls whose operands share one scale within a group of a plan, such as concatenations.
class Joins {
 public:
  Joins(const AnnotationPlan& plan, const SharingGroups& groups) : plan_(plan), groups_(groups) {
    has_join_.resize(groups.groups().size());
    for (std::uint32_t g = 0; g < has_join_.size(); ++g)
      has_join_[g] = std::ranges::any_of(groups.groups()[g].members,
                                         [&](Slot member) { return is_join(member.node, g); });
  }

  [[nodiscard]] bool in_group(std::uint32_t group) const { return has_join_[group]; }

  // True if the call has several tensors of floats as operands, and at least two of its operands and result
  // are in the group.
  [[nodiscard]] bool is_join(NodeIndex call, std::uint32_t group) const {
    const Tensors operands = operands_of(call);
    const auto shared = std::ranges::count_if(
        operands, [&](NodeIndex p) { return groups_.group_of(read_slot(p, call)) == group; });
    const bool has_result = groups_.group_of(Slot::output(call)) == group;
    return operands.size() > 1 && shared + (has_result ? 1 : 0) > 1;
  }

  using Tensors = std::vector<NodeIndex>;
  [[nodiscard]] Tensors operands_of(NodeIndex call) const {
    Tensors found;
    for (const CallOperand& each : plan_.graph().node(call).operands)
      if (plan_.graph().may_be_float(each.producer) && std::ranges::find(found, each.producer) == found.end())
        found.push_back(each.producer);
    return found;
  }

  // The slot whose scale the call reads.
  [[nodiscard]] Slot read_slot(NodeIndex producer, NodeIndex call) const {
    const Slot edge = Slot::edge(producer, call);
    return plan_.find(edge) != nullptr ? edge : Slot::output(producer);
  }

 private:
  const AnnotationPlan& plan_;
  const SharingGroups& groups_;
  std::vector<bool> has_join_;
};

// Finds the slots that have to follow each assignment, and merges assignments that reach the same slot.
class Followers {
 public:
  Followers(const AnnotationPlan& plan, const SharingGroups& groups, const Joins& joins,
            const Referrers& referrers, std::span<const Assignment> assignments)
      : plan_(plan), groups_(groups), joins_(joins), referrers_(referrers), assignments_(assignments) {
    joined_.resize(assignments.size());
    std::iota(joined_.begin(), joined_.end(), 0u);
    for (std::uint32_t a = 0; a < assignments.size(); ++a)
      for (const Slot slot : assignments[a].slots) assigned_.emplace(slot, a);
    for (std::uint32_t a = 0; a < assignments.size(); ++a) visit_from(a);
  }

  // The assignments, joined: their numbers, and all slots that they reach, assigned ones included.
  struct Part {
    std::vector<std::uint32_t> assignments;
    Slots slots;
  };
  [[nodiscard]] std::vector<Part> parts() {
    std::vector<Part> parts(assignments_.size());
    for (std::uint32_t a = 0; a < assignments_.size(); ++a) parts[root(a)].assignments.push_back(a);
    for (const Slot slot : order_) parts[root(owner_.at(slot))].slots.push_back(slot);
    std::erase_if(parts, [](const Part& part) { return part.assignments.empty(); });
    return parts;
  }

 private:
  [[nodiscard]] std::uint32_t root(std::uint32_t a) {
    while (joined_[a] != a) a = joined_[a] = joined_[joined_[a]];
    return a;
  }

  void visit(Slot slot, std::uint32_t assignment) {
    const auto [known, added] = owner_.emplace(slot, assignment);
    if (added)
      order_.push_back(slot);
    else
      joined_[root(assignment)] = root(known->second);
  }

  void visit_from(std::uint32_t a) {
    std::size_t next = order_.size();
    for (const Slot slot : assignments_[a].slots) visit(slot, a);
    for (; next < order_.size(); ++next) {
      const std::optional<std::uint32_t> group = groups_.group_of(order_[next]);
      if (group && joins_.in_group(*group) && std::holds_alternative<FixedSpec>(assignments_[a].spec))
        visit_up_to_joins(order_[next], *group, a);
      else
        visit_neighbours(order_[next], a);
    }
  }

  void visit_neighbours(Slot slot, std::uint32_t a) {
    const auto assigned = assigned_.find(slot);
    const bool is_one_edge = assigned != assigned_.end() && !assignments_[assigned->second].whole_tensor;
    const auto may_visit = [&](Slot other) { return !is_one_edge || other.tensor() != slot.tensor(); };
    const PlanEntry* const entry = plan_.find(slot);
    if (entry == nullptr) return;
    if (const auto* const shared = std::get_if<SharedSpec>(&entry->spec))
      if (may_visit(shared->with) && has_numbers(plan_.find(shared->with))) visit(shared->with, a);
    const auto referrers = referrers_.find(slot);
    if (referrers != referrers_.end())
      for (const Slot other : referrers->second)
        if (may_visit(other)) visit(other, a);
    if (is_one_edge) return;
    const std::optional<std::uint32_t> group = groups_.group_of(slot);
    for (const Slot other : tensor_slots(plan_, slot.tensor()))
      if (group && groups_.group_of(other) == group) visit(other, a);
  }

  // For groups with joins. Follows the calls: references do not say which slots share because of a join.
  void visit_up_to_joins(Slot slot, std::uint32_t group, std::uint32_t a) {
    const auto in_group = [&](Slot other) { return groups_.group_of(other) == group; };
    const auto assigned = assigned_.find(slot);
    const bool is_one_edge = assigned != assigned_.end() && !assignments_[assigned->second].whole_tensor;
    const NodeIndex tensor = slot.tensor();
    const bool is_read_by_join = slot.is_edge() && joins_.is_join(slot.node, group);
    const bool is_read_once = plan_.graph().node(tensor).users.size() == 1;
    if (!is_one_edge && (!is_read_by_join || is_read_once || is_closed(slot.node, a)))
      for (const Slot other : tensor_slots(plan_, tensor))
        if (in_group(other) && (!other.is_edge() || may_enter(other.node, group, a))) visit(other, a);
    if (slot.is_edge() && may_enter(slot.node, group, a) && in_group(Slot::output(slot.node)))
      visit(Slot::output(slot.node), a);
    if (slot.is_edge()) return;
    for (const NodeIndex user : plan_.graph().node(tensor).users)
      if (plan_.find(Slot::edge(tensor, user)) == nullptr && in_group(Slot::output(user)) &&
          may_enter(user, group, a))
        visit(Slot::output(user), a);
    visit_operands(tensor, group, a);
  }

  // If other calls also read an operand of a join, only the edge from the operand to the join follows.
  void visit_operands(NodeIndex call, std::uint32_t group, std::uint32_t a) {
    const bool is_join = joins_.is_join(call, group);
    for (const NodeIndex operand : joins_.operands_of(call)) {
      const Slot read = joins_.read_slot(operand, call);
      if (groups_.group_of(read) != group) continue;
      const bool is_read_once = plan_.graph().node(operand).users.size() == 1;
      visit(is_join && !is_read_once ? Slot::edge(operand, call) : read, a);
    }
  }

  // True if a spec that reaches an operand of the call also holds for the result of the call.
  [[nodiscard]] bool may_enter(NodeIndex call, std::uint32_t group, std::uint32_t a) const {
    return !joins_.is_join(call, group) || is_closed(call, a);
  }

  // True if all operands of the call are assigned the spec of assignment `a`.
  [[nodiscard]] bool is_closed(NodeIndex call, std::uint32_t a) const {
    return std::ranges::all_of(joins_.operands_of(call), [&](NodeIndex operand) {
      const auto found = assigned_.find(Slot::output(operand));
      return found != assigned_.end() && assignments_[found->second].spec == assignments_[a].spec;
    });
  }

  const AnnotationPlan& plan_;
  const SharingGroups& groups_;
  const Joins& joins_;
  const Referrers& referrers_;
  std::span<const Assignment> assignments_;
  std::unordered_map<Slot, std::uint32_t> assigned_, owner_;
  Slots order_;
  std::vector<std::uint32_t> joined_;
};

// An edge to a join, and the slot whose scale it gets: one that keeps the scale of the group.
struct JoinedEdge {
  Slot edge, with;
};

// The edges without specs at which joins read tensors with new specs. Such an edge needs the scale of the
// join's other operands; without a spec, the join would read the tensor with the new scale.
std::vector<JoinedEdge> edges_of_joins(const AnnotationPlan& plan, const SharingGroups& groups,
                                       const Joins& joins, const Slots& reached) {
  const SlotSet is_reached(reached.begin(), reached.end());
  std::vector<JoinedEdge> found;
  for (const Slot slot : reached) {
    const std::optional<std::uint32_t> group = groups.group_of(slot);
    if (slot.is_edge() || !group || !joins.in_group(*group)) continue;
    for (const NodeIndex user : plan.graph().node(slot.node).users) {
      const Slot edge = Slot::edge(slot.node, user), result = Slot::output(user);
      if (plan.find(edge) != nullptr || is_reached.contains(edge) || !joins.is_join(user, *group)) continue;
      std::optional<Slot> with;
      for (const NodeIndex operand : joins.operands_of(user)) {
        const Slot read = joins.read_slot(operand, user);
        if (!with && groups.group_of(read) == group && !is_reached.contains(read)) with = read;
      }
      if (!with && groups.group_of(result) == group && !is_reached.contains(result)) with = result;
      if (with) found.push_back({edge, *with});
    }
  }
  return found;
}

// A fixed spec of a tensor would clip the other operands of joins that read the tensor. So edges to joins are
// removed from the assignment, unless the rule names them or all operands of the join get the spec.
void leave_joins(AnnotationPlan& plan, const SharingGroups& groups, const Joins& joins,
                 std::vector<Assignment>& assignments, RuleId rule) {
  const auto is_closed = [&](NodeIndex call, const QSpec& spec) {
    return std::ranges::all_of(joins.operands_of(call), [&](NodeIndex operand) {
      return std::ranges::any_of(assignments, [&](const Assignment& each) {
        return each.spec == spec && std::ranges::find(each.slots, Slot::output(operand)) != each.slots.end();
      });
    });
  };
  std::vector<std::pair<Assignment*, Slot>> left;
  for (Assignment& each : assignments) {
    if (!each.whole_tensor || each.names_slots || !std::holds_alternative<FixedSpec>(each.spec)) continue;
    for (const Slot slot : std::span(each.slots).subspan(1)) {
      const std::optional<std::uint32_t> group = groups.group_of(slot);
      if (slot.is_edge() && group && joins.is_join(slot.node, *group) && !is_closed(slot.node, each.spec))
        left.emplace_back(&each, slot);
    }
  }
  for (const auto& [assignment, slot] : left) {
    std::erase(assignment->slots, slot);
    plan.rule(rule).notes.push_back(
        quoted(plan.graph().text(slot)) +
        " keeps the scale of the other operands, which the spec of the rule would clip");
  }
}

// The first of the slots gets the spec, and the others share with it.
void set_one_instance(AnnotationPlan& plan, Slots slots, const QSpec& spec, const SlotSet& assigned,
                      RuleId rule) {
  sort_by_plan(plan, slots);
  for (const Slot slot : slots)
    plan.set(slot, slot == slots.front() ? spec : QSpec(SharedSpec{slots.front()}), rule,
             assigned.contains(slot) ? "" : "it shares its qparams with a slot of the rule");
}

// True if a slot that has to follow has a fixed, derived or foreign spec that differs from `spec`.
bool is_contradicted(const AnnotationPlan& plan, const Followers::Part& part, const SlotSet& assigned,
                     const QSpec& spec) {
  return std::any_of(part.slots.begin(), part.slots.end(), [&](Slot slot) {
    const PlanEntry* const entry = plan.find(slot);
    if (entry == nullptr || assigned.contains(slot)) return false;
    if (is_shared(entry->spec) || std::holds_alternative<ObservedSpec>(entry->spec)) return false;
    return sharing_key(entry->spec) != sharing_key(spec);
  });
}

void assign_part(AnnotationPlan& plan, const SharingGroups& groups, const Referrers& referrers,
                 std::span<const Assignment> assignments, const Followers::Part& part, RuleId rule) {
  // Slots of assignments with equal specs get one instance of the spec: they share anyway.
  std::vector<std::pair<const QSpec*, Slots>> specs;
  SlotSet assigned;
  for (const std::uint32_t a : part.assignments) {
    const Assignment& each = assignments[a];
    auto known =
        std::find_if(specs.begin(), specs.end(), [&](const auto& spec) { return *spec.first == each.spec; });
    if (known == specs.end()) known = specs.insert(known, {&each.spec, {}});
    for (const Slot slot : each.slots)
      if (assigned.insert(slot).second) known->second.push_back(slot);
  }
  const QSpec& spec = *specs.front().first;
  if (specs.size() == 1 && !is_contradicted(plan, part, assigned, spec)) {
    take_over(plan, groups, referrers, part.slots, rule);
    set_one_instance(plan, part.slots, spec, assigned, rule);
    return;
  }
  if (part.slots.size() > assigned.size()) {
    const std::string first = quoted(plan.graph().text(specs.front().second.front()));
    plan.rule(rule).notes.push_back("the sharing group of " + first +
                                    " was split: not all of its slots can have the spec of the rule");
  }
  take_over(plan, groups, referrers, Slots(assigned.begin(), assigned.end()), rule);
  for (const auto& [each, slots] : specs) set_one_instance(plan, slots, *each, assigned, rule);
}

// ---- withdraw ----

// Adds the slots whose specs are derived from withdrawn slots, and the slots that share with these.
void add_derived(const AnnotationPlan& plan, const SharingGroups& groups, Slots& withdrawn) {
  std::unordered_map<Slot, Slots> derived;
  for (const Slot slot : plan.slots())
    if (const auto* const spec = std::get_if<DerivedSpec>(&plan.find(slot)->spec))
      for (const Slot from : spec->from) derived[from].push_back(slot);
  SlotSet known(withdrawn.begin(), withdrawn.end());
  for (std::size_t i = 0; i < withdrawn.size() && !derived.empty(); ++i) {
    const auto found = derived.find(withdrawn[i]);
    if (found == derived.end()) continue;
    for (const Slot slot : found->second)
      for (const Slot member : groups.groups()[*groups.group_of(slot)].members)
        if (known.insert(member).second) withdrawn.push_back(member);
  }
}

// The references of each member lead to a slot with a spec of its own, or in a circle. Returns the slot for
// the first member whose references do not lead in a circle.
std::optional<Slot> source_of(const AnnotationPlan& plan, const Slots& members) {
  for (const Slot member : members) {
    Slot slot = member;
    for (std::size_t steps = 0; steps <= plan.size(); ++steps) {
      const PlanEntry* const entry = plan.find(slot);
      if (entry == nullptr) break;
      const auto* const shared = std::get_if<SharedSpec>(&entry->spec);
      if (shared == nullptr) return slot;
      slot = shared->with;
    }
  }
  return std::nullopt;
}

// The members of the groups of slots, and the slots themselves.
Slots with_groups(const SharingGroups& groups, std::span<const Slot> slots) {
  std::set<std::uint32_t> known;
  for (const Slot slot : slots)
    if (const std::optional<std::uint32_t> group = groups.group_of(slot)) known.insert(*group);
  Slots out(slots.begin(), slots.end());
  for (const std::uint32_t group : known) {
    const Slots& members = groups.groups()[group].members;
    out.insert(out.end(), members.begin(), members.end());
  }
  return out;
}

}  // namespace

std::vector<Slot> tensor_slots(const AnnotationPlan& plan, NodeIndex node) {
  Slots slots = {Slot::output(node)};
  for (const NodeIndex user : plan.graph().node(node).users)
    if (has_numbers(plan.find(Slot::edge(node, user)))) slots.push_back(Slot::edge(node, user));
  return slots;
}

void assign(AnnotationPlan& plan, std::span<const Assignment> assignments, RuleId rule) {
  std::vector<Assignment> values;
  Slots assigned;
  for (const Assignment& each : assignments)
    assigned.insert(assigned.end(), each.slots.begin(), each.slots.end());
  if (assigned.empty()) return;
  const SharingGroups before(plan);
  Slots touched = with_groups(before, assigned);
  for (const Assignment& each : assignments) {
    if (!is_shared(each.spec)) {
      values.push_back(each);
      continue;
    }
    for (const Slot slot : each.slots)
      plan.set(slot, slot == each.slots.front() ? each.spec : QSpec(SharedSpec{each.slots.front()}), rule);
  }
  if (!values.empty()) {
    const SharingGroups groups(plan);
    const Joins joins(plan, groups);
    const Referrers referrers = referrers_of(plan);
    leave_joins(plan, groups, joins, values, rule);
    std::vector<JoinedEdge> joined;
    for (const Followers::Part& part : Followers(plan, groups, joins, referrers, values).parts()) {
      const Slots reached = with_groups(groups, part.slots);
      touched.insert(touched.end(), reached.begin(), reached.end());
      const std::vector<JoinedEdge> edges = edges_of_joins(plan, groups, joins, part.slots);
      joined.insert(joined.end(), edges.begin(), edges.end());
      assign_part(plan, groups, referrers, values, part, rule);
    }
    for (const JoinedEdge& each : joined) {
      plan.set(each.edge, SharedSpec{each.with}, rule, "the other operands have another scale");
      touched.push_back(each.edge);
    }
  }
  refer_to_first(plan, touched, rule);
}

void withdraw(AnnotationPlan& plan, std::span<const Slot> slots, Withdrawal how, RuleId rule) {
  const SharingGroups groups(plan);
  Slots withdrawn;
  for (const Slot slot : slots)
    if (plan.find(slot) != nullptr) withdrawn.push_back(slot);
  const std::size_t asked = withdrawn.size();
  add_derived(plan, groups, withdrawn);
  take_over(plan, groups, referrers_of(plan), withdrawn, rule);
  for (std::size_t i = 0; i < withdrawn.size(); ++i) {
    const std::string reason = i < asked ? "" : "its spec was derived from one that is float now";
    if (how == Withdrawal::kErase && i < asked)
      plan.erase(withdrawn[i], rule, reason);
    else
      plan.set(withdrawn[i], FloatSpec{}, rule, reason);
  }
  if (!withdrawn.empty()) refer_to_first(plan, with_groups(groups, withdrawn), rule);
}

void quantize_at_edges(AnnotationPlan& plan, const FloatOutput& output, RuleId rule) {
  if (!has_numbers(plan.output(output.node))) return;
  for (const NodeIndex user : plan.graph().node(output.node).users) {
    if (user == output.reader || plan.find(Slot::edge(output.node, user)) != nullptr) continue;
    const std::span<const PlanEntry> edges = plan.edges(user);
    const bool quantizes =
        has_numbers(plan.output(user)) ||
        std::any_of(edges.begin(), edges.end(), [](const PlanEntry& each) { return has_numbers(&each); });
    if (quantizes)
      plan.set(Slot::edge(output.node, user), SharedSpec{Slot::output(output.node)}, rule,
               "it quantizes the tensor itself, whose producer is float now");
  }
}

void withdraw_outputs(AnnotationPlan& plan, std::span<const FloatOutput> outputs, RuleId rule) {
  Slots slots;
  for (const FloatOutput& each : outputs) {
    quantize_at_edges(plan, each, rule);
    slots.push_back(Slot::output(each.node));
    if (each.reader.valid()) slots.push_back(Slot::edge(each.node, each.reader));
  }
  withdraw(plan, slots, Withdrawal::kFloat, rule);
}

void refer_to_first(AnnotationPlan& plan, std::span<const Slot> slots, RuleId rule) {
  const SharingGroups sharing(plan);
  std::set<std::uint32_t> wrong;
  for (const SharingConflict& conflict : sharing.conflicts())
    if (conflict.kind == ConflictKind::kLaterReference || conflict.kind == ConflictKind::kReferenceCycle)
      for (const Slot slot : {conflict.slot, conflict.other})
        if (const std::optional<std::uint32_t> group = sharing.group_of(slot)) wrong.insert(*group);
  if (wrong.empty()) return;
  std::set<std::uint32_t> chosen;
  for (const Slot slot : slots)
    if (const std::optional<std::uint32_t> group = sharing.group_of(slot)) chosen.insert(*group);
  for (const std::uint32_t g : wrong) {
    if (!slots.empty() && !chosen.contains(g)) continue;
    const Slots& members = sharing.groups()[g].members;
    const std::optional<Slot> source = source_of(plan, members);
    if (!source) continue;
    const QSpec spec = plan.find(*source)->spec;
    // Slots with equal specs of their own refer to the first one, too. Otherwise torchao might make a slot
    // that refers to another one the root of the group, and the references would lead in a circle.
    for (const Slot slot : members)
      plan.set(slot, slot == members.front() ? spec : QSpec(SharedSpec{members.front()}), rule,
               "torch needs the spec of a sharing group at its first slot");
  }
}

}  // namespace tosaic::quant
