#include "tosaic/partition/compat.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/partition/merging.h"

namespace tosaic::partition {
namespace {

void check_size(const char* what, std::size_t got, std::size_t expected) {
  if (got != expected)
    throw InvalidGraph({.where = "partition",
                        .what = std::string(what) + " do not fit the graph",
                        .expected = std::to_string(expected),
                        .got = std::to_string(got)});
}

// The users of each node in the order of torch.
class UserLists {
 public:
  explicit UserLists(const CompatInput& input)
      : first_(input.dag.size() + std::size_t{1}, 0), users_(input.user_order) {
    const Dag& dag = input.dag;
    for (DagNode node = 0; node < dag.size(); ++node)
      first_[node + 1] = first_[node] + dag.users(node).size();
    if (users_.empty())
      for (DagNode node = 0; node < dag.size(); ++node)
        users_.insert(users_.end(), dag.users(node).begin(), dag.users(node).end());
    check_size("ordered users", users_.size(), dag.edges().size());
    for (DagNode node = 0; node < dag.size(); ++node)
      if (!same(of(node), dag.users(node)))
        throw InvalidGraph({.where = "partition",
                            .what = "the ordered users are not the users of the graph",
                            .node = std::to_string(node)});
  }

  // `ascending` is sorted.
  [[nodiscard]] static bool same(std::span<const DagNode> users, std::span<const DagNode> ascending) {
    std::vector<DagNode> sorted(users.begin(), users.end());
    std::ranges::sort(sorted);
    return std::ranges::equal(sorted, ascending);
  }
  [[nodiscard]] std::span<const DagNode> of(DagNode node) const {
    return std::span(users_).subspan(first_[node], first_[node + 1] - first_[node]);
  }

 private:
  std::vector<std::size_t> first_;
  std::vector<DagNode> users_;
};

// By id, with ascending nodes.
using Partitions = std::vector<CompatPartition>;

void sort(Partitions& partitions) {
  std::ranges::sort(partitions, {}, &CompatPartition::id);
  for (CompatPartition& each : partitions) std::ranges::sort(each.nodes);
}

// Horizontal fusion: a partition for each level.
Partitions level_partitions(const CompatInput& input) {
  const Dag& dag = input.dag;
  Partitions levels;
  // By node: the level, or for a node that is not supported, the least level of a supported node that it reads.
  std::vector<std::uint32_t> level(dag.size(), 0);
  std::uint32_t id = 0;
  for (DagNode node = dag.size(); node-- > 0;) {
    for (const DagNode user : dag.users(node)) {
      const std::uint32_t enters = input.supported[user] && !input.supported[node] ? 1 : 0;
      level[node] = std::max(level[node], level[user] + enters);
    }
    if (!input.supported[node]) continue;
    if (level[node] == levels.size()) levels.emplace_back();
    CompatPartition& partition = levels[level[node]];
    if (partition.nodes.size() < 2) partition.id = id;
    partition.nodes.push_back(node);
    ++id;
  }
  sort(levels);
  return levels;
}

// Without horizontal fusion: each node merges with partitions of its users.
Partitions merged_with_users(const CompatInput& input, const UserLists& users) {
  Merging merging(input.dag);
  std::vector<Part> others;
  for (DagNode node = input.dag.size(); node-- > 0;) {
    Part self = merging.add(node, input.supported[node]);
    others.clear();  // all of them are found before the first merge
    if (self != kNoPart)
      for (const DagNode user : users.of(node)) {
        const Part part = merging.part_of(user);
        if (part != kNoPart && std::ranges::find(others, part) == others.end()) others.push_back(part);
      }
    for (const Part other : others)
      if (merging.mergeable(self, other)) self = merging.merge(self, other);
    merging.finish(node);
  }
  Partitions partitions;
  for (const Part part : merging.living())
    partitions.push_back({.id = merging.id(part), .nodes = merging.nodes(part)});
  sort(partitions);
  return partitions;
}

// The partitions by rank, that is by their place in the order of ids, while nodes move between them.
class Membership {
 public:
  Membership(const Partitions& partitions, std::uint32_t size)
      : entries_(partitions.size()), rank_of_(size, kNoPart), place_(size, 0) {
    for (Part rank = 0; rank < partitions.size(); ++rank) {
      ids_.push_back(partitions[rank].id);
      for (const DagNode node : partitions[rank].nodes) move(node, rank);
    }
  }

  [[nodiscard]] Part of(DagNode node) const { return rank_of_[node]; }

  // Puts the node at the end of the partition, or into none.
  void move(DagNode node, Part rank) {
    rank_of_[node] = rank;
    if (rank == kNoPart) return;
    place_[node] = entries_[rank].size();
    entries_[rank].push_back(node);
  }

  [[nodiscard]] Partitions partitions() const {
    Partitions out;
    for (Part rank = 0; rank < entries_.size(); ++rank) {
      CompatPartition partition{.id = ids_[rank], .nodes = {}};
      for (std::size_t i = 0; i < entries_[rank].size(); ++i) {
        const DagNode node = entries_[rank][i];
        if (rank_of_[node] == rank && place_[node] == i) partition.nodes.push_back(node);
      }
      out.push_back(std::move(partition));
    }
    return out;
  }

 private:
  std::vector<std::uint32_t> ids_;
  std::vector<std::vector<DagNode>> entries_;  // some of nodes that have moved on
  std::vector<Part> rank_of_;                  // by node
  std::vector<std::size_t> place_;             // by node: its valid entry
};

// One sweep: the nodes that have to move, each once, in the order in which they were found, with their last target.
std::vector<std::pair<DagNode, Part>> moves_of(const std::vector<DagNode>& tuples, const UserLists& users,
                                               const Membership& members, std::vector<std::size_t>& move_of) {
  constexpr std::size_t kNone = SIZE_MAX;
  std::vector<std::pair<DagNode, Part>> moves;
  for (const DagNode node : tuples)
    for (const DagNode user : users.of(node)) {
      if (members.of(user) == members.of(node)) continue;
      if (move_of[user] == kNone) {
        move_of[user] = moves.size();
        moves.emplace_back(user, kNoPart);
      }
      moves[move_of[user]].second = members.of(node);
    }
  for (const auto& [node, rank] : moves) move_of[node] = kNone;
  return moves;
}

// Moves each getitem to the partition of the tuple that it reads, as torch does: in sweeps over all nodes, each of
// which looks at the state before it. After the first sweep, only nodes that moved and those that they read matter.
void move_getitems(const CompatInput& input, const UserLists& users, Membership& members) {
  const Dag& dag = input.dag;
  std::vector<bool> is_tuple(dag.size());
  std::vector<DagNode> tuples;
  for (DagNode node = 0; node < dag.size(); ++node) {
    is_tuple[node] = std::ranges::all_of(dag.users(node), [&](DagNode user) { return input.getitem[user]; });
    if (is_tuple[node] && !dag.users(node).empty()) tuples.push_back(node);
  }
  std::vector<std::size_t> move_of(dag.size(), SIZE_MAX);
  for (std::uint32_t sweep = 0; !tuples.empty(); ++sweep) {
    const std::vector<std::pair<DagNode, Part>> moves = moves_of(tuples, users, members, move_of);
    // A node is right for good when all that it reads is: sweep i settles the nodes at depth i.
    if (sweep > dag.size() && !moves.empty())
      throw InvalidGraph(
          {.where = "partition",
           .what = "a getitem reads tuples that are not in the same partition, and can follow only one",
           .node = std::to_string(moves[0].first)});
    tuples.clear();
    for (const auto& [node, rank] : moves) {
      members.move(node, rank);
      tuples.push_back(node);
      tuples.insert(tuples.end(), dag.inputs(node).begin(), dag.inputs(node).end());
    }
    std::ranges::sort(tuples);
    tuples.erase(std::ranges::unique(tuples).begin(), tuples.end());
    std::erase_if(tuples, [&](DagNode node) { return !is_tuple[node]; });
  }
}

}  // namespace

std::vector<CompatPartition> compat_partitions(const CompatInput& input) {
  const std::uint32_t size = input.dag.size();
  check_size("flags of supported nodes", input.supported.size(), size);
  check_size("flags of getitem calls", input.getitem.size(), size);
  if (!input.compute.empty()) check_size("counts of compute nodes", input.compute.size(), size);
  const UserLists users(input);
  Membership members(input.skip_horizontal_fusion ? merged_with_users(input, users) : level_partitions(input),
                     size);
  move_getitems(input, users, members);
  Partitions partitions = members.partitions();
  std::erase_if(partitions, [&](const CompatPartition& partition) {
    std::uint64_t compute = 0;
    if (!input.compute.empty())
      for (const DagNode node : partition.nodes) compute += input.compute[node];
    return partition.nodes.empty() || (!input.compute.empty() && compute <= 1);
  });
  return partitions;
}

}  // namespace tosaic::partition
