// state: the state that the functions of the reader share.
//
//   FileState   for the whole file: its bytes, its blocks, the budget, the notes
//   BlockState  for the block being read: its tensors, the graph so far
//
// A block is read in these steps. Each step uses what the steps before it have stored in the state:
//
//   tensors.h      the tensors and shape values with their declared types
//   definitions.h  which operator defines which tensor; the lists of operators have the right lengths
//   regions.h      the regions of control flow, each read as a block of its own
//   order.h        the order in which the operators become nodes
//   nodes.h, variables.h   the nodes, with constants.h, operands.h and attributes.h
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/tosa/deserialize.h"
#include "tosaic/tosa/location.h"
#include "tosaic/tosa/reader/blocks.h"
#include "tosaic/tosa/reader/budget.h"
#include "tosaic/tosa/reader/lists.h"
#include "tosaic/tosa/reader/tensors.h"

namespace tosaic::tosa {

struct FileState {
  const Storage& bytes;
  BlockTable blocks;
  Budget budget;
  std::vector<Note> notes;
};

using Regions = std::vector<std::shared_ptr<const Graph>>;

struct BlockState {
  FileState& file;
  BlockEntry& entry;
  std::size_t depth = 0;  // the number of regions around this block; 0 for the program
  const schema::TosaBasicBlock& block;
  TensorTable tensors;
  std::unordered_map<std::uint32_t, Regions> regions;  // by index of the operator
  Graph graph;
  LocationReader locations;

  [[nodiscard]] std::uint32_t operator_count() const {
    return static_cast<std::uint32_t>(length(block.operators()));
  }
  [[nodiscard]] Place place(std::uint32_t i) const { return {at(block.operators(), i), i}; }
};

}  // namespace tosaic::tosa
