// unit_of_constant: a unit for constants that hold numbers far beyond activations, such as -1e4 or 1e9.
//
//   [-1e4, -3.3, 1.4]       2^-16, in 32 bits      8 bits would leave one integer, 0, to the small numbers
//   [-1e9, 1, 3]            1, in 32 bits          exact
//   [0.54, 1e9]             none                   0.54 would become 1
//   [inf, 0.5]              none
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tosaic/ir/graph.h"

namespace tosaic::quant {

inline constexpr double kLargestActivation = 1e4;
inline constexpr double kLeastSteps = 64;

struct ConstantUnit {
  std::string_view dtype;    // "i16" or "i32"
  double scale = 1;          // a power of two; the zero point is 0
  std::int64_t largest = 0;  // integers are in -largest..largest
};

// The narrowest integers that represent the constant exactly, or with at least `steps` steps from 0 to its
// largest number below kLargestActivation. In 32 bits, kLeastSteps are enough. Returns nothing if there is no
// such unit, or if a number is not finite.
[[nodiscard]] std::optional<ConstantUnit> unit_of_constant(const Constant& constant,
                                                           double steps = kLeastSteps);

// Why no integers represent the constant, as a part of a sentence; empty if some do.
[[nodiscard]] std::string why_no_unit(const Constant& constant);

}  // namespace tosaic::quant
