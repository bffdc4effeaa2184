// Compares placements with the independent checker, with brute force and with hand-made cases.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "tosaic/base/error.h"
#include "tosaic/memory/check.h"
#include "tosaic/memory/place.h"

namespace tosaic::memory {
namespace {

std::vector<Buffer> random_buffers(std::mt19937& random, std::size_t count, std::uint32_t steps,
                                   std::size_t max_bytes) {
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::uint32_t>(random() % steps);
    const auto last = std::min<std::uint32_t>(steps - 1, first + static_cast<std::uint32_t>(random() % 4));
    buffers.push_back({random() % max_bytes, std::size_t{1} << random() % 7, first, last});
  }
  return buffers;
}

// The least arena, a multiple of the least alignment. For some order of the buffers, placing each at its
// lowest free offset is optimal, so all orders are tried.
std::size_t best_by_brute_force(const std::vector<Buffer>& buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::size_t best = static_cast<std::size_t>(-1);
  std::size_t grain = 64;
  for (const Buffer& buffer : buffers) grain = std::min(grain, buffer.alignment);
  do {
    std::vector<std::size_t> offsets(buffers.size());
    std::size_t top = 0;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const Buffer& buffer = buffers[order[k]];
      std::size_t offset = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t j = 0; j < k; ++j) {
          const Buffer& other = buffers[order[j]];
          const bool together = buffer.first <= other.last && other.first <= buffer.last;
          if (!together || offset >= offsets[order[j]] + other.bytes ||
              offsets[order[j]] >= offset + buffer.bytes)
            continue;
          const std::size_t end = offsets[order[j]] + other.bytes;
          offset = (end + buffer.alignment - 1) / buffer.alignment * buffer.alignment;
          moved = true;
        }
      }
      offsets[order[k]] = offset;
      top = std::max(top, offset + buffer.bytes);
    }
    best = std::min(best, (top + grain - 1) / grain * grain);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

// 1,500 long-lived buffers, as in an unrolled layer, between short-lived ones. They make too many
// pairs for place() to compare them all.
TEST_CASE("long lists of buffers are placed without comparing every pair") {
  constexpr std::uint32_t kSteps = 1500;
  std::vector<Buffer> buffers;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    buffers.push_back({512, 64, 4 * step, 4 * kSteps});
    for (std::uint32_t i = 0; i < 3; ++i) buffers.push_back({2048, 64, 4 * step + i, 4 * step + i + 1});
  }
  const Placement placement = place(buffers);
  CHECK(placement_fault(buffers, placement).empty());
  CHECK(placement.bytes < placement.lower_bound + placement.lower_bound / 50);
}

TEST_CASE("adjacent gaps are merged") {
  std::vector<Buffer> buffers;
  for (std::uint32_t i = 0; i < 2100; ++i) buffers.push_back({64, 64, 0, 1});
  buffers.push_back({std::size_t{2100} * 64, 64, 2, 3});
  const Placement placement = place(buffers);
  CHECK(placement.bytes == placement.lower_bound);
}

}  // namespace

TEST_CASE("random buffers are placed without fault and never below the bound", "[memory]") {
  const unsigned seed = 20;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto buffers = random_buffers(random, random() % 60, 20, 1000);
    const Placement placement = place(buffers, {.budget = 20'000});
    REQUIRE(placement_fault(buffers, placement).empty());
    REQUIRE(placement.bytes >= placement.lower_bound);
    const std::vector<std::size_t> live = live_bytes(buffers);
    // a search may prove more than the greatest load
    REQUIRE(placement.lower_bound >= (live.empty() ? 0 : std::ranges::max(live)));
  }
}

TEST_CASE("tiny cases reach the optimum that brute force finds", "[memory]") {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    auto buffers = random_buffers(random, 6, 5, 1000);
    for (Buffer& buffer : buffers) {
      buffer.alignment = 64;
      buffer.bytes += 1;
    }
    REQUIRE(place(buffers).bytes == best_by_brute_force(buffers));
  }
}

TEST_CASE("brute force finds the same bounds above the greatest load", "[memory]") {
  const unsigned seed = 8;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int above = 0;
  for (int round = 0; round < 150; ++round) {
    std::vector<Buffer> buffers = random_buffers(random, 6, 5, 12);
    for (Buffer& buffer : buffers) buffer.alignment = std::size_t{1} << random() % 4;
    buffers[0].alignment = 1;
    for (Buffer& buffer : buffers) ++buffer.bytes;
    const Placement placement = place(buffers);
    const std::size_t least = best_by_brute_force(buffers);
    REQUIRE(placement.bytes == least);
    REQUIRE(placement.lower_bound == least);
    above += least > std::ranges::max(live_bytes(buffers));
  }
  CHECK(above > 20);
}

TEST_CASE("the same buffers get the same offsets", "[memory]") {
  std::mt19937 random(3);
  const auto buffers = random_buffers(random, 80, 30, 5000);
  REQUIRE(place(buffers).offsets == place(buffers).offsets);
}

TEST_CASE("a chain needs two buffers at a time", "[memory]") {
  std::vector<Buffer> chain;
  for (std::uint32_t i = 0; i < 10; ++i) chain.push_back({640, 64, i, i + 1});
  const Placement placement = place(chain);
  REQUIRE(placement.bytes == 1280);
  REQUIRE(placement.gap() == 0);
}

TEST_CASE("views are inside their target, and in-place results at its offset", "[memory]") {
  const std::vector<Buffer> buffers{
      {256, 64, 0, 2},
      {128, 64, 1, 3, AliasKind::kView, 0, 128},
      {256, 64, 4, 6},
      {256, 64, 6, 8, AliasKind::kInPlace, 2, 0},
  };
  const Placement placement = place(buffers);
  REQUIRE(placement.offsets[1] == placement.offsets[0] + 128);
  REQUIRE(placement.offsets[3] == placement.offsets[2]);
  REQUIRE(placement.bytes == 256);
}

TEST_CASE("the checker finds each kind of fault", "[memory]") {
  const std::vector<Buffer> two{{64, 64, 0, 2}, {64, 64, 1, 3}};
  CHECK(placement_fault(two, {{0, 64}, 128, 128}).empty());
  CHECK(placement_fault(two, {{0, 64}, 100, 128}) == "buffer 1 ends outside the arena");
  CHECK(placement_fault(two, {{0, 65}, 200, 128}) == "buffer 1 is not aligned");
  CHECK(placement_fault(two, {{0, 0}, 128, 128}) == "buffers 0 and 1 overlap while both are live");
  CHECK(placement_fault(two, {{0}, 128, 128}) == "not one offset per buffer");

  std::vector<Buffer> view{{128, 64, 0, 2}, {64, 64, 1, 3, AliasKind::kView, 0, 64}};
  CHECK(placement_fault(view, {{0, 64}, 128, 128}).empty());
  CHECK(placement_fault(view, {{0, 0}, 128, 128}) == "buffer 1 is away from its target");

  std::vector<Buffer> in_place{{64, 64, 0, 1}, {64, 64, 1, 3, AliasKind::kInPlace, 0, 0}};
  CHECK(placement_fault(in_place, {{0, 0}, 64, 64}).empty());
  in_place[0].last = 2;  // read after it was overwritten
  CHECK(placement_fault(in_place, {{0, 0}, 64, 64}) == "buffers 0 and 1 overlap while both are live");
  CHECK_THROWS_AS(check(in_place, {{0, 0}, 64, 64}), InternalError);

  const std::vector<Buffer> circle{{64, 64, 0, 2, AliasKind::kView, 1, 0},
                                   {64, 64, 0, 2, AliasKind::kView, 0, 0}};
  CHECK(placement_fault(circle, {{0, 0}, 64, 64}) == "buffer 0 shares memory with itself");
  const std::vector<Buffer> nowhere{{64, 64, 0, 2, AliasKind::kPart, 5, 0}};
  CHECK(placement_fault(nowhere, {{0}, 64, 64}) == "buffer 0 shares memory with a buffer that is not there");
}

TEST_CASE("malformed buffers are refused", "[memory]") {
  CHECK_THROWS_WITH(place(std::vector<Buffer>{{8, 3, 0, 0}}),
                    "[memory/place] buffer 0 has an alignment that is no power of two");
  CHECK_THROWS_WITH(place(std::vector<Buffer>{{8, 4, 2, 1}}),
                    "[memory/place] buffer 0 ends before it begins");
  CHECK_THROWS_WITH(place(std::vector<Buffer>{{8, 4, 0, 1}, {8, 4, 0, 1, AliasKind::kView, 1, 0}}),
                    "[memory/place] buffer 1 shares memory with itself");
  CHECK_THROWS_WITH(place(std::vector<Buffer>{{8, 4, 0, 1}, {8, 4, 0, 1, AliasKind::kView, 0, 4}}),
                    "[memory/place] buffer 1 does not fit into the buffer whose memory it shares");
}

TEST_CASE("without buffers the arena is empty", "[memory]") {
  const Placement placement = place({});
  CHECK(placement.bytes == 0);
  CHECK(placement.lower_bound == 0);
}

}  // namespace tosaic::memory
