// How loops are cut into parts: each unit is in one part, parts begin at whole steps, and threads have as
// many of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <mutex>
#include <utility>
#include <vector>

#include "tosaic/kernels/parallel.h"

namespace tosaic::kernels {
namespace {

std::vector<std::pair<std::int64_t, std::int64_t>> parts(Team& team, const Loop& loop) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  std::mutex mutex;
  parallel_for(&team, loop, [&](std::int64_t begin, std::int64_t end, Worker) {
    const std::lock_guard lock(mutex);
    out.emplace_back(begin, end);
  });
  std::sort(out.begin(), out.end());
  return out;
}

TEST_CASE("each unit of a loop is in one part", "[parallel]") {
  for (const std::uint32_t threads : {1U, 2U, 3U, 8U})
    for (const bool share_all : {false, true}) {
      Team team(threads, share_all);
      for (const std::int64_t count : {1, 2, 5, 7, 16, 100, 1000})
        for (const std::int64_t step : {1, 3, 16})
          for (const double unit_cost : {1.0, 300.0, 50000.0}) {
            const Loop loop{.count = count, .step = step, .unit_cost = unit_cost};
            std::int64_t next = 0;
            for (const auto& [begin, end] : parts(team, loop)) {
              REQUIRE(begin == next);
              REQUIRE(begin % step == 0);
              REQUIRE(end > begin);
              next = end;
            }
            REQUIRE(next == count);
          }
    }
}

TEST_CASE("the number of parts depends on the cost of the loop", "[parallel]") {
  Team team(3);
  const auto parts_of_cost = [&](double microseconds, std::int64_t steps = 1000) {
    return parts_of(&team, {.count = steps, .unit_cost = microseconds * 1000 / static_cast<double>(steps)});
  };
  REQUIRE(parts_of_cost(3) == 1);        // shorter than calling threads
  REQUIRE(parts_of_cost(5) == 2);        // enough for two
  REQUIRE(parts_of_cost(40) == 3);       // one for each thread
  REQUIRE(parts_of_cost(60) == 6);       // two for each thread
  REQUIRE(parts_of_cost(999) == 12);     // kPartsPerThread for each thread
  REQUIRE(parts_of_cost(999, 11) == 9);  // a multiple of the threads
  REQUIRE(parts_of_cost(999, 2) == 2);
  REQUIRE(parts_of(nullptr, {.count = 1000, .unit_cost = 1e6}) == 1);
}

TEST_CASE("there is no call for a loop without units", "[parallel]") {
  Team team(2, true);
  REQUIRE(parts(team, {.count = 0, .unit_cost = 1e6}).empty());
}

}  // namespace
}  // namespace tosaic::kernels
