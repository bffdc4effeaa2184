// check: whether groups are right, by other means than the code that makes them.
//
// The makers work with levels, orders and contractions. The checks search paths from each group.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

// A path that leaves a group and comes back to it, perhaps through other groups, as nodes of the dag. It may
// enter another group at one node and leave it from another node. None if the groups can run one after
// another in some order, each as a whole.
[[nodiscard]] std::optional<std::vector<DagNode>> path_back(const Dag& dag, const Groups& groups);
// The first group whose nodes are not connected by edges between them, or none.
[[nodiscard]] std::optional<std::uint32_t> disconnected_group(const Dag& dag, const Groups& groups);

}  // namespace tosaic::partition
