// Compat mode on hand-made graphs. What is expected is what torch 2.13 proposes; tests/fx compares random graphs.
#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "partition/graphs.h"
#include "tosaic/base/error.h"
#include "tosaic/partition/compat.h"
#include "tosaic/partition/merging.h"

namespace tosaic::partition {
namespace {

// All nodes are supported but those listed.
CompatInput input_of(std::uint32_t size, std::vector<Edge> edges, const std::vector<DagNode>& unsupported) {
  CompatInput input{.dag = Dag(size, std::move(edges)),
                    .supported = std::vector<bool>(size, true),
                    .getitem = std::vector<bool>(size, false),
                    .compute = {},
                    .user_order = {}};
  for (const DagNode node : unsupported) input.supported[node] = false;
  return input;
}

using Partitions = std::vector<CompatPartition>;

TEST_CASE("A chain with an unsupported node has two partitions, and the second node of each names it") {
  const CompatInput input = input_of(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {2});
  CHECK(compat_partitions(input) == Partitions{{1, {3, 4}}, {3, {0, 1}}});
}

TEST_CASE("Branches that are not connected share a partition unless horizontal fusion is skipped") {
  CompatInput input = input_of(4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, {0, 3});
  CHECK(compat_partitions(input) == Partitions{{1, {1, 2}}});
  input.skip_horizontal_fusion = true;
  CHECK(compat_partitions(input) == Partitions{{0, {2}}, {1, {1}}});
}

TEST_CASE("A node joins the latest level that it does not reach through an unsupported node") {
  // 0 reads nothing and reaches 3 through 1 only; 2 is free.
  const CompatInput input = input_of(4, {{0, 1}, {1, 3}, {0, 2}}, {1});
  CHECK(compat_partitions(input) == Partitions{{1, {2, 3}}, {2, {0}}});
}

TEST_CASE("Without horizontal fusion, a merge that makes a cycle is refused") {
  // 0 reads into 3 directly and through 2, which is not supported.
  CompatInput input = input_of(4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, {2});
  input.skip_horizontal_fusion = true;
  CHECK(compat_partitions(input) == Partitions{{1, {1, 3}}, {2, {0}}});
}

TEST_CASE("A cycle that torch's stale notes hide is made here, too") {
  CompatInput input = input_of(8, {{0, 1}, {0, 3}, {2, 4}, {3, 4}, {2, 5}, {3, 6}, {1, 7}, {5, 7}}, {3, 5});
  input.skip_horizontal_fusion = true;
  CHECK(compat_partitions(input) == Partitions{{1, {6}}, {3, {2, 4}}, {4, {0, 1, 7}}});
}

TEST_CASE("Users are tried in their given order") {
  CompatInput input = input_of(6, {{0, 1}, {0, 2}, {1, 4}, {3, 4}, {2, 5}, {3, 5}}, {3});
  input.skip_horizontal_fusion = true;
  CHECK(compat_partitions(input) == Partitions{{3, {0, 1, 2, 4, 5}}});
  input.user_order = {2, 1, 4, 5, 4, 5};
  CHECK(compat_partitions(input) == Partitions{{2, {0, 1, 2, 4, 5}}});
}

TEST_CASE("Results of a tuple move to the partition of the tuple, after its own nodes") {
  // 1 is a tuple; 2 and 3 take its results; 3 is a tuple, too.
  CompatInput input = input_of(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {2});
  input.getitem[2] = input.getitem[3] = true;
  CHECK(compat_partitions(input) == Partitions{{1, {4}}, {3, {0, 1, 2, 3}}});
}

TEST_CASE("A getitem of an unsupported tuple leaves its partition") {
  CompatInput input = input_of(3, {{0, 1}, {1, 2}}, {0});
  input.getitem[1] = true;
  CHECK(compat_partitions(input) == Partitions{{1, {2}}});
}

TEST_CASE("A getitem of two tuples in different partitions is refused") {
  CompatInput input = input_of(3, {{0, 2}, {1, 2}}, {0});
  input.getitem[2] = true;
  CHECK_THROWS_WITH(compat_partitions(input), Catch::Contains("can follow only one (node '2')"));
}

TEST_CASE("Partitions without two compute nodes are dropped") {
  CompatInput input = input_of(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {2});
  input.compute = {1, 0, 1, 1, 1};
  CHECK(compat_partitions(input) == Partitions{{1, {3, 4}}});
  input.compute = {2, 0, 1, 0, 0};
  CHECK(compat_partitions(input) == Partitions{{3, {0, 1}}});
}

// The rule of torch by walks, as merging.h states it, with sets of parts by node.
class Walks {
 public:
  explicit Walks(const Dag& dag) : dag_(dag), behind_(dag.size()) {
    for (DagNode node = dag.size(); node-- > 0;)
      for (const DagNode user : dag.users(node)) {
        behind_[node].insert(user);
        behind_[node].insert(behind_[user].begin(), behind_[user].end());
      }
  }

  void add(DagNode node, Part part) {
    of_[node] = part;
    members_[part] = {node};
    notes_[part] = seen(part);
  }
  bool mergeable(Part a, Part b) const {
    std::set<DagNode> both = members_.at(a);
    both.insert(members_.at(b).begin(), members_.at(b).end());
    const std::set<Part> found = seen_from(both);
    return !found.contains(a) && !found.contains(b);
  }
  void merge(Part kept, Part gone) {
    for (const DagNode node : members_.at(gone)) of_[node] = kept;
    members_[kept].insert(members_[gone].begin(), members_[gone].end());
    notes_[kept].insert(notes_[gone].begin(), notes_[gone].end());
    const std::set<Part> found = seen(kept);
    notes_[kept].insert(found.begin(), found.end());
    notes_[kept].erase(kept), notes_[kept].erase(gone);
    members_.erase(gone), notes_.erase(gone);
  }

 private:
  std::set<Part> seen(Part part) const { return seen_from(members_.at(part)); }
  std::set<Part> seen_from(const std::set<DagNode>& nodes) const {
    std::set<Part> found;
    const auto look = [&](DagNode node) {
      const auto part = of_.find(node);
      if (part == of_.end()) return;
      found.insert(part->second);
      if (const auto notes = notes_.find(part->second); notes != notes_.end())
        found.insert(notes->second.begin(), notes->second.end());
    };
    for (const DagNode node : nodes)
      for (const DagNode user : dag_.users(node)) {
        if (nodes.contains(user)) continue;
        look(user);
        for (const DagNode each : behind_[user]) look(each);
      }
    return found;
  }

  const Dag& dag_;
  std::vector<std::set<DagNode>> behind_;
  std::map<DagNode, Part> of_;
  std::map<Part, std::set<DagNode>> members_;
  std::map<Part, std::set<Part>> notes_;
};

// Tries more pairs than torch does: random ones, between any partitions. The walks name a partition by its id.
TEST_CASE("The rule by unions decides as the rule by walks, whatever is tried") {
  Random random(20);
  std::size_t tried = 0, merged = 0;
  for (int round = 0; round < 400; ++round) {
    const Sample sample =
        random_sample(random, 5 + random.below(40), 2 + random.below(12), 3, 50 + random.below(50));
    Merging merging(sample.dag);
    Walks walks(sample.dag);
    std::vector<Part> living;
    for (DagNode node = sample.dag.size(); node-- > 0;) {
      const Part part = merging.add(node, sample.supported[node]);
      if (part != kNoPart) {
        walks.add(node, merging.id(part));
        living.push_back(part);
      }
      for (std::uint32_t i = random.below(4); i > 0 && living.size() > 1; --i) {
        const Part a = living[random.below(static_cast<std::uint32_t>(living.size()))];
        const Part b = living[random.below(static_cast<std::uint32_t>(living.size()))];
        if (a == b) continue;
        ++tried;
        const bool expected = walks.mergeable(merging.id(a), merging.id(b));
        REQUIRE(merging.mergeable(a, b) == expected);
        if (!expected) continue;
        ++merged;
        const std::uint32_t id_a = merging.id(a), id_b = merging.id(b);
        const Part kept = merging.merge(a, b);
        walks.merge(kept == a ? id_a : id_b, kept == a ? id_b : id_a);
        std::erase(living, kept == a ? b : a);
      }
      merging.finish(node);
    }
  }
  CHECK(merged > 1000);
  CHECK(tried - merged > 1000);
}

}  // namespace
}  // namespace tosaic::partition
