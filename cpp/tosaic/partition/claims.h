// claims: several claimants over one dag, one after another.
//
//   a1 -> b1      Claimant A takes {a1, a2}. For the claimants after A, this group is one node. So B sees
//   b2 -> a2      b2 -> A -> b1, and {b1, b2} is not one group: A would have to run between its parts.
//
// Each claimant gets the fewest groups that the claimants before it leave possible (levels.h, connected.h).
// Of several such groupings, one is chosen in which few bytes cross (border_bytes.h).
//
// A group may be refused: because it is too small, or by the claimant itself, which is shown the whole group.
// Then some of its nodes are taken away from the claimant, and the groups of the claimant are computed again.
// Nodes are taken away each time, so this ends.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tosaic/partition/border_bytes.h"
#include "tosaic/partition/dag.h"
#include "tosaic/partition/groups.h"

namespace tosaic::partition {

struct Claim {
  std::vector<bool> supported;           // by node
  bool connected = true;                 // false: a group may have parts that are not connected
  std::vector<std::uint32_t> size = {};  // by node: what it counts for the least size; empty: 1 each
  std::uint32_t least_size = 0;          // of a group
  // Which nodes of a finished group the claimant does not take after all; they must be nodes of the group.
  // The second argument tells for each node whether the claimant has it at the moment.
  std::function<std::vector<DagNode>(std::span<const DagNode>, const std::vector<bool>&)> rejected = {};
};

enum class Refusal : std::uint8_t {
  kTooSmall,  // its group was too small
  kRejected,  // the claimant took the group, but for this node
  kSplit,     // another node that has to stay together with it is not supported
};

struct Refused {
  DagNode node = 0;
  std::uint32_t claimant = 0;
  Refusal why = Refusal::kTooSmall;
  bool operator==(const Refused&) const = default;
};

struct Claimed {
  Groups groups;
  std::vector<std::uint32_t> claimant;  // by group
  std::vector<std::uint32_t> at_least;  // by claimant: its number of groups cannot be less
  std::vector<Refused>
      refused;  // supported nodes that the claimant did not get, and that nobody before it had
};

// `together`: sets of nodes; the nodes of a set have to be in one group, or all in none. `values`: values
// that may cross between parts; if empty, bytes do not matter. Throws InvalidGraph if a set would wait for
// itself, if two sets have a node in common, or if a claimant rejects a node that is not in its group.
[[nodiscard]] Claimed claim(const Dag& dag, std::span<const Claim> claims,
                            std::span<const std::vector<DagNode>> together = {},
                            std::span<const BorderValue> values = {});

}  // namespace tosaic::partition
