#include "tosaic/ir/graph_builder.h"

#include <utility>

#include "tosaic/base/error.h"
#include "tosaic/ir/infer.h"

namespace tosaic {
namespace {

void check_recorded(std::span<const TensorType> inferred, std::span<const TensorType> recorded,
                    const OriginRef& origin, const std::string& name) {
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    if (i < inferred.size() && inferred[i].dtype == recorded[i].dtype &&
        inferred[i].shape == recorded[i].shape)
      continue;
    throw InvalidGraph(located({.where = "import",
                                .what = "result " + std::to_string(i) + " is not what torch recorded",
                                .expected = to_string(recorded[i]),
                                .got = i < inferred.size() ? to_string(inferred[i]) : "no such result"},
                               origin, name));
  }
}

}  // namespace

GraphBuilder::GraphBuilder(std::string name, Stage stage) : graph_(std::make_shared<Graph>()) {
  graph_->name = std::move(name);
  graph_->stage = stage;
}

ValueId GraphBuilder::add_input(std::string name, TensorType type, std::string path, DimOrder order,
                                ConstantRef initial) {
  BoundaryFormat boundary;
  boundary.order = std::move(order);
  const InputKind kind = initial ? InputKind::kState : InputKind::kUser;
  return graph().add_input(kind, std::move(name), std::move(type), std::move(path), std::move(boundary),
                           std::move(initial));
}

ValueId GraphBuilder::add_constant(ConstantRef constant) { return graph().add_constant(std::move(constant)); }

ValueId GraphBuilder::add_node(Call call) {
  for (const ValueId operand : call.operands)
    if (operand.valid()) static_cast<void>(checked(operand));
  const AttrsRef attrs = share(std::move(call.attrs));
  std::vector<TensorType> inferred;
  std::span<const TensorType> types = call.recorded;
  if (has_inference(call.op)) {
    inferred = infer_node(graph(), call.op, *attrs, call.operands, call.origin, call.name);
    check_recorded(inferred, call.recorded, call.origin, call.name);
    types = inferred;
  }
  const NodeId node = graph().add_node(call.op, attrs, call.operands, types, std::move(call.origin),
                                       std::move(call.name), std::move(call.regions));
  return ValueId(graph().node(node).first_result);
}

void GraphBuilder::add_output(ValueId value, std::string path, std::optional<std::uint32_t> mutated_input,
                              DimOrder order) {
  Output output;
  output.value = checked(value);
  output.kind = mutated_input ? OutputKind::kMutation : OutputKind::kUser;
  output.path = std::move(path);
  output.mutated_input = mutated_input.value_or(0);
  output.boundary.order = std::move(order);
  graph().add_output(std::move(output));
}

const TensorType& GraphBuilder::type(ValueId value) const { return graph().type(checked(value)); }

ConstantRef GraphBuilder::constant(ValueId value) const {
  ValueId id = checked(value);
  while (const Node* node = graph().producer(id)) {
    if (node->op != Op::kClone && node->op != Op::kReshape) return nullptr;
    id = graph().operands(*node)[0];
  }
  return graph().value(id).constant;
}

std::shared_ptr<Graph> GraphBuilder::finish() {
  static_cast<void>(graph());
  return std::move(graph_);
}

Graph& GraphBuilder::graph() const {
  if (!graph_) throw InternalError({.where = "graph builder", .what = "used after finish()"});
  return *graph_;
}

ValueId GraphBuilder::checked(ValueId value) const {
  if (!value.valid() || value.index() >= graph().values().size())
    throw InternalError(
        {.where = "graph builder", .what = "no such value", .got = std::to_string(value.index())});
  return value;
}

}  // namespace tosaic
