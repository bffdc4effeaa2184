// Pooling with channels last and vectors along the channels: the loops that each instruction set provides.
#pragma once

#include <cstdint>

#include "tosaic/kernels/isa/each_set.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

enum class Pooling : std::uint8_t {
  kSum,
  kMax,            // NaN if any element is NaN
  kMaxIgnoringNan  // NaN if all elements are NaN
};

// The inputs begin, begin + step, ... below end along one axis.
struct PoolWindow {
  std::int64_t begin = 0, end = 0;
};

// One line of the result along w, with all channels. Sums of integers have 32 bits and are not divided.
template <class T>
struct PoolLine {
  const T* input = nullptr;  // the image, at d = h = w = 0
  T* output = nullptr;
  std::int32_t* sums = nullptr;  // written instead of `output` for kSum of integers
  std::int64_t channels = 0, out_w = 0;
  std::int64_t stride[3] = {}, step[3] = {};  // stride: elements between neighbours along d, h, w
  PoolWindow d, h;
  const PoolWindow* w = nullptr;   // one per output
  const float* divisor = nullptr;  // for kSum of floats: the divisor of each output
  Pooling pooling = Pooling::kSum;
};

// T is float, int8_t or int16_t.
template <class T>
struct PoolKernels {
  void (*line)(const PoolLine<T>& line) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const PoolKernels<float> kPoolF32;)
TOSAIC_IN_EACH_SET(extern const PoolKernels<std::int8_t> kPoolI8;)
TOSAIC_IN_EACH_SET(extern const PoolKernels<std::int16_t> kPoolI16;)

}  // namespace tosaic::kernels
