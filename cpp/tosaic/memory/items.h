// items: what a placement moves. Buffers that share memory move together, as one item.
//
//   steps    0 1 2 3 4 5 6 7           cliques   0   1   2
//   a        ###                       a         #
//   b        #######                   b         #   #
//   c            #####                 c             #
//   d                  ###             d                 #
//
// A clique is a set of items that share a step, and not a part of a larger such set. Two items share a step
// if and only if they share a clique, so the cliques replace the steps. There are at most as many as items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/memory/place.h"

namespace tosaic::memory {

// A root buffer and all buffers that share its memory.
struct Item {
  std::size_t bytes = 0, alignment = 1;
  std::uint32_t first = 0, last = 0;
};

struct Items {
  std::vector<Item> items;
  std::vector<std::uint32_t> item_of;       // per buffer
  std::vector<std::size_t> offset_in_item;  // per buffer
  std::size_t grain = 1;                    // every offset is a multiple of it
};

// Offsets of items in one arena.
struct Arrangement {
  std::vector<std::size_t> offsets;  // one per item
  std::size_t bytes = 0;             // the size of the arena
};

// Throws InvalidGraph for a malformed list of buffers; see place().
[[nodiscard]] Items group(std::span<const Buffer> buffers);

// The bytes at each step, from step 0 to the last one of any item.
[[nodiscard]] std::vector<std::size_t> live_bytes_of(std::span<const Item> items);

// For each item, the most live bytes of any of its steps.
[[nodiscard]] std::vector<std::size_t> busiest_of(std::span<const Item> items);

// The items in the order of their first steps.
[[nodiscard]] std::vector<std::uint32_t> in_time(std::span<const Item> items);

// The number of pairs of items that share a step.
[[nodiscard]] std::size_t count_pairs(std::span<const Item> items);

// The cliques (top of this file: no clique is part of another), in order of time, and the first and the last
// clique of each item. Items without bytes are in no clique, and have 0 for both.
struct Cliques {
  std::vector<std::vector<std::uint32_t>> members;
  std::vector<std::uint32_t> first, last;  // per item
};
[[nodiscard]] Cliques cliques_of(std::span<const Item> items);

[[nodiscard]] constexpr std::size_t round_up(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

}  // namespace tosaic::memory
