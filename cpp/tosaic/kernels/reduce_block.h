// The loops of reductions: a block of one compute domain folded into one accumulator (along the block) or
// into one accumulator per element (across blocks). Floats accumulate in double, integers modulo 2^64.
#pragma once

#include <cstdint>

#include "tosaic/kernels/block.h"

namespace tosaic::kernels {

enum class Fold : std::uint8_t {
  kSum,
  kProduct,
  kMax,  // NaN wins
  kMin,
  kMaxNumbers,  // NaN is skipped
  kMinNumbers,
  kAny,  // accumulators 0 or 1
  kAll,
  kSquares  // of the distance from a centre
};

// An accumulator: of floats, or of integers.
union Accumulator {
  double real;
  std::int64_t whole;
};

// Folds `count` elements into *accumulator. Sums of floats go through a fixed set of lanes.
using FoldAlong = void (*)(const void* block, std::int64_t count, double centre, Accumulator* accumulator);
// Folds element i into accumulators[i]; `centres` has one per element (kSquares only).
using FoldAcross = void (*)(const void* block, std::int64_t count, const double* centres,
                            Accumulator* accumulators);

struct FoldLoops {
  FoldAlong along = nullptr;
  FoldAcross across = nullptr;
};

struct ReduceKernels {
  // Domains kF32, kF64 and kI64.
  FoldLoops (*find)(Fold fold, Domain domain) = nullptr;
};

namespace baseline {
extern const ReduceKernels kReduceKernels;
}
namespace avx2 {
extern const ReduceKernels kReduceKernels;
}
namespace avx512 {
extern const ReduceKernels kReduceKernels;
}

}  // namespace tosaic::kernels
