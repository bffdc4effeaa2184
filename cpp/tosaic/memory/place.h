// place: buffers with lifetimes to offsets in one arena.
//
//   bytes                     A buffer is a rectangle: its lifetime (steps, fixed) by its bytes (an offset,
//   chosen).
//    ^   +--------+           Rectangles that overlap in time must not overlap in bytes. The arena is as high
//    as the |   |   b    +----+      highest rectangle; no arrangement is lower than the sum of the live
//    bytes at some step | +-+--+-----+ d  |      (the lower bound), and `bytes - lower_bound` bounds what is
//    lost. | | a  |  c  |    |
//    +-+----+-----+----+--> steps
//
// Buffers that share memory on purpose name a root: views of it, parts of it, or results computed in its
// place. They move with the root and its lifetime becomes the hull of theirs.
//
// Several greedy orders are tried (first fit and best fit), then a local search moves buffers that touch the
// top forward in the order, until the bound is met or the budget is spent. The same input gives the same
// offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tosaic::memory {

enum class AliasKind : std::uint8_t {
  kNone,     // memory of its own
  kView,     // the same contents as its target, or a part of them
  kInPlace,  // overwrites the target's bytes at its first step, the target's last
};

inline constexpr std::uint32_t kNoTarget = 0xffffffffu;

// Needed in steps first..last, both inclusive. `alignment` is a power of two.
struct Buffer {
  std::size_t bytes = 0;
  std::size_t alignment = 64;
  std::uint32_t first = 0, last = 0;
  AliasKind alias = AliasKind::kNone;
  std::uint32_t target = kNoTarget;  // an earlier buffer
  std::size_t target_offset = 0;     // bytes from the start of the target to the start of this buffer
};

struct Placement {
  std::vector<std::size_t> offsets;  // one per buffer
  std::size_t bytes = 0;             // of the arena
  std::size_t lower_bound = 0;
  [[nodiscard]] std::size_t gap() const { return bytes - lower_bound; }
};

struct PlaceOptions {
  std::size_t budget = 10'000'000;  // comparisons of the local search; about 10 ns each
};

// Throws InvalidGraph for a malformed list (alignment, target, part outside its target) and InternalError
// should the independent check (check.h) find the result wrong.
[[nodiscard]] Placement place(std::span<const Buffer> buffers, const PlaceOptions& options = {});

// No arena that respects the aliases is smaller: the greatest sum, over the steps, of live bytes.
[[nodiscard]] std::size_t lower_bound(std::span<const Buffer> buffers);

// Bytes live at each step; shared memory counts once.
[[nodiscard]] std::vector<std::size_t> live_bytes(std::span<const Buffer> buffers);

}  // namespace tosaic::memory
