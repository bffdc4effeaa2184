// contraction: a dag whose nodes are merged two by two, as long as no circle arises.
//
// Blocks are kept in a topological order. Two blocks a -> b may be merged unless another path leads from a to
// b. Such a path stays between their places in the order, so only blocks there are looked at. After a merge,
// blocks that a reaches move after the merged block. D. Pearce, P. Kelly, A dynamic topological sort
// algorithm for directed acyclic graphs, JEA 11, 2007.
#pragma once

#include <cstdint>
#include <vector>

#include "tosaic/partition/dag.h"

namespace tosaic::partition {

class Contraction {
 public:
  explicit Contraction(const Dag& dag);

  // The block of a node, named by one of its nodes.
  [[nodiscard]] DagNode block_of(DagNode node) const;
  // True if the blocks of the two nodes are different and no path from one to the other has a block in
  // between. One of them has to read the other.
  [[nodiscard]] bool can_merge(DagNode a, DagNode b);
  // Merges the blocks. can_merge() has to be true.
  void merge(DagNode a, DagNode b);
  // How many edges were looked at.
  [[nodiscard]] std::uint64_t work() const { return work_; }
  // The blocks in topological order.
  [[nodiscard]] std::vector<DagNode> order() const;
  // Neighbours of a block, as nodes, of which several may be in one block or in the block itself.
  [[nodiscard]] const std::vector<DagNode>& users(DagNode block) const { return users_[block]; }
  [[nodiscard]] const std::vector<DagNode>& inputs(DagNode block) const { return inputs_[block]; }

 private:
  // Collects in reached_ the blocks that `first` reaches up to the place of `last`, without `last`. Returns
  // true if `first` reaches `last` through another block.
  bool reaches_around(DagNode first, DagNode last);
  void tidy(std::vector<DagNode>& neighbours, DagNode block);

  mutable std::vector<DagNode> parent_;
  std::vector<std::vector<DagNode>> users_, inputs_;  // by block
  std::vector<DagNode> at_;                           // by place: the block, or kNone
  std::vector<std::uint32_t> place_;                  // by block
  std::vector<std::uint32_t> mark_;                   // by block: the search that reached it last
  std::uint32_t search_ = 0;
  std::vector<DagNode> reached_;
  std::uint64_t work_ = 0;
};

}  // namespace tosaic::partition
