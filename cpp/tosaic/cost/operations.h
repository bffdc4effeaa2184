// operations: the nodes of a graph as an NPU sees them, after it has merged RESCALE into its neighbours.
//
//   a i8   rescale -> i32   add   rescale -> i8     one ADD of i8 that scales its operands and its result
//   matmul -> reshape -> rescale -> i8              one product that scales its result
//
// The conditions are those of Vela 5.2. A RESCALE that does not meet them stays an operation.
#pragma once

#include <vector>

#include "tosaic/cost/machine.h"
#include "tosaic/ir/graph.h"

namespace tosaic::cost {

struct Operation {
  NodeId node;
  Op op = Op::kTosaIdentity;
  std::vector<ValueId> reads = {};  // feature maps: no weights, biases and tables
  ValueId result = {};
  ValueId computed = {};  // has the shape that the operation computes: the result before merged RESHAPEs
  std::vector<NodeId> merged = {};
  bool scales_reads = false, scales_result = false;  // by a RESCALE that is merged, and not by one
  bool is_merged = false;                            // it is part of another operation
};

class Operations {
 public:
  Operations(const Graph& graph, const Machine& machine);

  [[nodiscard]] const Graph& graph() const { return *graph_; }
  [[nodiscard]] const std::vector<Operation>& all() const { return all_; }
  // The operation that makes a value; null for inputs, constants and values within an operation.
  [[nodiscard]] const Operation* writer(ValueId value) const;
  // The operations that read a value, one entry for each operand.
  [[nodiscard]] const std::vector<std::size_t>& readers(ValueId value) const {
    return readers_[value.index()];
  }
  // True if one operation reads the value, and it does not leave the graph.
  [[nodiscard]] bool is_internal(ValueId value) const;

 private:
  void add(const Node& node);
  void merge_rescale(std::size_t at);
  [[nodiscard]] bool try_reader(Operation& rescale);
  [[nodiscard]] bool try_writer(Operation& rescale);
  void move_into_reader(Operation& rescale, Operation& reader);

  const Graph* graph_;
  const Machine* machine_;
  std::vector<Operation> all_;
  std::vector<std::int32_t> writers_;              // by value; -1 for none
  std::vector<std::vector<std::size_t>> readers_;  // by value
};

// True for operators that compute each element of the result from the elements at its place.
[[nodiscard]] bool is_elementwise(Op op);
// True for CLAMP and TABLE.
[[nodiscard]] bool is_function(Op op);

}  // namespace tosaic::cost
