#include "tosaic/quant/accuracy/contraction.h"

#include "tosaic/base/error.h"
#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/op_table.h"

namespace tosaic::quant {
namespace {

const Constant* bound_constant(const Graph& graph, const Node& node, std::size_t operand) {
  const std::span<const ValueId> operands = graph.operands(node);
  if (operand >= operands.size()) return nullptr;
  const Constant* constant = constant_of(graph, operands[operand]);
  return constant != nullptr && constant->storage.bound() && is_float(constant->dtype) ? constant : nullptr;
}

// A weight [channels, columns], or if `transposed` [columns, channels].
WeightMatrix plain_matrix(const Shape& shape, bool transposed) {
  if (transposed)
    return {.channels = shape[1], .columns = shape[0], .channel_stride = 1, .input_stride = shape[1]};
  return {.channels = shape[0], .columns = shape[1], .channel_stride = shape[1], .input_stride = 1};
}

WeightMatrix conv_matrix(const ConvAttrs& attrs, const Shape& shape) {
  WeightMatrix matrix{.groups = attrs.groups};
  for (std::size_t i = 2; i < shape.size(); ++i) matrix.taps *= shape[i];
  const std::int64_t inputs = attrs.transposed ? shape[0] / attrs.groups : shape[1];
  matrix.channels = attrs.transposed ? shape[1] : shape[0] / attrs.groups;
  matrix.columns = inputs * matrix.taps;
  matrix.channel_stride = attrs.transposed ? matrix.taps : matrix.columns;
  matrix.input_stride = attrs.transposed ? matrix.channels * matrix.taps : matrix.taps;
  matrix.group_stride = matrix.channels * matrix.columns;
  return matrix;
}

// ---- rules: the contraction of a node, if its weight is a constant ----

std::optional<Contraction> conv_of(const Graph& graph, const Node& node) {
  const Constant* weight = bound_constant(graph, node, 1);
  if (weight == nullptr) return std::nullopt;
  const auto& attrs = Graph::attrs<ConvAttrs>(node);
  Contraction out{.kind = ContractionKind::kConv, .bias = 2, .matrix = conv_matrix(attrs, weight->shape)};
  for (std::size_t i = 2; i < weight->shape.size(); ++i) out.kernel.push_back(weight->shape[i]);
  out.conv = attrs;
  return out;
}

std::optional<Contraction> linear_of(const Graph& graph, const Node& node) {
  const Constant* weight = bound_constant(graph, node, 1);
  if (weight == nullptr || weight->shape.size() != 2) return std::nullopt;
  return Contraction{.bias = 2, .matrix = plain_matrix(weight->shape, false)};
}

std::optional<Contraction> matmul_of(const Graph& graph, const Node& node) {
  if (const Constant* right = bound_constant(graph, node, 1); right != nullptr) {
    if (right->shape.size() != 2 || graph.type(graph.operands(node)[0]).rank() == 0) return std::nullopt;
    return Contraction{.matrix = plain_matrix(right->shape, true)};
  }
  const Constant* left = bound_constant(graph, node, 0);
  if (left == nullptr || left->shape.size() != 2 || graph.type(graph.operands(node)[1]).rank() < 2)
    return std::nullopt;
  return Contraction{.kind = ContractionKind::kSecondLastAxis,
                     .input = 1,
                     .weight = 0,
                     .matrix = plain_matrix(left->shape, false)};
}

std::optional<Contraction> addmm_of(const Graph& graph, const Node& node) {
  const Constant* weight = bound_constant(graph, node, 2);
  if (weight == nullptr) return std::nullopt;
  return Contraction{.input = 1,
                     .weight = 2,
                     .bias = 0,
                     .matrix = plain_matrix(weight->shape, true),
                     .factor = as_double(Graph::attrs<AddmmAttrs>(node).alpha)};
}

constexpr OpTable<std::optional<Contraction> (*)(const Graph&, const Node&)> kRules = {
    {Op::kConv, conv_of},
    {Op::kLinear, linear_of},
    {Op::kMatmul, matmul_of},
    {Op::kAddmm, addmm_of},
};

}  // namespace

std::optional<Contraction> contraction_of(const Graph& graph, const Node& node) {
  const auto* const rule = kRules.find(node.op);
  return rule != nullptr ? (*rule)(graph, node) : std::nullopt;
}

const Node& node_named(const Graph& graph, const std::string& name) {
  const ValueId value = graph.find_value(name);
  if (const Node* node = value.valid() ? graph.producer(value) : nullptr) return *node;
  throw InvalidGraph({.where = "accuracy", .what = "the graph has no node of this name", .got = name});
}

Contraction contraction_named(const Graph& graph, const std::string& node) {
  const Node& found = node_named(graph, node);
  if (std::optional<Contraction> contraction = contraction_of(graph, found)) return *std::move(contraction);
  throw InvalidGraph(located({.where = "accuracy",
                              .what = "the node has no constant weight that it multiplies",
                              .expected = "conv, linear, addmm or matmul with a constant of floats",
                              .got = std::string(info(found.op).name)},
                             found.origin, node));
}

std::size_t input_axis(const Contraction& contraction, const Shape& input) {
  switch (contraction.kind) {
    case ContractionKind::kConv:
      return input.size() - contraction.kernel.size() - 1;
    case ContractionKind::kSecondLastAxis:
      return input.size() - 2;
    default:
      return input.size() - 1;
  }
}

std::size_t result_axis(const Contraction& contraction, const Shape& result) {
  return input_axis(contraction, result);
}

}  // namespace tosaic::quant
