#include "tosaic/tosa/reader/variables.h"

#include "tosaic/tosa/reader/constants.h"
#include "tosaic/tosa/reader/nodes.h"
#include "tosaic/tosa/reader/operands.h"

namespace tosaic::tosa {

void add_variable_operator(const Place& place, BlockState& state, Op op) {
  const bool reads = op == Op::kTosaVariableRead;
  TensorEntry& variable =
      state.tensors.find(place, name_at(reads ? place.op->inputs() : place.op->outputs(), 0));
  const TensorType type = variable.type;
  std::string name = utf8_text(place, "the name of a variable", view(variable.tensor->variable_name()));
  if (name.empty()) name = std::string(variable.name());
  if (op == Op::kTosaVariable) {
    std::vector<ValueId> initial;
    if (has_data(*variable.tensor)) initial.push_back(add_constant(place, state, variable));
    add_node(place, state, op, TosaVariableAttrs{name, type.dtype, type.shape}, initial, {});
    return;
  }
  const Attrs attrs = TosaVariableAccessAttrs{name, type.dtype, type.shape};
  std::vector<ValueId> operands;
  if (!reads) operands.push_back(value_of(place, state, name_at(place.op->inputs(), 0)));
  const std::vector<TensorType> results = reads ? declared_results(place, state) : std::vector<TensorType>();
  check_results(place, state, op, attrs, operands, results);
  add_node(place, state, op, attrs, operands, results);
}

}  // namespace tosaic::tosa
