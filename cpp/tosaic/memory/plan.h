// plan: decides where each value of a graph is in memory while the graph runs.
//
//   x (input) -> conv -> a -> relu -> b -> reshape -> c -> add(c, d) -> e (output)
//                        [ a, b in place of a, c a view of b, e in place of c ]   one buffer: the caller's
//
// Constants stay where they are. Inputs are read from the caller's memory. An output is computed in the
// caller's memory where possible. All other values share one arena. The rules of sharing:
//   - The results of view operators, and of slices and splits of the outermost extent that preserve the
//     alignment, are views of their operand.
//   - A result is computed in place of an operand if the kernel allows it, the operand is in the memory of a
//     result (not of an input or constant), its contents are not read after that node, operand and result
//     have the same number of bytes, and no other operand of the node is in the same memory.
//   - An operand of a concatenation along the outermost axis is written into the result (sharing.h) if the
//     operand is a result, fills its memory, which is not an output's, and has an aligned offset. The result
//     then has its memory from the first step of its parts on, so the lower bound must not rise by this.
//
// A kernel that computes several nodes at once does not write the values between them. These values have
// memory after the arena, for runs that show every value: a run that shows none never touches it.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/memory/place.h"

namespace tosaic::memory {

// Every buffer of the arena is aligned to this many bytes.
inline constexpr std::size_t kAlignment = 64;

enum class Area : std::uint8_t { kNone, kArena, kInput, kOutput, kConstant };
[[nodiscard]] std::string_view to_string(Area area);

struct Location {
  Area area = Area::kNone;
  std::uint32_t slot = 0;  // inputs: index into inputs(); outputs: into outputs(); constants: the value
  std::size_t offset = 0;  // in bytes
  bool operator==(const Location&) const = default;
};

// What the plan must know about a node that the graph does not say.
struct NodeNeeds {
  std::size_t scratch_bytes = 0;
  std::uint32_t in_place = 0;  // bit i: result 0 may overwrite operand i
  bool writes_all = false;     // write the results even if they could be views (callables, copies)
  std::optional<std::uint32_t> writer = {};  // an earlier step that may write the results (fused)
  // A later step that may read some operands instead of this one: operand i if bit i of `read_later` is set.
  std::optional<std::uint32_t> reader = {};
  std::uint32_t read_later = 0;
  bool is_hidden = false;  // only runs that show every value write the results
};

struct PlanOptions {
  bool share = true;             // views and in-place results; false: each result has memory of its own
  bool inputs_in_arena = false;  // user inputs and outputs are in the arena, as on a device
  bool outputs_in_arena = false;
  PlaceOptions place = {};
};

struct MemoryPlan {
  std::vector<Location> values;         // one per value
  std::vector<AliasKind> alias;         // one per value: how it shares memory with another value
  std::vector<ValueId> alias_of;        // one per value: the value with which it shares memory
  std::vector<std::size_t> scratch;     // one per node: offset in the arena
  std::vector<std::size_t> live_bytes;  // one per step: arena bytes in use
  std::size_t arena_bytes = 0;
  std::size_t lower_bound = 0;
  std::size_t hidden_bytes = 0;    // after the arena, for hidden results
  std::size_t unshared_bytes = 0;  // the sum of all results and scratch
  [[nodiscard]] std::size_t gap() const { return arena_bytes - lower_bound; }
  [[nodiscard]] std::size_t all_bytes() const { return arena_bytes + hidden_bytes; }
};

// `needs` has one entry per node, or is empty (no scratch, nothing in place).
[[nodiscard]] MemoryPlan plan_memory(const Graph& graph, std::span<const NodeNeeds> needs,
                                     const PlanOptions& options = {});

// The byte offset in operand 0 of each result of `node`, if the results are views of operand 0. Such nodes
// are view operators; and slice, select, split and unbind along the outermost axis of extent other than 1,
// with offsets that are multiples of `alignment`. Returns nothing for other nodes.
[[nodiscard]] std::optional<std::vector<std::size_t>> view_offsets(const Graph& graph, const Node& node,
                                                                   std::size_t alignment = kAlignment);

// For each operand of a concatenation along the outermost axis of extent other than 1, the byte offset in the
// result, or kNoPart if the operand is empty or the offset is not a multiple of `alignment`. Returns nothing
// for other nodes.
inline constexpr std::size_t kNoPart = static_cast<std::size_t>(-1);
[[nodiscard]] std::optional<std::vector<std::size_t>> part_offsets(const Graph& graph, const Node& node,
                                                                   std::size_t alignment = kAlignment);

// For each operand of a node, true if the node is a concatenation and the operand is a part of the result,
// which the node does not copy.
[[nodiscard]] std::vector<bool> operands_in_place(const Graph& graph, const Node& node,
                                                  const MemoryPlan& plan);

}  // namespace tosaic::memory
