// sharing: which slots of a plan have one scale and zero point, as torchao's prepare decides it.
//
//   conv -> relu    output(conv) int8, edge(conv -> relu) int8, output(relu) shared with edge(conv -> relu)
//                   one group of three: the first two share implicitly, the third explicitly
//
// Explicit sharing: a slot with a shared spec joins the group of the slot that it refers to. Implicit
// sharing: an edge joins the group of another edge from its producer, or of the producer's output, if both
// specs resolve to equal fields (sharing_key) and the user allows implicit sharing. Slots are visited in the
// order of the plan, users in the order of the graph, and groups join by union-find. torchao does all three
// in the same way, and in unusual plans the result depends on them.
//
// The first slot of a group decides its spec. Where torchao raises an error, or recurses forever, the result
// has a conflict, and the reference at fault is passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/quant/annotation/plan.h"

namespace tosaic::quant {

struct SharingGroup {
  std::vector<Slot> members;  // in the order of the plan
  Slot root;                  // of the union-find tree: what references of the group resolve to
  std::optional<Slot> spec;   // the member with the group's spec, which is not shared; none: a conflict
};

enum class ConflictKind : std::uint8_t {
  // `slot` has the spec of the group. The spec of `other` has the same fields, but another observer, which
  // has no effect. Specs with different fields are never in one group.
  kUnequalObservers,
  kMissingReference,  // `slot` refers to `other`, which has no spec
  kReferenceCycle,    // the references from `slot` lead in a circle
  kLaterReference,    // `slot`, the first of its group, refers to `other`, a later one: torchao refuses it
  kFloatReference,    // `slot` is derived from `other`, which is float
};

struct SharingConflict {
  ConflictKind kind;
  Slot slot, other;
  bool operator==(const SharingConflict&) const = default;
};

[[nodiscard]] std::string_view to_string(ConflictKind kind);
// A sentence without its final full stop.
[[nodiscard]] std::string describe(const CallGraph& graph, const SharingConflict& conflict);

// Positions of slots: the slots of a plan by number, in order.
class SlotTable {
 public:
  // All slots of the plan, apart from outputs with FloatSpec: an annotation has no place for them.
  explicit SlotTable(const AnnotationPlan& plan);
  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  // None if the slot is not in the table. Takes time linear in the number of the node's slots.
  [[nodiscard]] std::optional<std::uint32_t> find(Slot slot) const;

 private:
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> first_;  // by node, its first slot; at the end, the number of slots
};

class SharingGroups {
 public:
  explicit SharingGroups(const AnnotationPlan& plan);

  // In the order of their first members, which is torchao's group id.
  [[nodiscard]] const std::vector<SharingGroup>& groups() const { return groups_; }
  // None if the slot has no spec, or is an output that is explicitly float.
  [[nodiscard]] std::optional<std::uint32_t> group_of(Slot slot) const;
  [[nodiscard]] const std::vector<SharingConflict>& conflicts() const { return conflicts_; }

 private:
  SlotTable table_;
  std::vector<std::uint32_t> group_of_;  // by position in the table
  std::vector<SharingGroup> groups_;
  std::vector<SharingConflict> conflicts_;
};

}  // namespace tosaic::quant
