// connected: the least number of groups whose nodes are connected by edges.
//
//   0 -> 1 -> 3      supported: 0, 2, 3. 0 and 3 may not be together: 1 would have to run between them.
//        2 -> 3      By levels, {0 2} and {3} are groups. 0 and 2 are not connected, so the first falls in
//                    two. {0} and {2 3} are connected: two groups, not three.
//
// The problem is NP-hard. It is solved by contractions of edges between supported nodes: every grouping into
// connected groups is a sequence of contractions that never closes a circle.
//
//   reduce    Contractions that are in some best grouping. A supported node joins its only user, if the user
//             and at most one input are supported: in the group of the input, it would connect nothing else,
//             and the user waits for the same nodes with it or without it. Likewise, it joins its only input,
//             if the input and at most one user are supported.
//   greedy    Contracts edge after edge, in several orders; on small graphs, in random ones, too. The best
//             result is an upper bound.
//   bound     A group lies in one component of supported nodes. A component needs as many groups as it has
//             levels (levels.h) if nothing else is supported. The sum over the components is a lower bound.
//   branch    While the bounds differ: an edge is contracted, or its ends are kept apart for good, each with
//             its own bounds. The work is limited. If it runs out, both bounds are returned. On graphs of
//             more than a few hundred nodes, it would run out at once, and nothing is searched.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

struct ConnectedGroups {
  Groups groups;
  std::uint32_t at_least = 0;  // the number of groups of any grouping; equals groups.count if it is proven
  [[nodiscard]] bool proven() const { return groups.count == at_least; }
};

// `work`: about how many edges the search may look at.
[[nodiscard]] ConnectedGroups connected_groups(const Dag& dag, const std::vector<bool>& supported,
                                               std::uint64_t work = 20'000'000);

}  // namespace tosaic::partition
