// Depthwise convolution: what each instruction set provides.
//
// Channels last: vectors along the channels. Channels first: the padded image of one channel is split by
// stride into phase planes of one pitch, so that every tap reads its plane at a constant offset.
#pragma once

#include <cstdint>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// One line along w of the result, all channels. Weights [taps d][taps h][taps w][channels].
struct DepthwiseLine {
  const float* input = nullptr;  // of the image, at d = h = w = 0
  const float* weight = nullptr;
  const float* bias = nullptr;  // null: none
  float* output = nullptr;
  std::int64_t channels = 0;
  std::int64_t in[3] = {}, stride[3] = {}, taps[3] = {}, dilation[3] = {};  // stride: elements along d, h, w
  std::int64_t first[3] = {};  // input coordinate of tap 0 at the line's first output
  std::int64_t step_w = 1, out_w = 0;
  bool clamp = false;
  float low = 0, high = 0;
};

// One channel, channels first. planes: step_h * step_w planes of plane_size floats, each of lines `pitch`
// apart, of the image padded with zeros (by the caller, once). Plane (h % step_h, w % step_w) holds element
// (h / step_h, w / step_w).
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

struct DepthwiseKernels {
  void (*line)(const DepthwiseLine& line) = nullptr;
  void (*plane)(const DepthwisePlane& plane) = nullptr;
};

namespace baseline {
extern const DepthwiseKernels kDepthwise;
}
namespace avx2 {
extern const DepthwiseKernels kDepthwise;
}
namespace avx512 {
extern const DepthwiseKernels kDepthwise;
}

}  // namespace tosaic::kernels
