// Compares the heights that items reach with the sums of all choices of items.
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tosaic/memory/heights.h"

namespace tosaic::memory {

TEST_CASE("heights are the sums of some items and of waste", "[memory]") {
  const unsigned seed = 6;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::size_t most = 1 + random() % 300, waste = random() % 4;
    std::set<std::size_t> sums{0};
    Heights heights;
    heights.start(most);
    for (std::size_t count = random() % 8; count > 0; --count) {
      const std::size_t units = 1 + random() % 90;
      heights.add(units);
      for (const std::size_t sum : std::set<std::size_t>(sums)) sums.insert(sum + units);
    }
    heights.add_waste(waste);
    std::set<std::size_t> reached;
    for (const std::size_t sum : sums)
      for (std::size_t extra = 0; extra <= waste; ++extra) reached.insert(sum + extra);
    for (std::size_t units = 0; units <= most; ++units) {
      const auto next = reached.lower_bound(units);
      if (next != reached.end() && *next <= most)
        REQUIRE(heights.next(units) == *next);
      else
        REQUIRE(heights.next(units) > most);
    }
  }
}

}  // namespace tosaic::memory
