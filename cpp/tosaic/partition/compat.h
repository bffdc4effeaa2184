// compat: the partitions of torch.fx's CapabilityBasedPartitioner (torch 2.13): the same nodes, ids and order.
//
//   x -> relu -> sort -> neg        sort is not supported:  partition 0 {neg}, partition 1 {relu}
//
// What torch does. It visits the nodes from the last to the first. A supported node becomes a partition with the next
// id. Then one partition is tried with all others, oldest first, and merges with each one for which the rule of
// merging.h allows it: the new partition, or after a node that is not supported, the oldest one. The larger partition
// keeps its id; of two that have the same size, the one that is tried with the others. With `skip_horizontal_fusion`,
// only new partitions are tried, and only with those of the node's users, in the order of torch's `node.users`. At the
// end, results taken out of tuples move to the partition of the tuple, until nothing moves, and partitions with fewer
// than two compute nodes are dropped.
//
// With horizontal fusion this comes to levels, counted from the end: each level is a partition. The level of a
// supported node is the highest level of its supported users, or one more than the highest level behind another user,
// whichever is higher; 0 without users that lead to supported nodes.
//   1. A node of level k > 0 has a user that is in none of the levels below k and from which paths lead to all of
//      them. So the new partition of the node, which is tried with older levels first, merges with none of them.
//   2. No path leads to the new node yet, and its users outside of level k do not lead to level k. So it merges with
//      level k; if there is no such level, it is the first node of level k.
//   3. The first node of level k > 0 has a user that is not supported and leads to all lower levels. This user never
//      gets into a partition. So level k never merges with a lower level, whatever is tried.
// These are paths of nodes: the notes of merging.h, which may be old, add nothing. The second node of a level merges
// with a partition of its own size and keeps its id; later nodes find a larger one.
//
// With `skip_horizontal_fusion` the rule misses some cycles, and partitions that torch makes may wait for each other.
// This is reproduced: such a plan has to be checked (check.h).
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/partition/dag.h"

namespace tosaic::partition {

struct CompatInput {
  Dag dag;                      // all nodes of the FX graph in their order, placeholders and output included
  std::vector<bool> supported;  // by node
  std::vector<bool> getitem;    // by node: whether it is a call of operator.getitem
  // By node: how much it counts towards the two that a partition needs. 0 for nodes that are no calls or compute
  // nothing; 2 for a call that may be alone. Empty: partitions of any size are kept.
  std::vector<std::uint32_t> compute;
  // The users of node 0, then those of node 1 and so on, each in the order of torch's `node.users`. Empty: ascending.
  std::vector<DagNode> user_order;
  bool skip_horizontal_fusion = false;
};

struct CompatPartition {
  std::uint32_t id = 0;
  std::vector<DagNode> nodes;  // ascending, then those that moved here, as they moved
  bool operator==(const CompatPartition&) const = default;
};

// In the order in which torch returns them: by id. Throws InvalidGraph if an array does not fit the dag, and if a
// getitem reads tuples that are not in the same partition: torch does not terminate there.
[[nodiscard]] std::vector<CompatPartition> compat_partitions(const CompatInput& input);

}  // namespace tosaic::partition
