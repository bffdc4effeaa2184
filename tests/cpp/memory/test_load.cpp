// Compares the tree of loads with a list of loads.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tosaic/memory/load.h"

namespace tosaic::memory {

TEST_CASE("ranges of loads have the maxima of a list", "[memory]") {
  const unsigned seed = 4;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const std::size_t steps = 1 + random() % 20;
    Load load(steps);
    std::vector<std::int64_t> list(steps);
    for (int change = 0; change < 40; ++change) {
      const auto first = static_cast<std::uint32_t>(random() % steps);
      const auto last = static_cast<std::uint32_t>(first + random() % (steps - first));
      const std::int64_t bytes = static_cast<std::int64_t>(random() % 200) - 100;
      load.add({first, last}, bytes);
      for (std::uint32_t step = first; step <= last; ++step) list[step] += bytes;
      REQUIRE(load.greatest() == std::ranges::max(list));
      const auto from = static_cast<std::uint32_t>(random() % steps);
      REQUIRE(load.greatest({from, static_cast<std::uint32_t>(steps - 1)}) ==
              *std::max_element(list.begin() + from, list.end()));
    }
  }
}

}  // namespace tosaic::memory
