// 1x1 convolutions of floats with channels first, as matrix products:
//
//   result[channels x pixels] = weights * input
#include "tosaic/kernels/contraction.h"
#include "tosaic/kernels/gemm.h"

namespace tosaic::kernels {

bool is_pointwise(const Convolution& conv) {
  for (std::size_t axis = 0; axis < 3; ++axis)
    if (conv.taps[axis] != 1 || conv.step[axis] != 1 || conv.pad[axis] != 0 ||
        conv.in[axis] != conv.out[axis])
      return false;
  return true;
}

namespace {

// The rows of the product are output channels, the columns are pixels.
template <class T>
class PointwiseFirst {
 public:
  PointwiseFirst(const Convolution& conv, const FastInputs<T>& inputs)
      : conv_(conv), inputs_(inputs), kernels_(*inputs.gemm) {
    const Index pixels = conv_.in_pixels();
    const Index depth = conv_.group_in();
    weight_stride_ = spread_stride<T>(depth);
    const Index panels = std::max<Index>(1, 65536 / (std::max<Index>(depth, 1) * kernels_.panel));
    block_cols_ = std::min(panels * kernels_.panel,
                           ceil_div(std::max<Index>(pixels, 1), kernels_.panel) * kernels_.panel);
    blocking_ = gemm_blocking(kernels_, conv_.group_out(), Bands<T>(kernels_, depth, pixels));
    grid_ = gemm_grid(kernels_, conv_.group_out(), pixels, depth, inputs.threads);
    if (inputs.right != nullptr) {
      spread_ = packed_weights(inputs, [&] {
        LargeArray<T> spread(conv_.out_channels * weight_stride_);
        spread_weights(inputs.right, spread.data());
        return spread;
      });
    } else {
      spread_at_ = plan_.take<T>(conv_.out_channels * weight_stride_);
    }
    bias_at_ = plan_.take<T>(conv_.out_channels);
    ScratchPlan own;
    own.take<T>(Bands<T>(kernels_, depth, block_cols_).elements());
    workers_ = plan_.take_each(own, inputs.threads.count);
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return spread_ != nullptr; }

  void run(const CoreOperands<T>& operands, std::byte* results, const Workspace& workspace) const {
    std::byte* const scratch = workspace.scratch;
    auto* result = reinterpret_cast<T*>(results);
    const T* weights = spread_ != nullptr ? spread_->data() : nullptr;
    if (weights == nullptr) {
      spread_weights(operands.right, piece<T>(scratch, spread_at_));
      weights = piece<T>(scratch, spread_at_);
    }
    T* bias = piece<T>(scratch, bias_at_);
    for (Index o = 0; o < conv_.out_channels; ++o)
      bias[o] = conv_.has_bias ? operands.third[o * conv_.bias_stride] : T{};
    for (Index n = 0; n < conv_.batch; ++n)
      for (Index group = 0; group < conv_.groups; ++group) {
        const Index first_out = group * conv_.group_out();
        const T* input =
            operands.left + (n * conv_.in_channels + group * conv_.group_in()) * conv_.in_pixels();
        T* to = result + (n * conv_.out_channels + first_out) * conv_.in_pixels();
        for_each_part(workspace.team, kernels_, grid_, conv_.group_out(), conv_.in_pixels(),
                      [&](const GemmPart& part, Worker worker) {
                        run_part(part, weights + first_out * weight_stride_, input, bias + first_out, to,
                                 piece<T>(workers_.of(scratch, worker), 0));
                      });
      }
  }

 private:
  void spread_weights(const T* weights, T* to) const {
    for (Index o = 0; o < conv_.out_channels; ++o) {
      const T* from =
          weights + o / conv_.group_out() * conv_.weight_group + o % conv_.group_out() * conv_.weight_out;
      for (Index c = 0; c < conv_.group_in(); ++c) to[o * weight_stride_ + c] = from[c * conv_.weight_in];
    }
  }

  void run_part(const GemmPart& part, const T* weights, const T* input, const T* bias, T* result,
                T* packed) const {
    const Index pixels = conv_.in_pixels();
    for (Index col = part.first_col; col < part.end_col; col += block_cols_) {
      const Index cols = std::min(block_cols_, part.end_col - col);
      const Bands<T> bands(kernels_, conv_.group_in(), cols);
      pack_bands(kernels_, bands, input + col, pixels, 1, packed);
      GemmProblem<T> problem{.rows = part.end_row,
                             .cols = cols,
                             .first_row = part.first_row,
                             .a = weights,
                             .a_stride = weight_stride_,
                             .b = packed,
                             .bands = bands,
                             .c = result + col,
                             .c_stride = pixels,
                             .row_bias = bias,
                             .clamp = inputs_.clamp,
                             .low = inputs_.low,
                             .high = inputs_.high};
      multiply(kernels_, blocking_, problem);
    }
  }

  Convolution conv_;
  FastInputs<T> inputs_;
  const GemmKernels<T>& kernels_;
  GemmBlocking blocking_;
  Index weight_stride_ = 0, block_cols_ = 0;
  std::shared_ptr<const LargeArray<T>> spread_;
  GemmGrid grid_;
  ScratchPlan plan_;
  std::size_t spread_at_ = 0, bias_at_ = 0;
  PerWorker workers_;  // packed columns
};

}  // namespace

template <class T>
Core<T> pointwise_first(const Convolution& conv, const FastInputs<T>& inputs) {
  return as_core<T, PointwiseFirst<T>>("conv.gemm", conv, inputs);
}

template Core<float> pointwise_first(const Convolution&, const FastInputs<float>&);
template Core<double> pointwise_first(const Convolution&, const FastInputs<double>&);

}  // namespace tosaic::kernels
