// file_plan: a .tosa file as plain data, before it is encoded.
//
//   graph: %y = tosa.conv2d(%x, %w, %b) {input_zp=3}
//   plan:  tensors     x, w, b, zp_i8_3, zp_i8_0, y
//          constants   CONST -> w, CONST -> b, CONST -> zp_i8_3, ...
//          operators   CONV2D(x, w, b, zp_i8_3, zp_i8_0) -> y
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/since.h"

namespace tosaic::tosa {

// An entry of a block that has a name: a tensor (constant or not), a variable, or a shape value.
struct TensorPlan {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  ConstantRef constant;       // elements in memory
  std::string variable_name;  // the variable's name; empty for other tensors
  bool is_shape = false;
  std::vector<std::int64_t> extents;  // the entries of a shape value

  // The size of the elements in the file.
  [[nodiscard]] std::size_t packed_bytes() const;
};

struct OperatorPlan {
  std::uint32_t code = 0;
  const Node* node = nullptr;                  // null: CONST, CONST_SHAPE or an IDENTITY added for an output
  std::vector<std::uint32_t> inputs, outputs;  // indices into tensors
  std::vector<std::string> regions;            // control flow: the names of the blocks of its regions
};

// The program or a region. In the file it is a region with one block of the same name.
struct BlockPlan {
  const Graph* graph = nullptr;
  std::string name;
  std::vector<TensorPlan> tensors;
  std::vector<OperatorPlan> constants, operators;
  std::vector<std::uint32_t> inputs, outputs;
};

struct FilePlan {
  std::vector<BlockPlan> blocks;  // the program first
  TosaVersion version = {};       // the least that has everything in the program
};

// Throws for graphs that a file cannot express: see lay_out().
[[nodiscard]] FilePlan plan_file(const Graph& program);

}  // namespace tosaic::tosa
