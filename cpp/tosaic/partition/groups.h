// groups: which nodes of a dag belong together.
//
//   group_of   0 0 - 1 1 -      nodes 2 and 5 belong to no group and stay where they are
//
// A grouping is right if the groups can run one after another, each as a whole: its quotient graph, in which
// each group is one node, has no cycle (check.h).
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/partition/dag.h"

namespace tosaic::partition {

inline constexpr std::uint32_t kNoGroup = UINT32_MAX;

struct Groups {
  std::vector<std::uint32_t> of;  // by node: its group, or kNoGroup
  std::uint32_t count = 0;        // groups are numbered from 0, by their first nodes

  bool operator==(const Groups&) const = default;
};

// Numbers groups by their first nodes. Nodes with the same label are a group.
[[nodiscard]] Groups numbered(const std::vector<std::uint32_t>& labels);
// The nodes of each group, ascending.
[[nodiscard]] std::vector<std::vector<DagNode>> members_of(const Groups& groups);

}  // namespace tosaic::partition
