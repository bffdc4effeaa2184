#include "tosaic/quant/accuracy/scale_moves.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/op_table.h"

namespace tosaic::quant {
namespace {

ValueId operand_of(const Graph& graph, const Node& node, std::size_t operand) {
  const std::span<const ValueId> operands = graph.operands(node);
  return operand < operands.size() ? operands[operand] : ValueId();
}

// True if the operand is absent, or a constant whose elements are known.
bool is_known(const Graph& graph, const Node& node, std::size_t operand) {
  const ValueId value = operand_of(graph, node, operand);
  if (!value.valid()) return true;
  const Constant* constant = constant_of(graph, value);
  return constant != nullptr && constant->storage.bound() && is_float(constant->dtype);
}

std::optional<ScaleSource> contraction_source(const Graph& graph, const Node& node,
                                              const Contraction& contraction) {
  const ValueId value = graph.result(node);
  const Shape& shape = graph.type(value).shape;
  if (shape.empty()) return std::nullopt;
  ScaleSource source{.node = graph.id(node),
                     .value = value,
                     .axis = result_axis(contraction, shape),
                     .channels = contraction.matrix.results(),
                     .is_contraction = true,
                     .constants = {}};
  if (!contraction.bias || !operand_of(graph, node, *contraction.bias).valid()) return source;
  if (!is_known(graph, node, *contraction.bias)) return std::nullopt;
  const bool is_sum = node.op == Op::kAddmm;  // its bias is broadcast to the result
  source.constants.push_back({.node = source.node,
                              .operand = *contraction.bias,
                              .rank = is_sum ? shape.size() : 1,
                              .place = {is_sum ? source.axis : 0, 1}});
  return source;
}

// A norm with a parameter for each position of `axis`. finish() adds a missing weight, which is 1 / scale.
std::optional<ScaleSource> norm_source(const Graph& graph, const Node& node, std::size_t axis,
                                       bool has_bias) {
  const ValueId value = graph.result(node);
  ScaleSource source{.node = graph.id(node),
                     .value = value,
                     .axis = axis,
                     .channels = graph.type(value).shape[axis],
                     .constants = {}};
  if (!is_float(graph.type(value).dtype)) return std::nullopt;
  for (std::size_t operand = 1; operand <= (has_bias ? 2U : 1U); ++operand) {
    if (!is_known(graph, node, operand)) return std::nullopt;
    if (operand == 1 || operand_of(graph, node, operand).valid())
      source.constants.push_back({.node = source.node, .operand = operand});
  }
  return source;
}

// A product with a constant that has a number for each position of some axis. Chooses the last such axis.
std::optional<ScaleSource> product_source(const Graph& graph, const Node& node) {
  const ValueId value = graph.result(node);
  const Shape& shape = graph.type(value).shape;
  for (const std::size_t operand : {std::size_t{0}, std::size_t{1}}) {
    const Constant* constant = constant_of(graph, graph.operands(node)[operand]);
    if (constant == nullptr || !constant->storage.bound() || !is_float(constant->dtype)) continue;
    for (std::size_t back = 1; back <= constant->shape.size(); ++back) {
      const std::size_t axis = shape.size() - back;
      if (constant->shape[constant->shape.size() - back] != shape[axis] || shape[axis] < 2) continue;
      return ScaleSource{
          .node = graph.id(node),
          .value = value,
          .axis = axis,
          .channels = shape[axis],
          .constants = {
              {.node = graph.id(node), .operand = operand, .rank = shape.size(), .place = {axis, 1}}}};
    }
  }
  return std::nullopt;
}

// A norm over the last axis.
template <bool has_bias>
std::optional<ScaleSource> last_axis_source(const Graph& graph, const Node& node) {
  const std::size_t rank = graph.type(graph.result(node)).rank();
  if (Graph::attrs<NormAttrs>(node).normalized_rank != 1 || rank == 0) return std::nullopt;
  return norm_source(graph, node, rank - 1, has_bias);
}

// A norm whose parameters belong to axis 1.
std::optional<ScaleSource> second_axis_source(const Graph& graph, const Node& node) {
  return graph.type(graph.result(node)).rank() < 2 ? std::nullopt : norm_source(graph, node, 1, true);
}

// The sources among operators that are not contractions.
constexpr OpTable<std::optional<ScaleSource> (*)(const Graph&, const Node&)> kRules = {
    {Op::kLayerNorm, last_axis_source<true>},
    {Op::kRmsNorm, last_axis_source<false>},
    {Op::kGroupNorm, second_axis_source},
    {Op::kBatchNorm, second_axis_source},
    {Op::kMul, product_source},
};

}  // namespace

std::optional<ScaleSource> source_of(const Graph& graph, const Node& node) {
  if (const std::optional<Contraction> contraction = contraction_of(graph, node))
    return contraction_source(graph, node, *contraction);
  const auto* const rule = kRules.find(node.op);
  return rule != nullptr && node.result_count != 0 ? (*rule)(graph, node) : std::nullopt;
}

std::size_t ScaleMoves::Weights::result_of(std::int64_t group, std::int64_t channel) const {
  return static_cast<std::size_t>(group * contraction.matrix.channels + channel);
}

std::size_t ScaleMoves::Weights::input_of(std::int64_t group, std::int64_t column) const {
  const WeightMatrix& matrix = contraction.matrix;
  return static_cast<std::size_t>(group * (matrix.columns / matrix.taps) + column / matrix.taps);
}

double ScaleMoves::Weights::value(std::int64_t group, std::int64_t channel, std::int64_t column) const {
  return values[contraction.matrix.index(group, channel, column)] * results[result_of(group, channel)] *
         inputs[input_of(group, column)];
}

template <class Visit>
void ScaleMoves::Weights::for_each(Visit&& visit) const {
  const WeightMatrix& matrix = contraction.matrix;
  for (std::int64_t group = 0; group < matrix.groups; ++group)
    for (std::int64_t channel = 0; channel < matrix.channels; ++channel)
      for (std::int64_t column = 0; column < matrix.columns; ++column)
        visit(result_of(group, channel), input_of(group, column), matrix.index(group, channel, column),
              value(group, channel, column));
}

ConstantRef ScaleMoves::constant_at(NodeId node, std::size_t operand) const {
  const ValueId value = operand_of(graph_, graph_.node(node), operand);
  return value.valid() ? graph_.value(value).constant : nullptr;
}

ScaleMoves::Weights& ScaleMoves::weights_of(NodeId node) {
  const auto [entry, is_new] = weights_.try_emplace(node);
  Weights& weights = entry->second;
  if (!is_new) return weights;
  weights.contraction = *contraction_of(graph_, graph_.node(node));
  weights.values = elements_of(*constant_at(node, weights.contraction.weight));
  weights.results.assign(static_cast<std::size_t>(weights.contraction.matrix.results()), 1.0);
  weights.inputs.assign(static_cast<std::size_t>(weights.contraction.matrix.inputs()), 1.0);
  return weights;
}

std::vector<double> ScaleMoves::source_ranges(const ScaleSource& source) {
  std::vector<double> out(static_cast<std::size_t>(source.channels));
  weights_of(source.node).for_each([&](std::size_t result, std::size_t, std::size_t, double value) {
    out[result] = std::max(out[result], std::abs(value));
  });
  return out;
}

std::vector<double> ScaleMoves::reader_ranges(const ScaleSource& source, const ChannelPaths& paths) {
  std::vector<double> out(static_cast<std::size_t>(source.channels));
  for (const ScaledReader& reader : paths.readers)
    weights_of(reader.node).for_each([&](std::size_t, std::size_t input, std::size_t, double value) {
      double& most = out[input / static_cast<std::size_t>(reader.run)];
      most = std::max(most, std::abs(value));
    });
  return out;
}

void ScaleMoves::divide(const ScaledConstant& constant, const std::vector<double>& scales) {
  const auto run = static_cast<std::size_t>(constant.place.run);
  Divided& divided = divided_[{constant.node, constant.operand}];
  divided.rank = constant.rank;
  divided.axis = constant.place.axis;
  divided.scales.resize(scales.size() * run, 1.0);
  for (std::size_t i = 0; i < divided.scales.size(); ++i) divided.scales[i] *= scales[i / run];
}

void ScaleMoves::move(const ScaleSource& source, const ChannelPaths& paths,
                      const std::vector<double>& scales) {
  if (source.is_contraction) {
    Weights& weights = weights_of(source.node);
    for (std::size_t i = 0; i < scales.size(); ++i) weights.results[i] /= scales[i];
  }
  for (const ScaledConstant& constant : source.constants) divide(constant, scales);
  for (const ScaledConstant& constant : paths.constants) divide(constant, scales);
  for (const ScaledReader& reader : paths.readers) {
    Weights& weights = weights_of(reader.node);
    for (std::size_t i = 0; i < weights.inputs.size(); ++i)
      weights.inputs[i] *= scales[i / static_cast<std::size_t>(reader.run)];
  }
}

Graph ScaleMoves::finish() const {
  OperandEdits edits;
  for (const auto& [node, weights] : weights_) {
    const auto is_one = [](double factor) { return factor == 1; };
    if (std::ranges::all_of(weights.results, is_one) && std::ranges::all_of(weights.inputs, is_one)) continue;
    std::vector<double> values(weights.values.size());
    weights.for_each([&](std::size_t, std::size_t, std::size_t at, double value) { values[at] = value; });
    const ConstantRef constant = constant_at(node, weights.contraction.weight);
    edits[node][weights.contraction.weight] = edited_constant(*constant, constant->shape, values);
  }
  for (const auto& [place, divided] : divided_) {
    const auto& [node, operand] = place;
    ConstantRef constant = constant_at(node, operand);
    if (constant == nullptr) {  // the weight of a norm without one
      const TensorType& type = graph_.type(graph_.result(graph_.node(node)));
      constant = make_constant(graph_.node_name(graph_.node(node)) + ".weight", type.dtype,
                               {static_cast<std::int64_t>(divided.scales.size())},
                               std::vector<double>(divided.scales.size(), 1.0));
    }
    edits[node][operand] = divided_constant(*constant, divided.rank, divided.axis, divided.scales);
  }
  return with_operands(graph_, edits);
}

}  // namespace tosaic::quant
