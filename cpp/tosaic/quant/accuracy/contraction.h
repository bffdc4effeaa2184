// contraction: a convolution or matrix product with a constant weight, as products of matrices.
//
//   result[g, row p, channel r] = sum over columns c of  input[g, p, c] * weight[g, r, c]
//
//   linear, addmm, matmul by a constant   1 group; a column is a position of the contracted axis
//   convolution                           a column is an input channel of the group and a tap of the kernel
//
// Columns of a convolution are ordered (channel, taps). Rows are the positions at which the contraction reads
// columns: all leading axes of a linear layer, or all positions of a convolution's result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tosaic/ir/graph.h"

namespace tosaic::quant {

// The layout of a weight: where its element for a group, a channel of the group's result and a column is.
struct WeightMatrix {
  std::int64_t groups = 1, channels = 1, columns = 1;
  std::int64_t taps = 1;  // columns of one input channel
  std::int64_t group_stride = 0, channel_stride = 1, input_stride = 1;

  [[nodiscard]] std::size_t index(std::int64_t group, std::int64_t channel, std::int64_t column) const {
    return static_cast<std::size_t>(group * group_stride + channel * channel_stride +
                                    column / taps * input_stride + column % taps);
  }
  // The number of elements.
  [[nodiscard]] std::int64_t size() const { return groups * channels * columns; }
  // The channels of the input and of the result.
  [[nodiscard]] std::int64_t inputs() const { return groups * (columns / taps); }
  [[nodiscard]] std::int64_t results() const { return groups * channels; }
  bool operator==(const WeightMatrix&) const = default;
};

enum class ContractionKind : std::uint8_t {
  kLastAxis,        // the columns are the last axis of the input
  kSecondLastAxis,  // weight @ input: the columns are the last axis but one
  kConv,
};

struct Contraction {
  ContractionKind kind = ContractionKind::kLastAxis;
  std::size_t input = 0, weight = 1;     // positions of the operands
  std::optional<std::size_t> bias = {};  // position of the bias; for conv and linear also if it is absent
  WeightMatrix matrix;
  Dims kernel = {};     // convolutions: the spatial extents of the weight
  ConvAttrs conv = {};  // convolutions
  double factor = 1;    // addmm: alpha
};

// The contraction that a node computes: `conv`, `linear`, `addmm`, or `matmul` with one constant of rank 2.
// Returns nothing for other operators, or if the weight is not a constant.
[[nodiscard]] std::optional<Contraction> contraction_of(const Graph& graph, const Node& node);

// As contraction_of(), of the node with this name. Throws InvalidGraph if there is no such node, or if it is
// no contraction with a constant weight.
[[nodiscard]] Contraction contraction_named(const Graph& graph, const std::string& node);
// The node with this name. Throws InvalidGraph if there is none.
[[nodiscard]] const Node& node_named(const Graph& graph, const std::string& name);

// The axes of the channels in the input and in the result.
[[nodiscard]] std::size_t input_axis(const Contraction& contraction, const Shape& input);
[[nodiscard]] std::size_t result_axis(const Contraction& contraction, const Shape& result);

}  // namespace tosaic::quant
