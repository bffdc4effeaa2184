// sum_factor: the factor of the coarser operand of a sum of two integers with different units.
//
//   a = rescale(x) by 2^19, b = rescale(y) by less, add(a, b), rescale to bytes
//
// Ethos-U55 and U65 compute these four operators in one operation if the factor of exactly one operand
// is this one. It is that of TensorFlow Lite.
#pragma once

#include <optional>

#include "tosaic/ir/dtype.h"

namespace tosaic {

// The factor, as a power of two. Nothing for integers that have no such operation.
[[nodiscard]] constexpr std::optional<int> sum_factor_bits(DType dtype) {
  if (dtype == DType::kI8) return 19;
  if (dtype == DType::kI16) return 14;
  return std::nullopt;
}

}  // namespace tosaic
