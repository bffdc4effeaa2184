// Arrangements for several threads: bytes that change hands, against a count byte by byte, and items that are
// moved.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "tosaic/memory/greedy.h"
#include "tosaic/memory/owners.h"
#include "tosaic/memory/place.h"

namespace tosaic::memory {
namespace {

Items random_items(std::mt19937& random, std::size_t count) {
  Items items;
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::uint32_t>(random() % 12);
    items.items.push_back({random() % 5 == 0 ? 0 : random() % 700, std::size_t{1} << random() % 4, first,
                           first + static_cast<std::uint32_t>(random() % 4)});
  }
  items.grain = std::size_t{1} << random() % 4;
  return items;
}

// The same as bytes_that_change_hands(), with one entry for each byte.
std::size_t count_byte_by_byte(const std::vector<Item>& items, const Arrangement& arrangement,
                               std::uint32_t threads) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return items[a].first < items[b].first; });
  std::vector<std::uint32_t> writers(arrangement.bytes, threads);
  std::size_t changes = 0;
  for (int run = 0; run < 2; ++run) {
    changes = 0;
    for (const std::uint32_t i : order) {
      std::uint32_t thread = 0;
      for (std::size_t byte = 0; byte < items[i].bytes; ++byte) {
        while (byte >= items[i].bytes * (thread + 1) / threads) ++thread;
        std::uint32_t& writer = writers[arrangement.offsets[i] + byte];
        changes += writer != thread && writer != threads ? 1 : 0;
        writer = thread;
      }
    }
  }
  return changes;
}

bool is_valid(const Items& items, const Arrangement& arrangement) {
  for (std::size_t i = 0; i < items.items.size(); ++i) {
    const Item& a = items.items[i];
    const std::size_t begin = arrangement.offsets[i], end = begin + a.bytes;
    if (end > arrangement.bytes || begin % std::max(a.alignment, items.grain) != 0) return false;
    for (std::size_t k = 0; k < i; ++k) {
      const Item& b = items.items[k];
      const std::size_t other = arrangement.offsets[k];
      if (a.bytes == 0 || b.bytes == 0 || a.first > b.last || b.first > a.last) continue;
      if (begin < other + b.bytes && other < end) return false;
    }
  }
  return true;
}

TEST_CASE("bytes that change hands are counted as byte by byte", "[memory]") {
  std::mt19937 random(1);
  std::size_t total = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    const Items items = random_items(random, 1 + random() % 20);
    Arrangement arrangement{{}, 2000};  // items may overlap: only who writes after whom counts
    for (const Item& item : items.items) arrangement.offsets.push_back(random() % (2001 - item.bytes));
    const auto threads = static_cast<std::uint32_t>(1 + random() % 5);
    const std::size_t changes = bytes_that_change_hands(items.items, arrangement.offsets, threads);
    REQUIRE(changes == count_byte_by_byte(items.items, arrangement, threads));
    if (threads == 1) REQUIRE(changes == 0);
    total += changes;
  }
  REQUIRE(total > 0);
}

TEST_CASE("items are moved within the arena, and fewer bytes change hands", "[memory]") {
  std::mt19937 random(2);
  int improved = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    const Items items = random_items(random, 1 + random() % 20);
    const Arrangement before = place_in_orders(items, 0);
    const auto threads = static_cast<std::uint32_t>(2 + random() % 4);
    const Arrangement after = keep_owners(items, before, threads);
    REQUIRE(is_valid(items, after));
    REQUIRE(after.bytes == before.bytes);
    const std::size_t changes = bytes_that_change_hands(items.items, before.offsets, threads);
    REQUIRE(bytes_that_change_hands(items.items, after.offsets, threads) <= changes);
    improved += bytes_that_change_hands(items.items, after.offsets, threads) < changes ? 1 : 0;
  }
  REQUIRE(improved > 100);
}

TEST_CASE("small results lie in the middle of large ones", "[memory]") {
  // Blocks of a network: a large result, then a small one, and so on. The first step fills the arena.
  std::vector<Buffer> buffers{{4096, 64, 0, 0}};
  for (std::uint32_t step = 1; step < 40; ++step)
    buffers.push_back({step % 2 == 0 ? std::size_t{256} : std::size_t{1024}, 64, step, step + 1});
  const auto changes = [&](std::uint32_t threads) {
    PlaceOptions options;
    options.threads = threads;
    const Placement placement = place(buffers, options);
    REQUIRE(placement.bytes == 4096);
    std::vector<Item> items;
    for (const Buffer& buffer : buffers)
      items.push_back({buffer.bytes, buffer.alignment, buffer.first, buffer.last});
    return bytes_that_change_hands(items, placement.offsets, 2);
  };
  const std::size_t one = changes(1), two = changes(2);
  REQUIRE(one > 0);
  REQUIRE(two <= 2048);  // only where the run begins anew: between the last results and the first one
  REQUIRE(two < one);
}

}  // namespace
}  // namespace tosaic::memory
