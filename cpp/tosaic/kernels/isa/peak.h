// peak: the loops that measure how fast an instruction set multiplies and moves data at best.
#pragma once

#include <cstdint>

#include "tosaic/kernels/isa/each_set.h"

namespace tosaic::kernels {

// A loop of multiply-adds in registers: `products` in each round. It has enough independent sums that the
// processor never waits for a sum before it starts a multiply-add.
struct PeakLoop {
  void (*run)(std::int64_t rounds) = nullptr;  // null: the instruction set does not multiply such factors
  std::int64_t products = 0;
};

struct PeakKernels {
  PeakLoop f32, f64, i16, i8;  // by the dtype of the factors (isa/multiply.h)
  // to[i] = a[i] + b[i], for a count that is a multiple of 64
  void (*add)(const float* a, const float* b, float* to, std::int64_t count) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const PeakKernels kPeakKernels;)
TOSAIC_IN_SET(avxvnni, extern const PeakKernels kPeakKernels;)
TOSAIC_IN_SET(avx512vnni, extern const PeakKernels kPeakKernels;)
TOSAIC_IN_SET(amx, extern const PeakKernels kPeakKernels;)
TOSAIC_IN_SET(dotprod, extern const PeakKernels kPeakKernels;)
TOSAIC_IN_SET(i8mm, extern const PeakKernels kPeakKernels;)

}  // namespace tosaic::kernels
