// border_bytes: moves nodes between groups of one claimant, so that fewer bytes cross between parts.
//
//   conv -> pool -> neg -> add       conv and add are in two groups, since sort is nobody's and runs in
//     \----> sort -------/           between. pool and neg may be in either. pool makes the smallest
//                                    value, so neg joins the group of add.
//
// The number of groups says nothing about such nodes, and often many groupings have the fewest groups. Here
// the number stays as it is, or falls.
//
// For two groups, the second of which reads the first, a minimum cut decides which of their nodes are in
// which group: a value costs its bytes for each group that reads it and does not make it; a node may not be
// in the second group if a node of the first one reads it; and the ends of paths through other nodes of the
// program stay in their groups. So the result is the best one for these two groups if groups need not be
// connected. If they must be, and a side of the cut is not connected, its smaller pieces go to the other
// side; if that is no gain, one node moves with the nodes after or before it, where that gains most. This is
// repeated with all pairs of groups until no pair gains.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

// A value that may cross between parts.
struct BorderValue {
  std::optional<DagNode> maker;  // none: an input of the program
  std::vector<DagNode> readers;
  std::uint64_t bytes = 0;
  bool is_output = false;  // of the program
};

// The inputs and results of a graph, without constants. Nodes have the numbers of dag_of(graph).
[[nodiscard]] std::vector<BorderValue> border_values(const Graph& graph);

// The bytes that cross: a value counts for each part that reads it, except its maker's. The host is a part.
[[nodiscard]] std::uint64_t border_bytes(std::span<const BorderValue> values, const Groups& groups);

struct BorderRules {
  bool connected = true;            // the nodes of a group have to be connected by edges
  std::vector<std::uint32_t> size;  // by node: what it counts for the least size; empty: 1 each
  std::uint32_t least_size = 0;     // a group of this size or more does not become smaller than this
  std::uint64_t work = 20'000'000;  // about how many edges may be looked at
};

// `groups` have to be right (check.h). The returned groups are right, too.
[[nodiscard]] Groups with_fewer_border_bytes(const Dag& dag, Groups groups,
                                             std::span<const BorderValue> values, const BorderRules& rules);

}  // namespace tosaic::partition
