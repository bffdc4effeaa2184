// reduce_block: the loops of reductions. A loop folds a block of one compute domain into one accumulator
// (along the block) or into one accumulator per element (across blocks). Floats accumulate in double,
// integers modulo 2^64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/isa/each_set.h"

namespace tosaic::kernels {

enum class Fold : std::uint8_t {
  kSum,
  kProduct,
  kMax,  // kMax and kMin: NaN if any element is NaN
  kMin,
  kMaxNumbers,  // kMaxNumbers and kMinNumbers skip NaN
  kMinNumbers,
  kAny,  // the accumulators of kAny and kAll are 0 or 1
  kAll,
  kSquares  // the sum of the squared distances from a centre
};

// The float domains use `real`, and the integer domain uses `whole`.
union Accumulator {
  double real;
  std::int64_t whole;
};

// Folds `count` elements into *accumulator. The order of float sums depends on `count` only. Only kSquares
// reads `centre`.
using FoldAlong = void (*)(const void* block, std::int64_t count, double centre, Accumulator* accumulator);
// Folds element i into accumulators[i]. Only kSquares reads `centres`, which has one entry per element.
using FoldAcross = void (*)(const void* block, std::int64_t count, const double* centres,
                            Accumulator* accumulators);

struct FoldLoops {
  FoldAlong along = nullptr;
  FoldAcross across = nullptr;
};

// Returns find(constant), where constant() is the fold as a constant expression.
template <class Find>
FoldLoops with_fold(Fold fold, Find find) {
  switch (fold) {
    case Fold::kSum:
      return find(std::integral_constant<Fold, Fold::kSum>());
    case Fold::kProduct:
      return find(std::integral_constant<Fold, Fold::kProduct>());
    case Fold::kMax:
      return find(std::integral_constant<Fold, Fold::kMax>());
    case Fold::kMin:
      return find(std::integral_constant<Fold, Fold::kMin>());
    case Fold::kMaxNumbers:
      return find(std::integral_constant<Fold, Fold::kMaxNumbers>());
    case Fold::kMinNumbers:
      return find(std::integral_constant<Fold, Fold::kMinNumbers>());
    case Fold::kAny:
      return find(std::integral_constant<Fold, Fold::kAny>());
    case Fold::kAll:
      return find(std::integral_constant<Fold, Fold::kAll>());
    case Fold::kSquares:
      return find(std::integral_constant<Fold, Fold::kSquares>());
  }
  return {};
}

struct ReduceKernels {
  // In the domain kI32, only the low 32 bits of sums and products are correct.
  FoldLoops (*find)(Fold fold, Domain domain) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const ReduceKernels kReduceKernels;)

}  // namespace tosaic::kernels
