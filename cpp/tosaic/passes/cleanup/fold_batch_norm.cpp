// fold-batch-norm: folds a batch norm into the convolution or linear layer in front of it.
//
//   y = batch_norm(conv(x, W, b), g, h, mean, var)
//     -> conv(x, W * s[o], (b - mean) * s + h)   with s = g / sqrt(var + eps), per output channel
//
// The new weights and biases are computed in double and rounded once. All parameters must be constants, the
// batch norm must be the only reader of the convolution, and both must have the same dtype (under autocast
// the dtypes may differ). A linear layer must have a result of rank 2: only then is the batch norm's channel
// axis its output axis.

#include <cmath>

#include "tosaic/ir/recipe.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

struct Affine {
  std::vector<double> scale, shift;  // y = x * scale[c] + shift[c]
};

std::optional<Affine> affine_of(const Graph& graph, const Node& norm) {
  const std::span<const ValueId> operands = graph.operands(norm);
  for (std::size_t i = 1; i < operands.size(); ++i) {
    const Constant* constant = constant_of(graph, operands[i]);
    if (operands[i].valid() && (constant == nullptr || !constant->storage.bound())) return std::nullopt;
  }
  const Constant* weight = constant_of(graph, operands[1]);
  const Constant* bias = constant_of(graph, operands[2]);
  std::optional<Elements> gains, biases;
  if (weight != nullptr) gains.emplace(*weight);
  if (bias != nullptr) biases.emplace(*bias);
  const Elements means(*constant_of(graph, operands[3])), vars(*constant_of(graph, operands[4]));
  const double eps = Graph::attrs<BatchNormAttrs>(norm).eps;
  Affine affine;
  for (std::size_t c = 0; c < means.size(); ++c) {
    const double gain = gains ? gains->as_double(c) : 1.0;
    const double scale = gain / std::sqrt(vars.as_double(c) + eps);
    affine.scale.push_back(scale);
    affine.shift.push_back((biases ? biases->as_double(c) : 0.0) - means.as_double(c) * scale);
  }
  return affine;
}

// The producer of the batch norm's input, or null if the batch norm cannot be folded into it.
const Node* foldable_producer(const Graph& graph, const Node& norm) {
  const ValueId input = graph.operands(norm)[0];
  const Node* producer = graph.producer(input);
  if (producer == nullptr || (producer->op != Op::kConv && producer->op != Op::kLinear)) return nullptr;
  if (producer->op == Op::kLinear && graph.type(input).rank() != 2) return nullptr;
  if (graph.users(input).size() != 1 || graph.is_output(input)) return nullptr;
  if (graph.type(input).dtype != graph.type(graph.operands(norm)[3]).dtype)
    return nullptr;  // the dtypes differ, as under autocast
  const std::span<const ValueId> operands = graph.operands(*producer);
  const Constant* weight = constant_of(graph, operands[1]);
  if (weight == nullptr || !weight->storage.bound()) return nullptr;
  if (operands.size() > 2 && operands[2].valid()) {
    const Constant* bias = constant_of(graph, operands[2]);
    if (bias == nullptr || !bias->storage.bound()) return nullptr;
  }
  return producer;
}

// The output channel of each block of consecutive weight elements, and the block length.
struct WeightChannels {
  std::size_t block;
  std::vector<std::size_t> channel;
};

WeightChannels weight_channels(const Node& producer, const Shape& shape) {
  const bool transposed = producer.op == Op::kConv && Graph::attrs<ConvAttrs>(producer).transposed;
  std::size_t inner = 1;
  for (std::size_t i = transposed ? 2 : 1; i < shape.size(); ++i) inner *= static_cast<std::size_t>(shape[i]);
  WeightChannels out{inner, {}};
  if (!transposed) {
    for (std::size_t o = 0; o < static_cast<std::size_t>(shape[0]); ++o) out.channel.push_back(o);
    return out;
  }
  const auto groups = static_cast<std::size_t>(Graph::attrs<ConvAttrs>(producer).groups);
  const auto in = static_cast<std::size_t>(shape[0]), out_per_group = static_cast<std::size_t>(shape[1]);
  for (std::size_t i = 0; i < in; ++i)
    for (std::size_t o = 0; o < out_per_group; ++o)
      out.channel.push_back(i / (in / groups) * out_per_group + o);
  return out;
}

// Multiplies the weights of each output channel by its scale. A unit is a block of consecutive weights of a
// channel.
class ScaledWeight final : public Recipe {
 public:
  ScaledWeight(const Storage& weight, DType dtype, WeightChannels channels, std::vector<double> scale)
      : Recipe(weight), dtype_(dtype), channels_(std::move(channels)), scale_(std::move(scale)) {}

  [[nodiscard]] std::size_t unit_bytes() const override { return channels_.block * byte_size(dtype_); }
  void compute(std::size_t begin, std::size_t end, std::byte* to) const override {
    UnitReader units(source(), unit_bytes());
    for (std::size_t unit = begin; unit < end; ++unit, to += unit_bytes())
      scale_unit(units.unit(unit), scale_[channels_.channel[unit]], to);
  }

 private:
  void scale_unit(const std::byte* from, double scale, std::byte* to) const {
    if (dtype_ == DType::kF32) {
      const auto* source = reinterpret_cast<const float*>(from);
      auto* target = reinterpret_cast<float*>(to);
      for (std::size_t i = 0; i < channels_.block; ++i)
        target[i] = static_cast<float>(static_cast<double>(source[i]) * scale);
      return;
    }
    const std::size_t width = byte_size(dtype_);
    for (std::size_t at = 0; at < channels_.block * width; at += width)
      store_element(dtype_, to + at, load_element(dtype_, from + at) * scale);
  }

  DType dtype_;
  WeightChannels channels_;
  std::vector<double> scale_;  // by output channel
};

ConstantRef scaled_weight(const Node& producer, const Constant& weight, const Affine& affine) {
  return constant_over(
      weight.name, ConstantKind::kFolded, weight.dtype, weight.shape,
      Storage::deferred(weight.storage.size(), std::make_shared<const ScaledWeight>(
                                                   weight.storage, weight.dtype,
                                                   weight_channels(producer, weight.shape), affine.scale)));
}

}  // namespace

std::optional<Graph> fold_batch_norm(const Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const Node* producer = node.op == Op::kBatchNorm ? foldable_producer(graph, node) : nullptr;
    std::optional<Affine> affine;
    if (producer != nullptr) affine = affine_of(graph, node);
    if (!affine) {
      rewriter.copy(node);
      continue;
    }
    const std::span<const ValueId> operands = graph.operands(*producer);
    const Constant& weight = *constant_of(graph, operands[1]);
    const Constant* bias = operands.size() > 2 ? constant_of(graph, operands[2]) : nullptr;
    std::vector<double> shifted = affine->shift;
    if (bias != nullptr) {
      const Elements biases(*bias);
      for (std::size_t c = 0; c < shifted.size(); ++c) shifted[c] += biases.as_double(c) * affine->scale[c];
    }
    static_cast<void>(rewriter.begin_output(node));
    const ValueId fresh_weight = rewriter.constant(node, scaled_weight(*producer, weight, *affine));
    const ValueId fresh_bias = rewriter.constant(
        node, make_constant(bias != nullptr ? bias->name : weight.name + ".bias", weight.dtype,
                            {static_cast<std::int64_t>(shifted.size())}, shifted));
    const ValueId result =
        rewriter.emit(node, producer->op, *producer->attrs,
                      {rewriter.map(operands[0]), fresh_weight, fresh_bias}, producer->origin);
    rewriter.replace(node, result);
  }
  return without_dead_code(std::move(rewriter).finish());
}

}  // namespace tosaic::passes
