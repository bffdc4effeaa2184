#include <catch2/catch.hpp>

#include "tosaic/partition/border_bytes.h"
#include "tosaic/partition/connected.h"
#include "tosaic/partition/levels.h"

#include "graphs.h"

namespace tosaic::partition {
namespace {

std::vector<BorderValue> random_values(Random& random, const Dag& dag) {
  std::vector<BorderValue> values;
  for (DagNode node = 0; node < dag.size(); ++node) {
    const auto users = dag.users(node);
    values.push_back({.maker = node,
                      .readers = {users.begin(), users.end()},
                      .bytes = 1 + random.below(100),
                      .is_output = users.empty() || random.chance(10)});
  }
  values.push_back({.maker = {}, .readers = {0, dag.size() - 1}, .bytes = 50});
  return values;
}

}  // namespace

TEST_CASE("groups with fewer border bytes are right, not more, and the best ones of each pair",
          "[partition]") {
  Random random(7);
  for (int round = 0; round < 50; ++round) {
    const std::uint32_t size = 2 + random.below(40);
    const Sample sample = random_sample(random, size, 1 + random.below(size), 3, 50 + random.below(50));
    const std::vector<BorderValue> values = random_values(random, sample.dag);
    for (const bool connected : {true, false}) {
      const Groups before = connected ? connected_groups(sample.dag, sample.supported).groups
                                      : level_groups(levels(sample.dag, sample.supported), sample.supported);
      BorderRules rules;
      rules.connected = connected;
      for (const std::uint64_t work : {std::uint64_t{100}, rules.work}) {
        rules.work = work;
        const Groups after = with_fewer_border_bytes(sample.dag, before, values, rules);
        CHECK_FALSE(path_back(sample.dag, after).has_value());
        if (connected) CHECK_FALSE(disconnected_group(sample.dag, after).has_value());
        for (DagNode node = 0; node < size; ++node)
          CHECK((after.of[node] == kNoGroup) == (before.of[node] == kNoGroup));
        CHECK(after.count <= before.count);
        CHECK(border_bytes(values, after) <= border_bytes(values, before));
        CHECK(with_fewer_border_bytes(sample.dag, after, values, rules).count == after.count);
      }
    }
  }
}

TEST_CASE("a value costs its bytes for each other part that reads it", "[partition]") {
  // 0 -> {1, 2, 3}, where 3 is the host's
  const std::vector<BorderValue> values{{.maker = 0, .readers = {1, 2, 3}, .bytes = 8, .is_output = true},
                                        {.maker = {}, .readers = {1, 2}, .bytes = 1},
                                        {.maker = 3, .readers = {}, .bytes = 100, .is_output = true}};
  CHECK(border_bytes(values, {.of = {0, 0, 0, kNoGroup}, .count = 1}) == 8 + 1);
  CHECK(border_bytes(values, {.of = {0, 1, 2, kNoGroup}, .count = 3}) == 24 + 2);
  CHECK(border_bytes(values, {.of = {kNoGroup, 0, 0, kNoGroup}, .count = 1}) == 8 + 1);
}

}  // namespace tosaic::partition
