// Depthwise convolutions. With channels last, the kernel computes one line of the result at a time, with
// vectors along the channels. For a channel multiplier m > 1, each channel of the input is first repeated m
// times. With channels first, and at most two spatial axes, it computes one channel at a time, over phase
// planes (isa/depthwise.h).
#include <algorithm>

#include "tosaic/kernels/contraction.h"
#include "tosaic/kernels/gemm.h"

namespace tosaic::kernels {
namespace {

// Weights and biases, in the order in which the loops for channels last or channels first read them.
template <class T>
class Parameters {
 public:
  Parameters(const Convolution& conv, const FastInputs<T>& inputs, ScratchPlan& plan) : conv_(conv) {
    if (inputs.right != nullptr)
      weights_ = packed_weights(inputs, [&] {
        std::vector<T> weights(static_cast<std::size_t>(size()));
        arrange(inputs.right, weights.data());
        return weights;
      });
    else
      weights_at_ = plan.take<T>(size());
    bias_at_ = plan.take<Sum<T>>(conv_.out_channels);
  }

  [[nodiscard]] bool owns_weights() const { return weights_ != nullptr; }

  // Channels last: [taps][channel][kStep]; channels first: [channel][taps].
  const T* weights(const CoreOperands<T>& operands, std::byte* scratch) const {
    if (weights_ != nullptr) return weights_->data();
    arrange(operands.right, piece<T>(scratch, weights_at_));
    return piece<T>(scratch, weights_at_);
  }

  const Sum<T>* bias(const CoreOperands<T>& operands, std::byte* scratch) const {
    auto* bias = piece<Sum<T>>(scratch, bias_at_);
    for (Index o = 0; o < conv_.out_channels; ++o)
      bias[o] = conv_.has_bias ? operands.third[o * conv_.bias_stride] : Sum<T>{};
    return bias;
  }

 private:
  static constexpr Index kStep = Arithmetic<T>::kStep;

  [[nodiscard]] Index size() const { return conv_.out_channels * conv_.num_taps() * kStep; }

  void arrange(const T* weights, T* to) const {
    const Index taps = conv_.num_taps(), multiplier = conv_.group_out();
    std::fill_n(to, size(), T{});
    for (Index o = 0; o < conv_.out_channels; ++o) {
      const T* from = weights + o / multiplier * conv_.weight_group + o % multiplier * conv_.weight_out;
      Index tap = 0;
      for (Index d = 0; d < conv_.taps[0]; ++d)
        for (Index h = 0; h < conv_.taps[1]; ++h)
          for (Index w = 0; w < conv_.taps[2]; ++w, ++tap)
            to[(conv_.channels_last ? tap * conv_.out_channels + o : o * taps + tap) * kStep] =
                from[d * conv_.weight_tap[0] + h * conv_.weight_tap[1] + w * conv_.weight_tap[2]];
    }
  }

  Convolution conv_;
  std::shared_ptr<const std::vector<T>> weights_;
  std::size_t weights_at_ = 0, bias_at_ = 0;
};

// The core for channels last.
template <class T>
class DepthwiseLines {
 public:
  DepthwiseLines(const Convolution& conv, const FastInputs<T>& inputs)
      : conv_(conv), inputs_(inputs), kernels_(*inputs.depthwise), parameters_(conv, inputs, plan_) {
    if (multiplier() > 1) repeated_at_ = plan_.take<Source<T>>(conv_.in_pixels() * conv_.out_channels);
    if (!inputs_.epilogue) return;
    sums_at_ = plan_.take<Sum<T>>(line_size());
    epilogue_at_ = plan_.take<std::byte>(static_cast<Index>(inputs_.epilogue.scratch_bytes));
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return parameters_.owns_weights(); }

  void run(const CoreOperands<T>& operands, std::byte* result, std::byte* scratch) const {
    DepthwiseLine<T> line = this->line();
    line.weight = parameters_.weights(operands, scratch);
    line.bias = parameters_.bias(operands, scratch);
    Index at = 0;  // offset of the line of outputs in the result
    for (Index n = 0; n < conv_.batch; ++n) {
      const Source<T>* image = operands.left + n * conv_.in_pixels() * conv_.in_channels;
      line.input =
          multiplier() == 1 ? image : repeat_channels(image, piece<Source<T>>(scratch, repeated_at_));
      for (Index d = 0; d < conv_.out[0]; ++d)
        for (Index h = 0; h < conv_.out[1]; ++h, at += line_size()) {
          line.first[0] = d * conv_.step[0] - conv_.pad[0];
          line.first[1] = h * conv_.step[1] - conv_.pad[1];
          run_line(line, at, result, scratch);
        }
    }
  }

 private:
  [[nodiscard]] Index multiplier() const { return conv_.group_out(); }
  [[nodiscard]] Index line_size() const { return conv_.out[2] * conv_.out_channels; }

  [[nodiscard]] DepthwiseLine<T> line() const {
    DepthwiseLine<T> line;
    line.zero_point = inputs_.left_zero_point;
    line.channels = conv_.out_channels;
    Index stride = conv_.out_channels;
    for (std::size_t axis = 3; axis-- > 0;) {
      line.in[axis] = conv_.in[axis];
      line.stride[axis] = stride;
      stride *= conv_.in[axis];
      line.taps[axis] = conv_.taps[axis];
      line.dilation[axis] = conv_.dilation[axis];
    }
    line.first[2] = -conv_.pad[2];
    line.step_w = conv_.step[2];
    line.out_w = conv_.out[2];
    line.clamp = inputs_.clamp;
    line.low = inputs_.low;
    line.high = inputs_.high;
    return line;
  }

  void run_line(DepthwiseLine<T>& line, Index at, std::byte* result, std::byte* scratch) const {
    const Epilogue<T>& epilogue = inputs_.epilogue;
    line.output = epilogue ? piece<Sum<T>>(scratch, sums_at_) : reinterpret_cast<Sum<T>*>(result) + at;
    kernels_.line(line);
    if (epilogue)
      epilogue.run(line.output, line_size(), 0, result + at * static_cast<Index>(epilogue.bytes),
                   piece<std::byte>(scratch, epilogue_at_));
  }

  const Source<T>* repeat_channels(const Source<T>* image, Source<T>* to) const {
    Source<T>* at = to;
    for (Index i = 0; i < conv_.in_pixels() * conv_.in_channels; ++i, at += multiplier())
      std::fill_n(at, multiplier(), image[i]);
    return to;
  }

  Convolution conv_;
  FastInputs<T> inputs_;
  const DepthwiseKernels<T>& kernels_;
  ScratchPlan plan_;
  Parameters<T> parameters_;
  std::size_t repeated_at_ = 0, sums_at_ = 0, epilogue_at_ = 0;
};

// The core for channels first.
class DepthwisePlanes {
 public:
  DepthwisePlanes(const Convolution& conv, const FastInputs<float>& inputs)
      : conv_(conv), kernels_(*inputs.depthwise), parameters_(conv, inputs, plan_) {
    plane_.in_h = conv_.in[1];
    plane_.in_w = conv_.in[2];
    plane_.out_h = conv_.out[1];
    plane_.out_w = conv_.out[2];
    plane_.pad_h = conv_.pad[1];
    plane_.pad_w = conv_.pad[2];
    plane_.step_h = conv_.step[1];
    plane_.step_w = conv_.step[2];
    plane_.taps_h = conv_.taps[1];
    plane_.taps_w = conv_.taps[2];
    plane_.dilation_h = conv_.dilation[1];
    plane_.dilation_w = conv_.dilation[2];
    const auto extent = [&](std::size_t axis) {
      const Index read =
          conv_.out[axis] - 1 + (conv_.taps[axis] - 1) * conv_.dilation[axis] / conv_.step[axis] + 1;
      return std::max(read, ceil_div(conv_.pad[axis] + conv_.in[axis], conv_.step[axis]));
    };
    plane_.clamp = inputs.clamp;
    plane_.low = inputs.low;
    plane_.high = inputs.high;
    plane_.pitch = extent(2);
    constexpr Index overrun = 64;  // the last vectors of a plane read and write beyond its end
    plane_.plane_size = ceil_div(extent(1) * plane_.pitch + overrun, 16) * 16;
    planes_size_ = plane_.step_h * plane_.step_w * plane_.plane_size + overrun;
    planes_at_ = plan_.take<float>(planes_size_);
    sums_at_ = plan_.take<float>(conv_.out[1] * plane_.pitch + overrun);
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return parameters_.owns_weights(); }

  void run(const CoreOperands<float>& operands, std::byte* results, std::byte* scratch) const {
    const float* weights = parameters_.weights(operands, scratch);
    const float* bias = parameters_.bias(operands, scratch);
    auto* result = reinterpret_cast<float*>(results);
    DepthwisePlane plane = plane_;
    plane.planes = piece<float>(scratch, planes_at_);
    plane.sums = piece<float>(scratch, sums_at_);
    std::fill_n(plane.planes, planes_size_, 0.0F);
    for (Index n = 0; n < conv_.batch; ++n)
      for (Index o = 0; o < conv_.out_channels; ++o) {
        plane.input = operands.left + (n * conv_.in_channels + o / conv_.group_out()) * conv_.in_pixels();
        plane.weight = weights + o * conv_.num_taps();
        plane.bias = bias[o];
        plane.output = result + (n * conv_.out_channels + o) * conv_.out_pixels();
        kernels_.plane(plane);
      }
  }

 private:
  Convolution conv_;
  const DepthwiseKernels<float>& kernels_;
  ScratchPlan plan_;
  Parameters<float> parameters_;
  DepthwisePlane plane_;
  Index planes_size_ = 0;
  std::size_t planes_at_ = 0, sums_at_ = 0;
};

template <class T, class Algorithm>
Core<T> as_core(const Convolution& conv, const FastInputs<T>& inputs) {
  auto algorithm = std::make_shared<const Algorithm>(conv, inputs);
  Core<T> core;
  core.scratch_bytes = algorithm->scratch_bytes();
  core.owns_right = algorithm->owns_right();
  core.name = "conv.depthwise";
  core.run = [algorithm](const CoreOperands<T>& operands, std::byte* result, std::byte* scratch) {
    algorithm->run(operands, result, scratch);
  };
  return core;
}

}  // namespace

bool is_depthwise(const Convolution& conv) {
  if (conv.transposed || conv.groups != conv.in_channels || conv.in_channels == 0) return false;
  return conv.pad[0] >= 0 && conv.pad[1] >= 0 && conv.pad[2] >= 0 &&
         (conv.groups > 1 || conv.group_out() == 1);
}

template <class T>
Core<T> depthwise_convolution(const Convolution& conv, const FastInputs<T>& inputs) {
  if constexpr (std::is_same_v<T, float>)
    if (!conv.channels_last) return as_core<T, DepthwisePlanes>(conv, inputs);
  return as_core<T, DepthwiseLines<T>>(conv, inputs);
}

template Core<float> depthwise_convolution(const Convolution&, const FastInputs<float>&);
template Core<double> depthwise_convolution(const Convolution&, const FastInputs<double>&);
template Core<std::int16_t> depthwise_convolution(const Convolution&, const FastInputs<std::int16_t>&);

}  // namespace tosaic::kernels
