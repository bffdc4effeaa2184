#include <catch2/catch.hpp>

#include "tosaic/base/error.h"
#include "tosaic/partition/connected.h"
#include "tosaic/partition/levels.h"
#include "tosaic/partition/quotient.h"

#include "graphs.h"

namespace tosaic::partition {
namespace {

Groups levels_of(const Sample& sample) {
  return level_groups(levels(sample.dag, sample.supported), sample.supported);
}

void check_right(const Sample& sample, const Groups& groups) {
  CHECK_FALSE(path_back(sample.dag, groups).has_value());
  CHECK(quotient(sample.dag, groups).circle.empty());
  for (DagNode node = 0; node < sample.dag.size(); ++node)
    CHECK((groups.of[node] != kNoGroup) == sample.supported[node]);
}

}  // namespace

TEST_CASE("a dag has each edge once, and refuses edges against the order", "[partition]") {
  const Dag dag(4, {{2, 3}, {0, 1}, {1, 3}, {0, 1}});
  CHECK(dag.edges().size() == 3);
  CHECK(std::vector<DagNode>(dag.inputs(3).begin(), dag.inputs(3).end()) == std::vector<DagNode>{1, 2});
  CHECK(std::vector<DagNode>(dag.users(0).begin(), dag.users(0).end()) == std::vector<DagNode>{1});
  CHECK_THROWS_AS(Dag(4, {{3, 2}}), InvalidGraph);
  CHECK_THROWS_AS(Dag(4, {{1, 1}}), InvalidGraph);
  CHECK_THROWS_AS(Dag(4, {{1, 4}}), InvalidGraph);
}

TEST_CASE("a node that comes early may join a later group", "[partition]") {
  const Sample sample{.dag = Dag(4, {{0, 1}, {1, 3}, {2, 3}}), .supported = {true, false, true, true}};
  CHECK(levels_of(sample).count == 2);
  const ConnectedGroups connected = connected_groups(sample.dag, sample.supported);
  CHECK(connected.groups.of == std::vector<std::uint32_t>{0, kNoGroup, 1, 1});
  CHECK(connected.proven());
  CHECK(least_proof(sample.dag, sample.supported) == std::vector<DagNode>{0, 3});
}

TEST_CASE("groups that wait for each other are a circle", "[partition]") {
  const Dag dag(4, {{0, 2}, {1, 3}});  // a1 b2 b1 a2
  const Groups groups{.of = {0, 1, 1, 0}, .count = 2};
  const std::vector<Edge> circle = quotient(dag, groups).circle;
  CHECK(circle.size() == 2);
  CHECK(path_back(dag, groups).has_value());
  CHECK_FALSE(path_back(dag, Groups{.of = {0, 1, 1, 2}, .count = 3}).has_value());
}

TEST_CASE("levels give as few groups as trying all", "[partition]") {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const Sample sample =
        random_sample(random, 2 + random.below(8), 1 + random.below(8), 1 + random.below(3), 70);
    const Groups groups = levels_of(sample);
    check_right(sample, groups);
    const auto supported = std::ranges::count(sample.supported, true);
    CHECK(groups.count == (supported == 0 ? 0 : least_by_trying(sample, false)));
    CHECK(least_proof(sample.dag, sample.supported).size() == groups.count);
  }
}

TEST_CASE("connected groups are as few as trying all finds", "[partition]") {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    const Sample sample =
        random_sample(random, 2 + random.below(8), 1 + random.below(8), 1 + random.below(3), 70);
    const ConnectedGroups found = connected_groups(sample.dag, sample.supported);
    check_right(sample, found.groups);
    CHECK_FALSE(disconnected_group(sample.dag, found.groups).has_value());
    CHECK(found.proven());
    const auto supported = std::ranges::count(sample.supported, true);
    CHECK(found.groups.count == (supported == 0 ? 0 : least_by_trying(sample, true)));
  }
}

TEST_CASE("connected groups of larger graphs are right, and not below their bound", "[partition]") {
  Random random(3);
  for (int i = 0; i < 60; ++i) {
    const Sample sample = random_sample(random, 100, 1 + random.below(30), 1 + random.below(3), 80);
    const ConnectedGroups found = connected_groups(sample.dag, sample.supported, 200'000);
    check_right(sample, found.groups);
    CHECK_FALSE(disconnected_group(sample.dag, found.groups).has_value());
    CHECK(found.at_least <= found.groups.count);
    CHECK(levels_of(sample).count <= found.at_least);
  }
}

}  // namespace tosaic::partition
