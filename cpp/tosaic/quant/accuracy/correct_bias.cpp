#include "tosaic/quant/accuracy/correct_bias.h"

#include "tosaic/base/error.h"
#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/quant/accuracy/contraction.h"
#include "tosaic/quant/accuracy/operand_edits.h"

namespace tosaic::quant {
namespace {

// A constant of -errors that broadcasts to a result of `rank` axes with the channels on `axis`.
ConstantRef correction(const Graph& graph, const Node& node, std::span<const double> errors, std::size_t rank,
                       std::size_t axis) {
  std::vector<double> values;
  for (const double error : errors) values.push_back(-error);
  Shape shape = Shape::filled(rank - axis, 1);
  shape[0] = static_cast<std::int64_t>(errors.size());
  return make_constant(graph.node_name(node) + ".bias", graph.type(graph.result(node)).dtype, shape, values);
}

// The bias minus errors / beta: addmm computes beta * bias + alpha * product. Elsewhere, beta is 1.
ConstantRef corrected_sum(const Constant& bias, double beta, std::span<const double> errors) {
  Shape shape = bias.shape;
  if (shape.empty()) shape.push_back(1);
  const bool repeats = shape.back() == 1;
  shape[shape.size() - 1] = static_cast<std::int64_t>(errors.size());
  const std::vector<double> old = elements_of(bias);
  std::vector<double> values(static_cast<std::size_t>(num_elements(shape)));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = old[repeats ? i / errors.size() : i] - errors[i % errors.size()] / beta;
  return edited_constant(bias, shape, values);
}

ConstantRef corrected_bias(const Graph& graph, const Node& node, const Contraction& contraction,
                           std::span<const double> errors) {
  const std::span<const ValueId> operands = graph.operands(node);
  const ValueId value = *contraction.bias < operands.size() ? operands[*contraction.bias] : ValueId();
  if (!value.valid()) return correction(graph, node, errors, 1, 0);
  const Constant* bias = constant_of(graph, value);
  if (bias == nullptr || !bias->storage.bound())
    throw InvalidGraph(located({.where = "correct_bias",
                                .what = "the bias is no constant with known elements",
                                .expected = "a constant",
                                .got = "'" + graph.value(value).name + "'"},
                               node.origin, graph.node_name(node)));
  const double beta = node.op == Op::kAddmm ? as_double(Graph::attrs<AddmmAttrs>(node).beta) : 1;
  return corrected_sum(*bias, beta, errors);
}

// matmul has no bias: the errors are subtracted from its result.
Graph with_sum(const Graph& graph, const Node& at, const ConstantRef& sum) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (&node != &at) {
      rewriter.copy(node);
      continue;
    }
    const ValueId product = rewriter.emit(node, node.op, *node.attrs, rewriter.map_operands(node));
    rewriter.replace(node,
                     rewriter.emit(node, Op::kAdd, AlphaAttrs{}, {product, rewriter.constant(node, sum)}));
  }
  return *std::move(rewriter).finish();
}

}  // namespace

Graph correct_bias(const Graph& graph, const std::string& node, std::span<const double> errors) {
  const Contraction contraction = contraction_named(graph, node);
  const Node& found = node_named(graph, node);
  if (contraction.matrix.results() != static_cast<std::int64_t>(errors.size()))
    throw LayoutMismatch(located({.where = "correct_bias",
                                  .what = "the number of errors",
                                  .expected = std::to_string(contraction.matrix.results()) + " channels",
                                  .got = std::to_string(errors.size())},
                                 found.origin, node));
  const bool has_bias =
      contraction.bias && !(found.op == Op::kAddmm && as_double(Graph::attrs<AddmmAttrs>(found).beta) == 0);
  if (has_bias)
    return with_operands(
        graph, {{graph.id(found), {{*contraction.bias, corrected_bias(graph, found, contraction, errors)}}}});
  const Shape& shape = graph.type(graph.result(found)).shape;
  return with_sum(graph, found,
                  correction(graph, found, errors, shape.size(), result_axis(contraction, shape)));
}

}  // namespace tosaic::quant
