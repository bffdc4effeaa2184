// groups: slots that share one scale, by union-find.
#include <algorithm>

#include "tosaic/quant/planner/planning.h"

namespace tosaic::quant {

Slot Planner::find(Slot slot) {
  for (auto entry = group_of_.find(slot); entry != group_of_.end() && entry->second != slot;
       entry = group_of_.find(slot))
    slot = entry->second;
  return slot;
}

// The earlier slot becomes the root: torch makes the observer of a group at its first slot.
void Planner::unite(Slot a, Slot b) {
  a = find(a), b = find(b);
  group_of_.try_emplace(a, a);
  group_of_.try_emplace(b, b);
  if (a == b) return;
  if (before(b, a)) std::swap(a, b);
  group_of_[b] = a;
}

// Edges of one call are in the order in which they were set.
bool Planner::before(Slot a, Slot b) const {
  if (a.node != b.node) return a.node < b.node;
  if (!a.is_edge() || !b.is_edge()) return a.is_edge() && !b.is_edge();
  const auto edges = plan_.edges(a.node);
  return std::ranges::find(edges, a, &PlanEntry::slot) < std::ranges::find(edges, b, &PlanEntry::slot);
}

void Planner::emit_groups() {
  std::vector<Slot> members;
  for (const auto& [slot, parent] : group_of_) members.push_back(slot);
  std::ranges::sort(members, [this](Slot a, Slot b) { return before(a, b); });
  if (members.empty()) return;
  const RuleId rule = plan_.add_rule("one scale for several operands");
  for (const Slot slot : members)
    if (const Slot root = find(slot); root != slot) plan_.set(slot, SharedSpec{root}, rule);
}

}  // namespace tosaic::quant
