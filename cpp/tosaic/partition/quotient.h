// quotient: the dag in which each group is one node, and so is each node without a group (-).
//
//   0 -> 1 -> 2 -> 3    groups 0 0 - 1    quotient: {0 1} -> {2} -> {3}
//
// Groups that read each other in a circle have no quotient dag. quotient() returns such a circle instead.
#pragma once

#include <vector>

#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

struct Quotient {
  Dag dag;
  std::vector<DagNode> of;  // by node: the node of the quotient that it is in
  // If groups read each other in a circle: for each of them, the edge that leads to the next one. The dag is
  // empty then. Otherwise the circle is empty.
  std::vector<Edge> circle;
};

// The nodes of the quotient are in a topological order. If several may come next, the one with the least node
// of the dag does.
[[nodiscard]] Quotient quotient(const Dag& dag, const Groups& groups);

}  // namespace tosaic::partition
