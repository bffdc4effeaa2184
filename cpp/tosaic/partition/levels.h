// levels: the least number of groups, if a group may have parts that are not connected. Linear.
//
//   supported     0 -> 1 -> u -> 2        level  0 0 - 1     u is not supported
//                 3 -> 2                         0           3 may be in level 0 or 1
//
// The level of a node is the greatest number of times that a path to it leaves supported nodes. The supported
// nodes of one level form a group: no path leaves the group and comes back, since each such path would leave
// supported nodes, and no edge leads to a lower level.
//
// No other grouping has fewer groups. A path on which level k is reached has supported nodes s0, s1 ... sk
// with nodes that are not supported between each two of them. Two of these in one group would make the group
// wait for itself.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

// By node: the lowest level, and the highest level that does not increase the number of levels. For a node
// that is not supported: the levels that a supported node directly after it may have.
struct Levels {
  std::vector<std::uint32_t> lowest;
  std::vector<std::uint32_t> highest;
  std::uint32_t count = 0;  // of levels that have supported nodes
};

[[nodiscard]] Levels levels(const Dag& dag, const std::vector<bool>& supported);

// The supported nodes of each level, at their lowest levels.
[[nodiscard]] Groups level_groups(const Levels& levels, const std::vector<bool>& supported);

// Supported nodes s0, s1 ... of a path, as many as there are levels, with a node that is not supported
// between each two: the proof that there cannot be fewer groups.
[[nodiscard]] std::vector<DagNode> least_proof(const Dag& dag, const std::vector<bool>& supported);

}  // namespace tosaic::partition
