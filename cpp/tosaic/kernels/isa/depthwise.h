// Depthwise convolution: the loops that each instruction set provides.
//
// Channels are last, and vectors are along them.
//
// Integers are multiplied as pairs, as in isa/gemm.h. A step has one tap only, so the second weight of each
// pair is zero. With WidePairs there are at most kMostWideDepth taps. Some instruction sets multiply several
// taps of bytes at once: isa/depthwise_steps.h.
#pragma once

#include <cstdint>

#include "tosaic/kernels/isa/gemm.h"

namespace tosaic::kernels {

// One line of the result along w, with all channels. Weights are [taps d][taps h][taps w][channels][kStep].
template <class T>
struct DepthwiseLine {
  const Source<T>* input = nullptr;  // the image, at d = h = w = 0
  Factor<T> zero_point = 0;          // zero point of the input; unused for floats
  const Factor<T>* weight = nullptr;
  const Sum<T>* bias = nullptr;  // null: no bias
  Sum<T>* output = nullptr;
  // If not null, the sums are rescaled to `words` instead of `output`, and `bias` is not added. Only for
  // WidePairs.
  const WordTables* rescale_words = nullptr;
  std::int16_t* words = nullptr;
  std::int64_t channels = 0;
  std::int64_t in[3] = {}, stride[3] = {}, taps[3] = {}, dilation[3] = {};  // stride: elements along d, h, w
  std::int64_t first[3] = {};  // input coordinate of tap 0 at the line's first output
  std::int64_t step_w = 1, out_w = 0;
  bool clamp = false;
  Sum<T> low = 0, high = 0;
};

template <class T>
struct DepthwiseKernels {
  void (*line)(const DepthwiseLine<T>& line) = nullptr;
};

}  // namespace tosaic::kernels
