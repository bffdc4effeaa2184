#include "tosaic/tosa/writer/variables.h"

#include "tosaic/base/error_text.h"
#include "tosaic/ir/attributes.h"
#include "tosaic/tosa/writer/operands.h"

namespace tosaic::tosa {
namespace {

template <class A>
TensorPlan variable_tensor(const A& attrs) {
  TensorPlan tensor;
  tensor.variable_name = attrs.name;
  tensor.dtype = attrs.dtype;
  tensor.shape = attrs.shape;
  return tensor;
}

}  // namespace

void VariableTensors::add_operands(const Node& node, OperatorPlan& op) {
  if (node.op == Op::kTosaVariable) {
    op.outputs.push_back(declared(node));
    return;
  }
  const std::uint32_t variable = accessed(node);
  if (node.op == Op::kTosaVariableRead) {
    op.inputs.push_back(variable);
    return;
  }
  const ValueId written = graph_.operands(node)[0];
  if (!written.valid())
    fail_at(graph_, node, "an operand is absent", "all operands of a TOSA operator", "none");
  op.inputs.push_back(tensors_.of_value(written));
  op.outputs.push_back(variable);
}

// The tensor of a variable has the name of its initial value if that constant has no other use. If that
// constant has other uses, the tensor has the name of the variable.
std::uint32_t VariableTensors::declared(const Node& node) {
  const auto& attrs = Graph::attrs<TosaVariableAttrs>(node);
  if (const auto known = of_name_.find(attrs.name); known != of_name_.end()) return known->second;
  TensorPlan tensor = variable_tensor(attrs);
  const std::span<const ValueId> operands = graph_.operands(node);
  if (!operands.empty() && operands[0].valid()) {
    const Value& initial = graph_.value(operands[0]);
    if (initial.kind != ValueKind::kConstant)
      fail_at(graph_, node, "the initial value of variable '" + attrs.name + "' is computed", "a constant",
              quoted(initial.name));
    check_value(initial);
    tensor.constant = initial.constant;
    if (graph_.users(operands[0]).size() == 1 && !graph_.is_output(operands[0])) tensor.name = initial.name;
  }
  if (tensor.name.empty()) tensor.name = tensors_.fresh_name(attrs.name);
  return of_name_[attrs.name] = tensors_.add(std::move(tensor));
}

std::uint32_t VariableTensors::accessed(const Node& node) {
  const auto& attrs = Graph::attrs<TosaVariableAccessAttrs>(node);
  const auto [it, fresh] = of_name_.try_emplace(attrs.name, 0u);
  if (!fresh) return it->second;
  TensorPlan tensor = variable_tensor(attrs);
  tensor.name = tensors_.fresh_name(attrs.name);
  return it->second = tensors_.add(std::move(tensor));
}

}  // namespace tosaic::tosa
