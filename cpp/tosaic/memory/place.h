// place: assigns offsets in one arena to buffers with lifetimes.
//
//   bytes                     A buffer is a rectangle: its lifetime (steps, fixed) by its bytes (at an offset
//    ^   +--------+           that is chosen). Rectangles that overlap in time must not overlap in bytes.
//    |   |   b    +----+      The arena is as high as the highest rectangle. No arrangement is lower than
//    | +-+--+-----+ d  |      the sum of the live bytes at any step; the greatest sum is the lower bound.
//    | | a  |  c  |    |      `bytes - lower_bound` bounds the waste.
//    +-+----+-----+----+--> steps
//
// Buffers that share memory on purpose name a target: they are views of it, results computed in its place, or
// parts of it that are written before it. The buffer at the end of a chain of targets is the root. A root and
// the buffers that lead to it are moved as one, whose lifetime begins with the earliest of their lifetimes
// and ends with the latest.
//
// The flow (one file each):
//
//   buffers --items--> items that move, lower bound
//           --greedy-> the best of several orders of placing (first fit and best fit)
//           --pack---> above the bound: a search decides whether the items fit at the bound. If they do not,
//                      the bound rises
//           --greedy-> if the search was not finished: local search, then pack at sizes between
//           --owners-> for several threads: an arrangement as small, with fewer bytes that change their
//                      writers
//           --check--> offsets
//
// If too many pairs of buffers overlap in time, they are placed in one sweep over the steps instead (sweep).
// The same input has the same offsets, unless a deadline ends the search.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tosaic::memory {

enum class AliasKind : std::uint8_t {
  kNone,     // memory of its own
  kView,     // holds the contents of its target, or a part of them
  kInPlace,  // overwrites the target's bytes at its first step, which is the target's last
  kPart,     // its final contents, or those computed in its place, become a part of the target's
};
[[nodiscard]] std::string_view to_string(AliasKind kind);

inline constexpr std::uint32_t kNoTarget = 0xffffffffu;

// A buffer is needed in steps first..last, both inclusive. `alignment` is a power of two.
struct Buffer {
  std::size_t bytes = 0;
  std::size_t alignment = 64;
  std::uint32_t first = 0, last = 0;
  AliasKind alias = AliasKind::kNone;
  std::uint32_t target = kNoTarget;
  std::size_t target_offset = 0;  // bytes from the start of the target to the start of this buffer
};

struct Placement {
  std::vector<std::size_t> offsets;  // one per buffer
  std::size_t bytes = 0;             // the size of the arena
  std::size_t lower_bound = 0;       // no arena can be smaller
  [[nodiscard]] std::size_t gap() const { return bytes - lower_bound; }
};

struct PlaceOptions {
  std::size_t budget = 10'000'000;  // units of the searches; a unit is about a nanosecond
  std::size_t enough = 0;           // the search ends at an arena of this size
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  // ends the searches earlier
  // The threads that compute the buffers. If there are several, items move so that threads write bytes that
  // they wrote before, as long as the arena does not grow (owners.h).
  std::uint32_t threads = 1;
};

// Throws InvalidGraph for a malformed list (alignment, target, part outside its target), and InternalError
// if the independent check (check.h) finds a fault in the result.
[[nodiscard]] Placement place(std::span<const Buffer> buffers, const PlaceOptions& options = {});

// Bytes live at each step; shared memory counts once. The greatest number is the first lower bound.
[[nodiscard]] std::vector<std::size_t> live_bytes(std::span<const Buffer> buffers);

}  // namespace tosaic::memory
