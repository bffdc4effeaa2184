// variables: the tensors of a block that are variables.
//
//   tosa.variable(%c) {name="h"}   ->   v = VARIABLE()      v: variable_name="h", data of c
//   tosa.variable_read {name="h"}  ->   VARIABLE_READ(v)
//
// A variable is one tensor in each block that names it: the result of VARIABLE and VARIABLE_WRITE, the
// operand of VARIABLE_READ. The blocks of a file identify it by its variable name.
#pragma once

#include <map>
#include <string>

#include "tosaic/tosa/writer/tensor_list.h"

namespace tosaic::tosa {

class VariableTensors {
 public:
  VariableTensors(const Graph& graph, TensorList& tensors) : graph_(graph), tensors_(tensors) {}

  // Sets the operands and results of a node that declares, reads or writes a variable.
  void add_operands(const Node& node, OperatorPlan& op);

 private:
  [[nodiscard]] std::uint32_t declared(const Node& node);
  [[nodiscard]] std::uint32_t accessed(const Node& node);

  const Graph& graph_;
  TensorList& tensors_;
  std::map<std::string, std::uint32_t> of_name_;
};

}  // namespace tosaic::tosa
