// plan: where each value of a graph lives while it runs.
//
//   x (input) -> conv -> a -> relu -> b -> reshape -> c -> add(c, d) -> e (output)
//                        [ a, b in place of a, c a view of b, e in place of c ]   one buffer: the caller's
//
// Constants stay where they are, inputs are read from the caller's memory, an output is computed in the
// caller's memory where it can be; everything else shares one arena. Rules of sharing:
//   - view operators, and slices and splits of the outermost extent that keep the alignment, are views of
//   their operand;
//   - a result takes the place of an operand if the kernel allows it, the operand's contents die at that
//   node, both
//     have the same number of bytes, and no other operand of the node lies in the same memory.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/memory/place.h"

namespace tosaic::memory {

// Every buffer of the arena is aligned to this many bytes.
inline constexpr std::size_t kAlignment = 64;

enum class Area : std::uint8_t { kNone, kArena, kInput, kOutput, kConstant };

struct Location {
  Area area = Area::kNone;
  std::uint32_t slot = 0;  // inputs: index into inputs(); outputs: into outputs(); constants: the value
  std::size_t offset = 0;  // bytes
  bool operator==(const Location&) const = default;
};

// What the plan must know of a node beyond the graph.
struct NodeNeeds {
  std::size_t scratch_bytes = 0;
  std::uint32_t in_place = 0;  // bit i: result 0 may overwrite operand i
  bool writes_all = false;     // the results are written even where they could be views (callables, copies)
  std::optional<std::uint32_t> writer = {};  // an earlier step that may write the results in this one's stead
};

struct PlanOptions {
  bool share = true;             // views and in-place results; without it every result has memory of its own
  bool inputs_in_arena = false;  // count user inputs and outputs into the arena, as a device would hold them
  bool outputs_in_arena = false;
  PlaceOptions place = {};
};

struct MemoryPlan {
  std::vector<Location> values;         // one per value
  std::vector<AliasKind> alias;         // one per value: how it came to share memory
  std::vector<ValueId> alias_of;        // one per value: with which value
  std::vector<std::size_t> scratch;     // one per node: offset in the arena
  std::vector<std::size_t> live_bytes;  // one per step: arena bytes in use
  std::size_t arena_bytes = 0;
  std::size_t lower_bound = 0;
  std::size_t unshared_bytes = 0;  // all results and scratch side by side
  [[nodiscard]] std::size_t gap() const { return arena_bytes - lower_bound; }
};

// `needs` has one entry per node, or is empty (no scratch, nothing in place).
[[nodiscard]] MemoryPlan plan_memory(const Graph& graph, std::span<const NodeNeeds> needs,
                                     const PlanOptions& options = {});

// True if `node` gives its results as views of operand 0, with the byte offset of each result in the operand:
// views, slice, select, split and unbind along the outermost extent where every offset is a multiple of
// kAlignment.
[[nodiscard]] std::optional<std::vector<std::size_t>> view_offsets(const Graph& graph, const Node& node);

}  // namespace tosaic::memory
