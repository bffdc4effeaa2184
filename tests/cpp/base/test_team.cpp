#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cfenv>
#include <chrono>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tosaic/base/team.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace tosaic {
namespace {

// Spends some time, so that other threads get parts, too.
void spend(int rounds) {
  std::atomic<int> sum{0};
  for (int i = 0; i < rounds; ++i) sum.fetch_add(i, std::memory_order_relaxed);
}

// Pauses and then calls `happens`, up to 40 times. Returns true as soon as `happens` does, and false if it
// never does. In a pause, the threads of earlier teams return to the pool and fall asleep.
template <class F>
bool happens_after_a_pause(F happens) {
  for (int tries = 0; tries < 40; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (happens()) return true;
  }
  return false;
}

// Makes a team of two threads and calls `call` in the second one.
template <class F>
void in_helper(F call) {
  Team team(2);
  for (std::atomic<bool> took_part{false}; !took_part;)
    team.run(2, [&](std::uint32_t, std::uint32_t worker) {
      if (worker == 0) return std::this_thread::yield();
      call();
      took_part = true;
    });
}

#if defined(__linux__)
cpu_set_t usable_by_this_thread() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

// The cores that the second thread of a new team may use while it computes.
cpu_set_t usable_by_helper() {
  cpu_set_t found;
  in_helper([&] { found = usable_by_this_thread(); });
  return found;
}
#endif

}  // namespace

TEST_CASE("a team calls each part once, by one worker at a time", "[team]") {
  for (const std::uint32_t threads : {1U, 2U, 3U, 8U}) {
    Team team(threads);
    REQUIRE(team.size() == threads);
    for (const std::uint32_t parts : {0U, 1U, 2U, 7U, 100U, Team::kMostParts}) {
      std::vector<std::atomic<int>> calls(parts);
      std::array<std::atomic<int>, 8> inside{};
      std::atomic<bool> overlaps{false}, is_worker{true};
      team.run(parts, [&](std::uint32_t part, std::uint32_t worker) {
        if (worker >= threads) {
          is_worker = false;
          return;
        }
        if (inside.at(worker).fetch_add(1) != 0) overlaps = true;
        calls[part].fetch_add(1);
        inside.at(worker).fetch_sub(1);
      });
      CHECK(is_worker);
      CHECK_FALSE(overlaps);
      for (const std::atomic<int>& count : calls)
        if (count != 1) FAIL_CHECK("a part was called " << count << " times");
    }
  }
}

TEST_CASE("what parts write is visible after run()", "[team]") {
  Team team(4);
  std::vector<long> sums(64);
  for (int round = 0; round < 2000; ++round)
    team.run(64, [&](std::uint32_t part, std::uint32_t) { sums[part] += part; });
  for (std::size_t part = 0; part < sums.size(); ++part) CHECK(sums[part] == static_cast<long>(2000 * part));
}

TEST_CASE("several threads take part", "[team]") {
  Team team(2);
  std::atomic<bool> other{false};
  const auto start = std::chrono::steady_clock::now();
  while (!other && std::chrono::steady_clock::now() - start < std::chrono::seconds(60))
    team.run(8, [&](std::uint32_t, std::uint32_t worker) {
      spend(1000);
      if (worker == 1) other = true;
    });
  CHECK(other);
}

TEST_CASE("the exception of the first part that fails is thrown, after all parts", "[team]") {
  for (const std::uint32_t threads : {2U, 5U}) {
    Team team(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> calls{0};
      std::string message;
      try {
        team.run(40, [&](std::uint32_t part, std::uint32_t) {
          calls.fetch_add(1);
          if (part % 10 == 3) throw std::runtime_error(std::to_string(part));
        });
      } catch (const std::runtime_error& error) {
        message = error.what();
      }
      CHECK(message == "3");
      CHECK(calls == 40);
    }
    int sum = 0;
    team.run(1, [&](std::uint32_t, std::uint32_t) { ++sum; });
    CHECK(sum == 1);
  }
}

TEST_CASE("teams of several threads work at the same time, and come and go", "[team]") {
  std::vector<std::thread> users;
  std::atomic<long> total{0};
  users.reserve(4);
  for (int user = 0; user < 4; ++user)
    users.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        Team team(3);
        for (int run = 0; run < 3; ++run)
          team.run(9, [&](std::uint32_t part, std::uint32_t) { total.fetch_add(part); });
      }
    });
  for (std::thread& user : users) user.join();
  CHECK(total == 4L * 300 * 3 * 36);
}

TEST_CASE("teams that follow each other have the same thread", "[team]") {
  const auto helpers_of_many_teams = [] {
    std::set<std::thread::id> helpers;
    for (int i = 0; i < 500; ++i) in_helper([&] { helpers.insert(std::this_thread::get_id()); });
    return helpers.size();
  };
  CHECK(happens_after_a_pause([&] { return helpers_of_many_teams() == 1; }));
}

TEST_CASE("there are no more threads than the teams of one time need", "[team]") {
  constexpr std::uint32_t kTeams = 4, kThreads = 4;  // more than in the other tests
  std::set<std::thread::id> helpers;
  std::mutex mutex;
  std::vector<std::thread> callers;
  for (std::uint32_t i = 0; i < kTeams; ++i)
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        Team team(kThreads);
        team.run(kThreads, [&](std::uint32_t, std::uint32_t worker) {
          if (worker == 0) return spend(100);
          const std::lock_guard lock(mutex);
          helpers.insert(std::this_thread::get_id());
        });
      }
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(helpers.size() <= kTeams * (kThreads - 1));
}

TEST_CASE("all threads compute with the rounding of the thread that made the team", "[team]") {
  const int before = std::fegetround();
  std::fesetround(FE_UPWARD);
  std::atomic<bool> same{true};
  {
    Team team(4);
    for (int round = 0; round < 200; ++round)
      team.run(16, [&](std::uint32_t, std::uint32_t) {
        spend(100);
        if (std::fegetround() != FE_UPWARD) same = false;
      });
  }
  std::fesetround(before);
  Team team(4);
  team.run(16, [&](std::uint32_t, std::uint32_t) {
    if (std::fegetround() != before) same = false;
  });
  CHECK(same);
}

#if defined(__linux__)
TEST_CASE("a thread that slept is woken on another core, and may use all cores afterwards", "[team]") {
  const cpu_set_t usable = usable_by_this_thread();
  usable_by_helper();  // now the pool has a thread
  for (int round = 0; round < 3; ++round) {
    CHECK(happens_after_a_pause([&] {
      cpu_set_t expected = usable;
      if (usable_cores() > 1) CPU_CLR(static_cast<std::size_t>(sched_getcpu()), &expected);
      const cpu_set_t cores = usable_by_helper();
      return CPU_EQUAL(&cores, &expected);
    }));
    // The thread is awake now, so the pool does not restrict its cores when it lends the thread again.
    bool may_use_all = false;
    for (int teams = 0; teams < 1000 && !may_use_all; ++teams) {
      const cpu_set_t now = usable_by_helper();
      may_use_all = CPU_EQUAL(&now, &usable);
    }
    CHECK(may_use_all);
  }
}

TEST_CASE("the threads of a team may use no other cores than the thread that made it", "[team]") {
  const cpu_set_t usable = usable_by_this_thread();
  const auto stays_inside = [](const cpu_set_t& wanted) {
    const cpu_set_t cores = usable_by_helper();
    cpu_set_t both;
    CPU_AND(&both, &cores, &wanted);
    return CPU_EQUAL(&both, &cores) && CPU_COUNT(&cores) >= std::max(1, CPU_COUNT(&wanted) - 1);
  };
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(static_cast<std::size_t>(core), &usable)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(core), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    for (int teams = 0; teams < 20; ++teams) CHECK(stays_inside(one));
    REQUIRE(sched_setaffinity(0, sizeof usable, &usable) == 0);
    for (int teams = 0; teams < 20; ++teams) CHECK(stays_inside(usable));
  }
}
#endif

}  // namespace tosaic
