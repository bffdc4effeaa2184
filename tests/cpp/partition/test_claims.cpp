#include <catch2/catch.hpp>

#include "tosaic/base/error.h"
#include "tosaic/partition/claims.h"
#include "tosaic/partition/quotient.h"

#include "graphs.h"

namespace tosaic::partition {
namespace {

std::vector<bool> flags(std::uint32_t size, const std::vector<DagNode>& set) {
  std::vector<bool> out(size, false);
  for (const DagNode node : set) out[node] = true;
  return out;
}

Claim any_shape(std::vector<bool> supported) {
  return {.supported = std::move(supported), .connected = false};
}

}  // namespace

TEST_CASE("a later claimant gets no group around an earlier one", "[partition]") {
  // a1 = 0, b2 = 1, b1 = 2, a2 = 3
  const Dag dag(4, {{0, 2}, {1, 3}});
  const std::vector<Claim> claims{any_shape(flags(4, {0, 3})), any_shape(flags(4, {1, 2}))};
  const Claimed found = claim(dag, claims);
  CHECK(found.groups.of == std::vector<std::uint32_t>{0, 1, 2, 0});
  CHECK(found.claimant == std::vector<std::uint32_t>{0, 1, 1});
  CHECK(found.at_least == std::vector<std::uint32_t>{1, 2});
  CHECK(found.refused.empty());
}

TEST_CASE("groups that are too small go to the next claimant", "[partition]") {
  const Dag dag(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  Claim first{.supported = flags(5, {0, 1, 3})};
  first.least_size = 2;
  const std::vector<Claim> claims{first, {.supported = flags(5, {0, 1, 2, 3})}};
  const Claimed found = claim(dag, claims);
  CHECK(found.groups.of == std::vector<std::uint32_t>{0, 0, 1, 1, kNoGroup});
  CHECK(found.claimant == std::vector<std::uint32_t>{0, 1});
  CHECK(found.refused == std::vector<Refused>{{3, 0, Refusal::kTooSmall}});
}

TEST_CASE("a claimant may reject nodes of its groups, which are made again", "[partition]") {
  const Dag dag(3, {{0, 1}, {1, 2}});
  std::vector<std::vector<DagNode>> seen;
  Claim whole{.supported = {true, true, true}};
  whole.rejected = [&](std::span<const DagNode> group, const std::vector<bool>&) {
    seen.emplace_back(group.begin(), group.end());
    return group.size() == 3 ? std::vector<DagNode>{1} : std::vector<DagNode>{};
  };
  const Claimed found = claim(dag, std::span(&whole, 1));
  CHECK(found.groups.of == std::vector<std::uint32_t>{0, kNoGroup, 1});
  CHECK(seen == std::vector<std::vector<DagNode>>{{0, 1, 2}, {0}, {2}});
  whole.rejected = [](std::span<const DagNode>, const std::vector<bool>&) { return std::vector<DagNode>{7}; };
  CHECK_THROWS_AS(claim(dag, std::span(&whole, 1)), InvalidGraph);
}

TEST_CASE("nodes that stay together are in one group or in none", "[partition]") {
  const Dag dag(4, {{0, 1}, {1, 2}, {2, 3}});
  const std::vector<std::vector<DagNode>> together{{1, 2}};
  const Claim part{.supported = flags(4, {0, 1})};
  const Claimed found = claim(dag, std::span(&part, 1), together);
  CHECK(found.groups.of == std::vector<std::uint32_t>{0, kNoGroup, kNoGroup, kNoGroup});
  CHECK(found.refused == std::vector<Refused>{{1, 0, Refusal::kSplit}});
  const std::vector<std::vector<DagNode>> circle{{0, 2}}, twice{{0, 1}, {1, 2}};
  CHECK_THROWS_AS(claim(dag, std::span(&part, 1), circle), InvalidGraph);
  CHECK_THROWS_AS(claim(dag, std::span(&part, 1), twice), InvalidGraph);
}

TEST_CASE("random claims leave an order in which everything can run", "[partition]") {
  Random random(4);
  for (int i = 0; i < 300; ++i) {
    const Sample sample =
        random_sample(random, 20 + random.below(40), 1 + random.below(20), 1 + random.below(3), 70);
    std::vector<Claim> claims(1 + random.below(3));
    for (Claim& each : claims) {
      for (DagNode node = 0; node < sample.dag.size(); ++node) each.supported.push_back(random.chance(60));
      each.connected = random.chance(50);
      each.least_size = random.below(3);
      if (random.chance(50))
        each.rejected = [&](std::span<const DagNode> group, const std::vector<bool>&) {
          return random.chance(20)
                     ? std::vector<DagNode>{group[random.below(static_cast<std::uint32_t>(group.size()))]}
                     : std::vector<DagNode>{};
        };
    }
    std::vector<std::vector<DagNode>> together;
    for (DagNode node = random.below(10); node + 1 < sample.dag.size(); node += 2 + random.below(10))
      together.push_back({node, node + 1});  // neighbours in the order, so that no path leads around
    const Claimed found = claim(sample.dag, claims, together);
    for (const std::vector<DagNode>& set : together)
      CHECK(found.groups.of[set[0]] == found.groups.of[set[1]]);
    CHECK_FALSE(path_back(sample.dag, found.groups).has_value());
    CHECK(quotient(sample.dag, found.groups).circle.empty());
    for (DagNode node = 0; node < sample.dag.size(); ++node) {
      const std::uint32_t group = found.groups.of[node];
      if (group != kNoGroup) CHECK(claims[found.claimant[group]].supported[node]);
      const auto is_refused_by = [&](std::uint32_t k) {
        return std::ranges::any_of(found.refused,
                                   [&](const Refused& r) { return r.node == node && r.claimant == k; });
      };
      const std::uint32_t before =
          group == kNoGroup ? static_cast<std::uint32_t>(claims.size()) : found.claimant[group];
      for (std::uint32_t k = 0; k < before; ++k)
        if (claims[k].supported[node]) CHECK(is_refused_by(k));
    }
  }
}

}  // namespace tosaic::partition
