#include "tosaic/quant/annotation/sharing.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "tosaic/base/error_text.h"

namespace tosaic::quant {
namespace {

constexpr std::array<std::string_view, 5> kKinds = {
    "unequal observers", "missing reference", "cycle of references", "later reference", "float reference"};

constexpr std::uint32_t kNone = 0xffffffffu;

// The union-find of torchao over the slots of a table, by position.
class Union {
 public:
  Union(const AnnotationPlan& plan, const SlotTable& table, std::vector<SharingConflict>& conflicts)
      : plan_(plan), slots_(table.slots()), conflicts_(conflicts) {
    const auto count = static_cast<std::uint32_t>(slots_.size());
    parent_.resize(count);
    specs_.resize(count);
    shares_.assign(count, kNone);
    is_shared_.resize(count);
    keys_.resize(count);
    std::unordered_map<std::string, std::uint32_t> known;
    for (std::uint32_t i = 0; i < count; ++i) {
      parent_[i] = i;
      specs_[i] = &plan.find(slots_[i])->spec;
      if (const auto* const shared = std::get_if<SharedSpec>(specs_[i])) {
        is_shared_[i] = true;
        shared_count_ += 1;
        shares_[i] = table.find(shared->with).value_or(kNone);
        if (shares_[i] == kNone)
          conflicts.push_back({ConflictKind::kMissingReference, slots_[i], shared->with});
      } else if (!is_float(*specs_[i])) {
        const auto next = static_cast<std::uint32_t>(known.size()) + 1;
        keys_[i] = known.emplace(sharing_key(*specs_[i]), next).first->second;
      }
    }
    join_all(table);
  }

  [[nodiscard]] std::uint32_t root(std::uint32_t slot) {
    std::uint32_t top = slot;
    while (parent_[top] != top) top = parent_[top];
    while (parent_[slot] != top) slot = std::exchange(parent_[slot], top);
    return top;
  }

  // Follows the references from `slot` to a slot with a spec of its own; kNone after a conflict.
  [[nodiscard]] std::uint32_t resolve(std::uint32_t slot) {
    const std::uint32_t start = slot;
    for (std::size_t steps = 0; is_shared_[slot]; ++steps) {
      if (shares_[slot] == kNone) return kNone;
      if (steps > shared_count_) {
        report({ConflictKind::kReferenceCycle, slots_[start], slots_[slot]});
        return kNone;
      }
      slot = root(shares_[slot]);
    }
    return slot;
  }

  [[nodiscard]] bool is_shared(std::uint32_t slot) const { return is_shared_[slot]; }
  [[nodiscard]] const QSpec& spec(std::uint32_t slot) const { return *specs_[slot]; }

 private:
  void join_all(const SlotTable& table) {
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].is_edge()) {
        const std::uint32_t own = resolve(i);
        if (own != kNone && plan_.allow_implicit_sharing(slots_[i].node)) join_implicitly(table, i, own);
      }
      if (is_shared_[i] && shares_[i] != kNone) join(shares_[i], i);
    }
  }

  void join_implicitly(const SlotTable& table, std::uint32_t edge, std::uint32_t own) {
    const NodeIndex producer = slots_[edge].producer;
    const auto join_if_equal = [&](Slot slot) {
      const std::optional<std::uint32_t> other = table.find(slot);
      if (!other) return;
      const std::uint32_t resolved = resolve(*other);
      if (resolved != kNone && keys_[resolved] != 0 && keys_[resolved] == keys_[own]) join(*other, edge);
    };
    for (const NodeIndex user : plan_.graph().node(producer).users)
      if (user != slots_[edge].node) join_if_equal(Slot::edge(producer, user));
    join_if_equal(Slot::output(producer));
  }

  // Joins two groups under the parent's root, or under the child's root if the parent's root refers to it.
  void join(std::uint32_t parent, std::uint32_t child) {
    const std::uint32_t parent_root = root(parent), child_root = root(child);
    if (is_shared_[parent_root] && shares_[parent_root] == child_root)
      parent_[parent_root] = child_root;
    else
      parent_[child_root] = parent_root;
  }

  void report(SharingConflict conflict) {
    if (std::find(conflicts_.begin(), conflicts_.end(), conflict) == conflicts_.end())
      conflicts_.push_back(conflict);
  }

  const AnnotationPlan& plan_;
  const std::vector<Slot>& slots_;
  std::vector<SharingConflict>& conflicts_;
  std::vector<std::uint32_t> parent_, shares_, keys_;  // a key of 0: the spec is float or shared
  std::vector<const QSpec*> specs_;
  std::vector<bool> is_shared_;
  std::size_t shared_count_ = 0;
};

// Finds conflicts of the first slot of a group: torchao makes the observer of the group from its spec.
void check_first(const SlotTable& table, const Union& slots, std::uint32_t first,
                 std::vector<SharingConflict>& conflicts) {
  const Slot slot = table.slots()[first];
  if (const auto* const shared = std::get_if<SharedSpec>(&slots.spec(first))) {
    if (table.find(shared->with)) conflicts.push_back({ConflictKind::kLaterReference, slot, shared->with});
  } else if (const auto* const derived = std::get_if<DerivedSpec>(&slots.spec(first))) {
    for (const Slot from : derived->from) {
      const std::optional<std::uint32_t> at = table.find(from);
      if (!at)
        conflicts.push_back({ConflictKind::kMissingReference, slot, from});
      else if (*at >= first)
        conflicts.push_back({ConflictKind::kLaterReference, slot, from});
      else if (is_float(slots.spec(*at)))
        conflicts.push_back({ConflictKind::kFloatReference, slot, from});
    }
  }
}

}  // namespace

std::string_view to_string(ConflictKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::string describe(const CallGraph& graph, const SharingConflict& conflict) {
  const std::string slot = quoted(graph.text(conflict.slot)), other = quoted(graph.text(conflict.other));
  switch (conflict.kind) {
    case ConflictKind::kUnequalObservers:
      return other + " shares its qparams with " + slot + ", so that its own observer has no effect";
    case ConflictKind::kMissingReference:
      return slot + " refers to " + other + ", which has no spec";
    case ConflictKind::kReferenceCycle:
      return "the references from " + slot + " lead in a circle through " + other;
    case ConflictKind::kLaterReference:
      return slot + " refers to " + other + ", which comes later: torch refuses that";
    case ConflictKind::kFloatReference:
      return slot + " is derived from " + other + ", which is float";
  }
  return {};
}

SlotTable::SlotTable(const AnnotationPlan& plan) {
  const auto count = static_cast<std::uint32_t>(plan.graph().size());
  slots_.reserve(plan.size());
  first_.reserve(count + 1);
  for (std::uint32_t n = 0; n < count; ++n) {
    first_.push_back(static_cast<std::uint32_t>(slots_.size()));
    for (const PlanEntry& entry : plan.edges(NodeIndex(n))) slots_.push_back(entry.slot);
    const PlanEntry* const output = plan.output(NodeIndex(n));
    if (output != nullptr && !is_float(output->spec)) slots_.push_back(output->slot);
  }
  first_.push_back(static_cast<std::uint32_t>(slots_.size()));
}

std::optional<std::uint32_t> SlotTable::find(Slot slot) const {
  const std::uint32_t node = slot.node.index();
  for (std::uint32_t i = first_[node]; i < first_[node + 1]; ++i)
    if (slots_[i] == slot) return i;
  return std::nullopt;
}

SharingGroups::SharingGroups(const AnnotationPlan& plan) : table_(plan) {
  Union slots(plan, table_, conflicts_);
  const auto count = static_cast<std::uint32_t>(table_.slots().size());
  std::vector<std::uint32_t> group_of_root(count, kNone), first, decides;
  group_of_.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t root = slots.root(i);
    if (group_of_root[root] == kNone) {
      group_of_root[root] = static_cast<std::uint32_t>(groups_.size());
      SharingGroup& group = groups_.emplace_back();
      group.root = table_.slots()[root];
      check_first(table_, slots, i, conflicts_);
      decides.push_back(slots.resolve(i));
      if (decides.back() != kNone) group.spec = table_.slots()[decides.back()];
    }
    const std::uint32_t group = group_of_[i] = group_of_root[root];
    groups_[group].members.push_back(table_.slots()[i]);
    if (decides[group] != kNone && !slots.is_shared(i) && slots.spec(i) != slots.spec(decides[group]))
      conflicts_.push_back({ConflictKind::kUnequalObservers, *groups_[group].spec, table_.slots()[i]});
  }
}

std::optional<std::uint32_t> SharingGroups::group_of(Slot slot) const {
  const std::optional<std::uint32_t> at = table_.find(slot);
  if (!at) return std::nullopt;
  return group_of_[*at];
}

}  // namespace tosaic::quant
