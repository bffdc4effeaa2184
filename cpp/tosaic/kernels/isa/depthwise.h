// Depthwise convolution: the loops that each instruction set provides.
//
// With channels last, vectors are along the channels. With channels first, the padded image of one channel is
// split into phase planes, one per position modulo the strides. All planes have the same pitch, so that every
// tap reads its plane at a constant offset.
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

// One channel, channels first. `planes` is scratch for step_h * step_w planes of plane_size floats, with
// lines `pitch` floats apart. Element (h, w) of the padded image is in plane (h % step_h, w % step_w), at
// position (h / step_h, w / step_w). The caller fills the planes with zeros once; the kernel writes the image
// into them.
struct DepthwisePlane {
  const float* input = nullptr;
  const float* weight = nullptr;  // taps h * w
  float bias = 0;
  float* output = nullptr;
  float* planes = nullptr;
  float* sums = nullptr;  // out_h * pitch rounded up to 64 floats
  std::int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  std::int64_t pad_h = 0, pad_w = 0, step_h = 1, step_w = 1, taps_h = 1, taps_w = 1, dilation_h = 1,
               dilation_w = 1;
  std::int64_t pitch = 0, plane_size = 0;
  bool clamp = false;
  float low = 0, high = 0;
};

template <class T>
struct DepthwiseKernels {
  void (*line)(const DepthwiseLine<T>& line) = nullptr;
  void (*plane)(const DepthwisePlane& plane) = nullptr;  // null unless T is float
};

namespace baseline {
extern const DepthwiseKernels<float> kDepthwiseF32;
extern const DepthwiseKernels<double> kDepthwiseF64;
extern const DepthwiseKernels<Pairs> kDepthwisePairs;
extern const DepthwiseKernels<WidePairs> kDepthwiseWidePairs;
}  // namespace baseline
namespace avx2 {
extern const DepthwiseKernels<float> kDepthwiseF32;
extern const DepthwiseKernels<double> kDepthwiseF64;
extern const DepthwiseKernels<Pairs> kDepthwisePairs;
extern const DepthwiseKernels<WidePairs> kDepthwiseWidePairs;
}  // namespace avx2
namespace avx512 {
extern const DepthwiseKernels<float> kDepthwiseF32;
extern const DepthwiseKernels<double> kDepthwiseF64;
extern const DepthwiseKernels<Pairs> kDepthwisePairs;
extern const DepthwiseKernels<WidePairs> kDepthwiseWidePairs;
}  // namespace avx512

}  // namespace tosaic::kernels
