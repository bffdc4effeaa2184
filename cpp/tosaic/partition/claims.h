// claims: several claimants over one dag, one after another.
//
//   a1 -> b1      Claimant A takes {a1, a2}. Its groups are one node each for the claimants after it. So B
//   b2 -> a2      sees b2 -> A -> b1, and {b1, b2} is not one group: A would have to run between its parts.
//
// A claimant has the fewest groups that are possible after those before it (levels.h, connected.h). Among
// groupings that are as small, one is chosen in which few bytes cross (border_bytes.h).
//
// A group may be rejected: because it is too small, or by the claimant, once it has seen the whole group.
// Then the claimant lacks some nodes of it, and its groups are made again. Each time it lacks more nodes, so
// this ends.
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
  // The nodes of a finished group that the claimant does not take after all, or none. It has to name nodes of
  // the group. The second argument has, by node, whether the claimant has it at the moment.
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

// `together`: nodes that have to be in one group, or in none. `values`: those that may cross between parts;
// without them, bytes do not matter. Throws InvalidGraph if such a set would wait for itself, if its nodes
// overlap with the nodes of another set, or if a claimant rejects a node that is not in its group.
[[nodiscard]] Claimed claim(const Dag& dag, std::span<const Claim> claims,
                            std::span<const std::vector<DagNode>> together = {},
                            std::span<const BorderValue> values = {});

}  // namespace tosaic::partition
