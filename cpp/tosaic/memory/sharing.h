// sharing: which results of a graph share memory, and with which value. plan.h has the rules.
//
//   a -> relu -> b -> cat(b, d) -> c        b in place of a; then a, and b with it, becomes a part of c
//
// Views and results in place are decided first, in the order of the nodes. Parts of concatenations are
// decided after them: an operand may be a part only if it does not have the memory of an output, and if no
// later value is computed in that memory.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tosaic/analysis/liveness.h"
#include "tosaic/memory/load.h"
#include "tosaic/memory/plan.h"

namespace tosaic::memory {

class Sharing {
 public:
  // Writes `alias` and `alias_of` of the plan.
  Sharing(const Graph& graph, std::span<const NodeNeeds> needs, const PlanOptions& options, MemoryPlan& plan);

  // The value that owns the memory of a value, and the first byte of the value in it.
  [[nodiscard]] std::uint32_t root(ValueId value) const { return owner_of(value.index()).root; }
  [[nodiscard]] std::size_t offset(ValueId value) const { return owner_of(value.index()).offset; }
  // Per value, whether it owns memory that has hidden results only (NodeNeeds::is_hidden).
  [[nodiscard]] std::vector<bool> hidden_roots() const;
  [[nodiscard]] const analysis::Lifetime& live(ValueId value) const { return live_[value.index()]; }

 private:
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  struct Owner {
    std::uint32_t root = 0;
    std::size_t offset = 0;
  };
  // A value that owns memory.
  struct Root {
    std::uint32_t contents = 0;             // the value that is written there last
    std::uint32_t contents_end = 0;         // the last step that reads these contents
    std::uint32_t overwritten_at = kNever;  // the first step that overwrites the contents of the root itself
    bool is_outside = false;                // the memory is not in the arena, or hidden
    analysis::Lifetime live;                // of all values in the memory
  };
  struct Part {
    std::uint32_t root = 0;
    std::size_t offset = 0;
  };

  void write_early();
  void read_late();
  [[nodiscard]] Owner owner_of(std::uint32_t value) const;
  void share(const Node& node);
  void join(ValueId value, ValueId with, std::size_t offset, AliasKind kind);
  void share_views(const Node& node, const std::vector<std::size_t>& offsets);
  void share_in_place(const Node& node, std::uint32_t allowed);
  [[nodiscard]] bool may_overwrite(const Node& node, std::size_t i, std::uint32_t step) const;

  void share_parts();
  void find_spans();
  void find_outside();
  [[nodiscard]] Load count_load() const;
  [[nodiscard]] std::int64_t arena_bytes(std::uint32_t root) const;
  [[nodiscard]] std::vector<Part> parts_of(const Node& node, const std::vector<std::size_t>& offsets) const;
  void choose(std::uint32_t whole, std::vector<Part>& parts, Load& load) const;
  void write_into(ValueId whole, std::span<const Part> parts);

  const Graph& graph_;
  std::span<const NodeNeeds> needs_;
  const PlanOptions& options_;
  MemoryPlan& plan_;
  std::vector<analysis::Lifetime> live_;
  std::vector<Owner> owner_;  // per value; that of a root which became a part is the whole
  std::vector<Root> roots_;   // per value
};

}  // namespace tosaic::memory
