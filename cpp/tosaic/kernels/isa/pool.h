// Pooling channels last, vectors along the channels: what each instruction set provides.
#pragma once

#include <cstdint>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

enum class Pooling : std::uint8_t {
  kSum,
  kMax,            // NaN if any is
  kMaxIgnoringNan  // NaN if all are
};

// Inputs begin, begin + step, ... below end along one axis.
struct PoolWindow {
  std::int64_t begin = 0, end = 0;
};

// One line along w of the result, all channels.
struct PoolLine {
  const float* input = nullptr;  // of the image, at d = h = w = 0
  float* output = nullptr;
  std::int64_t channels = 0, out_w = 0;
  std::int64_t stride[3] = {}, step[3] = {};  // stride: elements between neighbours along d, h, w
  PoolWindow d, h;
  const PoolWindow* w = nullptr;   // one per output
  const float* divisor = nullptr;  // of kSum, one per output
  Pooling pooling = Pooling::kSum;
};

struct PoolKernels {
  void (*line)(const PoolLine& line) = nullptr;
};

namespace baseline {
extern const PoolKernels kPool;
}
namespace avx2 {
extern const PoolKernels kPool;
}
namespace avx512 {
extern const PoolKernels kPool;
}

}  // namespace tosaic::kernels
