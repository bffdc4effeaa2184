// Depthwise convolutions. Channels last: line by line along the channels, a multiplier m > 1 over the input
// with each channel repeated m times. Channels first, two spatial axes: channel by channel over phase planes.
#include <algorithm>

#include "tosaic/kernels/contraction.h"
#include "tosaic/kernels/gemm.h"

namespace tosaic::kernels {
namespace {

class Depthwise {
 public:
  Depthwise(const Convolution& conv, const FastInputs<float>& inputs)
      : conv_(conv), inputs_(inputs), kernels_(*inputs.depthwise) {
    if (inputs.right != nullptr) {
      auto weights = std::make_shared<std::vector<float>>(conv_.out_channels * conv_.num_taps());
      arrange_weights(inputs.right, weights->data());
      weights_ = std::move(weights);
    } else {
      weights_at_ = plan_.take<float>(conv_.out_channels * conv_.num_taps());
    }
    bias_at_ = plan_.take<float>(conv_.out_channels);
    if (conv_.channels_last) {
      if (multiplier() > 1) repeated_at_ = plan_.take<float>(conv_.in_pixels() * conv_.out_channels);
    } else {
      plan_planes();
    }
  }

  [[nodiscard]] std::size_t scratch_bytes() const { return plan_.bytes(); }
  [[nodiscard]] bool owns_right() const { return weights_ != nullptr; }

  void run(const float* const* operands, float* result, std::byte* scratch) const {
    const float* weights = weights_ != nullptr ? weights_->data() : piece<float>(scratch, weights_at_);
    if (weights_ == nullptr) arrange_weights(operands[1], piece<float>(scratch, weights_at_));
    float* bias = piece<float>(scratch, bias_at_);
    for (Index o = 0; o < conv_.out_channels; ++o)
      bias[o] = conv_.has_bias ? operands[2][o * conv_.bias_stride] : 0.0F;
    if (conv_.channels_last)
      run_lines(operands[0], weights, bias, result, scratch);
    else
      run_planes(operands[0], weights, bias, result, scratch);
  }

 private:
  [[nodiscard]] Index multiplier() const { return conv_.group_out(); }

  // Channels last [taps][channel], channels first [channel][taps].
  void arrange_weights(const float* weights, float* to) const {
    const Index taps = conv_.num_taps();
    for (Index o = 0; o < conv_.out_channels; ++o) {
      const float* from =
          weights + o / multiplier() * conv_.weight_group + o % multiplier() * conv_.weight_out;
      Index tap = 0;
      for (Index d = 0; d < conv_.taps[0]; ++d)
        for (Index h = 0; h < conv_.taps[1]; ++h)
          for (Index w = 0; w < conv_.taps[2]; ++w, ++tap)
            to[conv_.channels_last ? tap * conv_.out_channels + o : o * taps + tap] =
                from[d * conv_.weight_tap[0] + h * conv_.weight_tap[1] + w * conv_.weight_tap[2]];
    }
  }

  [[nodiscard]] DepthwiseLine line() const {
    DepthwiseLine line;
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

  void run_lines(const float* input, const float* weights, const float* bias, float* result,
                 std::byte* scratch) const {
    DepthwiseLine line = this->line();
    line.weight = weights;
    line.bias = bias;
    for (Index n = 0; n < conv_.batch; ++n) {
      const float* image = input + n * conv_.in_pixels() * conv_.in_channels;
      line.input = multiplier() == 1 ? image : repeat_channels(image, piece<float>(scratch, repeated_at_));
      for (Index d = 0; d < conv_.out[0]; ++d)
        for (Index h = 0; h < conv_.out[1]; ++h) {
          line.first[0] = d * conv_.step[0] - conv_.pad[0];
          line.first[1] = h * conv_.step[1] - conv_.pad[1];
          line.output =
              result + ((n * conv_.out[0] + d) * conv_.out[1] + h) * conv_.out[2] * conv_.out_channels;
          kernels_.line(line);
        }
    }
  }

  const float* repeat_channels(const float* image, float* to) const {
    float* at = to;
    for (Index i = 0; i < conv_.in_pixels() * conv_.in_channels; ++i, at += multiplier())
      std::fill_n(at, multiplier(), image[i]);
    return to;
  }

  void plan_planes() {
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
    plane_.clamp = inputs_.clamp;
    plane_.low = inputs_.low;
    plane_.high = inputs_.high;
    plane_.pitch = extent(2);
    constexpr Index overrun = 64;  // the last vectors of a plane read and write past it
    plane_.plane_size = ceil_div(extent(1) * plane_.pitch + overrun, 16) * 16;
    planes_size_ = plane_.step_h * plane_.step_w * plane_.plane_size + overrun;
    planes_at_ = plan_.take<float>(planes_size_);
    sums_at_ = plan_.take<float>(conv_.out[1] * plane_.pitch + overrun);
  }

  void run_planes(const float* input, const float* weights, const float* bias, float* result,
                  std::byte* scratch) const {
    DepthwisePlane plane = plane_;
    plane.planes = piece<float>(scratch, planes_at_);
    plane.sums = piece<float>(scratch, sums_at_);
    std::fill_n(plane.planes, planes_size_, 0.0F);
    for (Index n = 0; n < conv_.batch; ++n)
      for (Index o = 0; o < conv_.out_channels; ++o) {
        plane.input = input + (n * conv_.in_channels + o / multiplier()) * conv_.in_pixels();
        plane.weight = weights + o * conv_.num_taps();
        plane.bias = bias[o];
        plane.output = result + (n * conv_.out_channels + o) * conv_.out_pixels();
        kernels_.plane(plane);
      }
  }

  Convolution conv_;
  FastInputs<float> inputs_;
  const DepthwiseKernels& kernels_;
  std::shared_ptr<const std::vector<float>> weights_;
  DepthwisePlane plane_;
  Index planes_size_ = 0;
  ScratchPlan plan_;
  std::size_t weights_at_ = 0, bias_at_ = 0, repeated_at_ = 0, planes_at_ = 0, sums_at_ = 0;
};

}  // namespace

bool is_depthwise(const Convolution& conv) {
  if (conv.transposed || conv.groups != conv.in_channels || conv.in_channels == 0) return false;
  return conv.pad[0] >= 0 && conv.pad[1] >= 0 && conv.pad[2] >= 0 &&
         (conv.groups > 1 || conv.group_out() == 1);
}

Core<float> depthwise_convolution(const Convolution& conv, const FastInputs<float>& inputs) {
  auto depthwise = std::make_shared<const Depthwise>(conv, inputs);
  Core<float> core;
  core.scratch_bytes = depthwise->scratch_bytes();
  core.owns_right = depthwise->owns_right();
  core.name = "conv.depthwise";
  core.run = [depthwise](const float* const* operands, float* result, std::byte* scratch) {
    depthwise->run(operands, result, scratch);
  };
  return core;
}

}  // namespace tosaic::kernels
