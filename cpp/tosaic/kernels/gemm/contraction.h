// contraction: the two forms to which all canonical and TOSA contractions are reduced. They are a convolution
// (three spatial axes, channels first or last, any strides of the weights) and a batched matrix product.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tosaic/kernels/gemm/forms.h"
#include "tosaic/kernels/kernel.h"
#include "tosaic/kernels/packs.h"
#include "tosaic/kernels/parallel.h"
#include "tosaic/kernels/scratch.h"
#include "tosaic/kernels/transpose_block.h"

namespace tosaic::kernels {

using Index = std::int64_t;
using Spatial = std::array<Index, 3>;  // d, h, w; with fewer axes, leading entries are 1 (pads: 0)

// The weight for output channel o and input channel i of a group (both count within the group), at tap
// (d, h, w), is at
//
//   group * weight_group + o * weight_out + i * weight_in
//     + d * weight_tap[0] + h * weight_tap[1] + w * weight_tap[2]
//
// If `transposed`, each input i is added to several results: result[i * step + tap * dilation - pad] +=
// input[i] * weight[tap].
struct Convolution {
  Index batch = 1, groups = 1, in_channels = 0, out_channels = 0;
  Spatial in{1, 1, 1}, out{1, 1, 1}, taps{1, 1, 1}, step{1, 1, 1}, dilation{1, 1, 1}, pad{0, 0, 0};
  bool transposed = false, channels_last = false, has_bias = false;
  Index weight_group = 0, weight_out = 0, weight_in = 0;
  Spatial weight_tap{};
  Index bias_stride = 1;  // 0: one bias for all channels

  [[nodiscard]] Index group_in() const { return in_channels / groups; }
  [[nodiscard]] Index group_out() const { return out_channels / groups; }
  [[nodiscard]] Index in_pixels() const { return in[0] * in[1] * in[2]; }
  [[nodiscard]] Index out_pixels() const { return out[0] * out[1] * out[2]; }
  [[nodiscard]] Index num_taps() const { return taps[0] * taps[1] * taps[2]; }
  // The input coordinate, along an axis, that tap `tap` reads for output coordinate `at`. A coordinate
  // outside [0, in) is padding. Returns -1 if a transposed convolution has no input at this coordinate.
  [[nodiscard]] Index input_at(std::size_t axis, Index at, Index tap) const;
};

// Products of matrices A[rows x depth] and B[depth x cols]. For each batch, the result C[rows x cols] is one
// of
//
//   A * B,   A * B + bias[col],   alpha * A * B + beta * input
//
// The rows of A are a_row apart; element (k, j) of B is at k * b_depth + j * b_col; C is dense.
struct Product {
  struct Batch {
    Index a = 0, b = 0, input = 0;  // offsets in elements
  };
  std::vector<Batch> batches;
  Index rows = 0, cols = 0, depth = 0;
  Index a_row = 0, b_depth = 0, b_col = 0;
  bool has_bias = false;   // CoreOperands::third is a bias, one element per column
  bool has_input = false;  // CoreOperands::third is an addend with strides input_row and input_col
  Index input_row = 0, input_col = 0;
  Scalar alpha = std::int64_t{1}, beta = std::int64_t{1};
  Index a_size = 0, b_size = 0;  // elements
};

// The number of matrices of the right operand. Empty matrices count as one.
[[nodiscard]] inline Index num_matrices(const Product& p) {
  return std::max<Index>(1, p.b_size / std::max<Index>(1, p.depth * p.cols));
}

// The arrays that a contraction reads; `third` is a bias or an addend.
template <class T>
struct CoreOperands {
  const Source<T>* left = nullptr;
  const Factor<T>* right = nullptr;
  const Sum<T>* third = nullptr;
};

// A contraction of form T (isa/gemm.h). The elements of the result have type Sum<T>, or the type that the
// epilogue writes.
template <class T>
struct Core {
  std::function<void(const CoreOperands<T>& operands, std::byte* result, const Workspace& workspace)> run;
  std::size_t scratch_bytes = 0;
  bool owns_right = false;  // the right operand was packed: run() does not read it
  std::string name;
  // The functions of a RowProduct. Empty unless FastInputs::by_rows is set.
  std::function<void(const Factor<T>* right, std::byte* scratch)> pack = {};
  std::function<void(const Source<T>* left, Index rows, std::byte* result, std::byte* scratch)>
      multiply_rows = {};
};

// The operators that follow a contraction and are fused with it. run() converts `count` adjacent sums to
// elements of `bytes` bytes. The sums belong to the channels (in a product: columns) `channel`, `channel` +
// 1, ..., where channel 0 follows the last one.
template <class T>
struct Epilogue {
  std::function<void(const Sum<T>* sums, Index count, Index channel, std::byte* to, std::byte* scratch)> run;
  std::size_t bytes = 0, scratch_bytes = 0;
  // Set if the result is i8 or i32 and RESCALE has a result for every sum: the parameters of `run` as tables,
  // with an entry for each channel. Then the loops of the contraction rescale the sums, and do not call
  // `run`, which owns the memory of the tables. The loops of depthwise and transposed convolutions do not
  // rescale to i32.
  std::optional<RescaleTables<std::int32_t>> tables = std::nullopt;
  // The same for WidePairs and an i16 result. The loops rescale only if B has a single band.
  std::optional<RescaleTables<std::int64_t>> word_tables = std::nullopt;
  explicit operator bool() const { return run != nullptr; }
  [[nodiscard]] bool rescales_to_bytes() const { return tables.has_value() && bytes == 1; }
};

// The arguments with which a fast core is prepared.
template <class T>
struct FastInputs {
  Loops<T> loops = {};
  bool reads_lines = true;  // may read patches in place (lines.h)
  const TransposeKernels* transpose = nullptr;
  const Factor<T>* right = nullptr;  // the constant weights, null when they are not constant
  const Sum<T>* third = nullptr;     // the constant bias, null if it is not constant, or of another type
  Factor<T> left_zero_point = 0;     // zero point of the left operand; used if !kReadsInPlace<T>
  Factor<T> right_zero_point = 0;    // zero point of the right operand; used if kHasQuads<T>
  Threads threads = {};
  Packs* packs = nullptr;  // shares the packed weights under `key`; null: not shared
  std::string key = {};
  bool clamp = false;  // clamps the results to [low, high]; must be false if Product::has_input
  Sum<T> low = 0, high = 0;
  Epilogue<T> epilogue = {};  // must be empty if Product::has_input
  bool by_rows =
      false;  // sets Core::multiply_rows; only for one batch, no addend and a right operand that varies
};

// Makes a Core of an algorithm: an object that has run(), scratch_bytes() and owns_right().
template <class T, class Algorithm>
[[nodiscard]] Core<T> as_core(const char* name, const std::shared_ptr<const Algorithm>& algorithm) {
  Core<T> core;
  core.scratch_bytes = algorithm->scratch_bytes();
  core.owns_right = algorithm->owns_right();
  core.name = name;
  core.run = [algorithm](const CoreOperands<T>& operands, std::byte* result, const Workspace& workspace) {
    algorithm->run(operands, result, workspace);
  };
  return core;
}
// Constructs the algorithm from the arguments.
template <class T, class Algorithm, class... Args>
[[nodiscard]] Core<T> as_core(const char* name, const Args&... args) {
  return as_core<T>(name, std::make_shared<const Algorithm>(args...));
}

// The weights that `make` packs. They are shared through `inputs.packs` if that is not null.
template <class T, class Make>
[[nodiscard]] std::shared_ptr<const LargeArray<Factor<T>>> packed_weights(const FastInputs<T>& inputs,
                                                                          Make&& make) {
  if (inputs.packs != nullptr)
    return inputs.packs->template share<Factor<T>>(inputs.key, std::forward<Make>(make));
  return std::make_shared<const LargeArray<Factor<T>>>(std::forward<Make>(make)());
}

// Cores of plain loops. T is double or int64, and int64 sums wrap.
template <class T>
[[nodiscard]] Core<T> reference_convolution(const Convolution& conv);
template <class T>
[[nodiscard]] Core<T> reference_product(const Product& product);

// Cores of vectorised loops. A product of integers has no addend.
template <class T>
[[nodiscard]] Core<T> fast_convolution(const Convolution& conv, const FastInputs<T>& inputs);
template <class T>
[[nodiscard]] Core<T> fast_product(const Product& product, const FastInputs<T>& inputs);

// True if each output pixel reads only the input pixel at the same position.
[[nodiscard]] bool is_pointwise(const Convolution& conv);

// True if the convolution has one input channel per group, is not transposed and has no negative padding. A
// convolution with a single group must also have a single output channel.
[[nodiscard]] bool is_depthwise(const Convolution& conv);
// True if Loops::steps can compute this depthwise convolution.
[[nodiscard]] bool steps_fit(const Convolution& conv);
// A core for depthwise convolutions with channels last.
template <class T>
[[nodiscard]] Core<T> depthwise_convolution(const Convolution& conv, const FastInputs<T>& inputs);

}  // namespace tosaic::kernels
