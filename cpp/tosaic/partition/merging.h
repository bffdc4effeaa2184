// merging: partitions that grow from the last node to the first, and the rule by which torch.fx's partitioner decides
// whether two of them may merge: without its walks over all nodes behind a partition.
//
// The rule of torch. A partition has *notes*: partitions that it has seen when it was made or when it last merged. A
// node *sees* its partition, the notes of its partition, and all that its users see. A partition sees what its users
// outside of it see. Two partitions may merge unless a user of either, outside of both, sees one of the two. A new
// partition, made by a node or by a merge, notes all that it sees. Of two partitions that merge, one dies.
//
// Notes are not renamed: if p notes b, and b then dies by merging into a, p has no note of a. The rule may allow a
// merge of p and something behind a, although it makes a cycle.
//
// This class comes to the same decisions because of these facts. They are about partitions that live.
//   1. What a node sees only grows.
//   2. A partition sees all that it has noted. Hence a and b, merged, see what a saw and what b saw, without a and b:
//      a union takes the place of a walk. (A note came from a node behind the partition. Either this node is still
//      outside, and sees the noted partition by fact 1; or it was merged in together with its partition, which had
//      the note first, and the same holds for the older note.)
//   3. Only a merge adds to what existing nodes see: the partition that lives on, and what its notes gained. The merge
//      tells those who read the merged nodes, and each node to which this is news tells those who read it.
//   4. A node with a single user that belongs to no partition, or to the partition of this user, sees what the user
//      sees. Such nodes share a *root*, and sets are stored for roots only.
//   5. Who is in a partition sees its notes, so that the set of a root has only what the notes do not have.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tosaic/partition/dag.h"
#include "tosaic/partition/id_set.h"

namespace tosaic::partition {

using Part = std::uint32_t;
inline constexpr Part kNoPart = UINT32_MAX;

class Merging {
 public:
  explicit Merging(const Dag& dag);

  // Visit all nodes, from the last to the first: first `add`, then any merges, then `finish`.
  // Returns the partition that the node is alone in, or kNoPart if the node is not supported.
  Part add(DagNode node, bool supported);
  void finish(DagNode node);

  // Whether torch.fx would merge the two.
  [[nodiscard]] bool mergeable(Part a, Part b) const;
  // Merges `other` into `self`, or `self` into `other` if `other` has more nodes. Returns the one that lives on.
  Part merge(Part self, Part other);

  [[nodiscard]] Part part_of(DagNode node) const { return part_of_[node]; }
  [[nodiscard]] std::uint32_t id(Part part) const { return parts_[part].id; }
  [[nodiscard]] const std::vector<DagNode>& nodes(Part part) const { return parts_[part].nodes; }
  [[nodiscard]] std::vector<Part> living() const;

 private:
  struct Partition {
    std::uint32_t id = 0;
    std::vector<DagNode> nodes;
    std::vector<DagNode> users;    // all users outside, some more than once, and perhaps some inside
    std::vector<DagNode> readers;  // nodes that read a node whose root is inside; perhaps some are inside
    IdSet notes;
    IdSet late;  // what it sees besides its notes
    [[nodiscard]] bool sees(Part other) const { return notes.has(other) || late.has(other); }
  };
  struct Read {
    DagNode reader, node;
  };

  [[nodiscard]] bool node_sees(DagNode node, Part part) const;
  [[nodiscard]] bool outside_user_sees(Part users_of, Part other) const;
  [[nodiscard]] IdSet seen_by_users(DagNode node) const;
  void register_reader(DagNode node);
  [[nodiscard]] std::vector<Part> gained(const IdSet& notes, const IdSet& before) const;
  void absorb(Part kept, Part gone);
  void announce(Part part, std::vector<DagNode>& readers, std::span<const Part> seen);
  void tell(DagNode reader, bool inside, Part seen);

  const Dag& dag_;
  std::vector<Part> part_of_;  // by node
  std::vector<DagNode> root_;  // by node
  std::vector<IdSet> own_;     // by root: what it sees besides its partition and the partition's notes
  std::vector<std::vector<Read>> reads_;  // by root: reads of nodes with this root
  // Numbers are small, so that sets are short: a new part that merges into another one at once, before it is noted,
  // leaves its number to the next one.
  std::vector<Partition> parts_;
  std::vector<std::uint64_t> living_;  // by part, as bits
  std::uint32_t next_part_ = 0, next_id_ = 0;
  std::vector<DagNode> told_;  // roots whose readers are still to be told
};

}  // namespace tosaic::partition
