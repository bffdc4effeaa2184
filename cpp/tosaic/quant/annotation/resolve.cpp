#include "tosaic/quant/annotation/resolve.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace tosaic::quant {
namespace {

constexpr std::array<std::string_view, 4> kReasons = {"set to float", "spec removed",
                                                      "annotated without a spec", "not annotated"};

bool has_numbers(const PlanEntry* entry) { return entry != nullptr && !is_float(entry->spec); }

// Slots of a tensor that have specs, float ones too: the output, then the edges in the order of the users.
std::vector<const PlanEntry*> entries_of_tensor(const AnnotationPlan& plan, NodeIndex node) {
  std::vector<const PlanEntry*> entries;
  if (const PlanEntry* const output = plan.output(node)) entries.push_back(output);
  for (const NodeIndex user : plan.graph().node(node).users)
    if (const PlanEntry* const edge = plan.find(Slot::edge(node, user))) entries.push_back(edge);
  return entries;
}

// The last rule that removed a spec of each tensor.
std::unordered_map<std::uint32_t, RuleId> removals_of(const AnnotationPlan& plan) {
  std::unordered_map<std::uint32_t, RuleId> removals;
  for (const PlanChange& change : plan.history())
    if (!change.after) removals[change.slot.tensor().index()] = change.changed_by;
  return removals;
}

std::vector<FloatTensor> left_float(const AnnotationPlan& plan) {
  const CallGraph& graph = plan.graph();
  std::vector<bool> is_asked(graph.size());
  for (const GraphPort& port : graph.inputs()) is_asked[port.node.index()] = true;
  const std::unordered_map<std::uint32_t, RuleId> removals = removals_of(plan);
  std::vector<FloatTensor> out;
  for (std::uint32_t n = 0; n < graph.size(); ++n) {
    const NodeIndex node(n);
    if (graph.nodes()[n].kind != CallKind::kCall && !is_asked[n]) continue;
    if (graph.nodes()[n].dtype.empty() || !graph.may_be_float(node)) continue;
    const std::vector<const PlanEntry*> entries = entries_of_tensor(plan, node);
    if (std::any_of(entries.begin(), entries.end(), has_numbers)) continue;
    const auto removed = removals.find(n);
    if (!entries.empty())
      out.push_back({node, FloatReason::kSetToFloat, entries.front()->rule});
    else if (removed != removals.end())
      out.push_back({node, FloatReason::kRemoved, removed->second});
    else
      out.push_back({node, plan.has_annotation(node) ? FloatReason::kNoSpec : FloatReason::kNotAnnotated});
  }
  return out;
}

std::vector<RequantizedTensor> requantized(const AnnotationPlan& plan, const SharingGroups& sharing) {
  std::vector<RequantizedTensor> out;
  for (std::uint32_t n = 0; n < plan.graph().size(); ++n) {
    const NodeIndex node(n);
    const std::optional<std::uint32_t> group = sharing.group_of(Slot::output(node));
    if (!group) continue;
    for (const PlanEntry* const entry : entries_of_tensor(plan, node))
      if (has_numbers(entry) && sharing.group_of(entry->slot) != group)
        out.push_back({Slot::output(node), entry->slot});
  }
  return out;
}

}  // namespace

std::string_view to_string(FloatReason reason) { return kReasons[static_cast<std::size_t>(reason)]; }

Resolution resolve(const AnnotationPlan& plan) {
  Resolution out{
      .slots = {}, .sharing = SharingGroups(plan), .requantized = {}, .left_float = left_float(plan)};
  for (const Slot slot : plan.slots()) {
    ResolvedSlot& made = out.slots.emplace_back();
    made.slot = slot;
    made.set_by = plan.find(slot)->rule;
    made.group = out.sharing.group_of(slot);
    made.decided_by = made.group ? out.sharing.groups()[*made.group].spec : std::optional(slot);
    made.is_stale = !plan.graph().contains(slot);
  }
  out.requantized = requantized(plan, out.sharing);
  return out;
}

}  // namespace tosaic::quant
