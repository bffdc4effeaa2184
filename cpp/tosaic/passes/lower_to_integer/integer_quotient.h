// integer_quotient: computes quotients and products of numbers in i32, by mantissa and exponent.
//
//   x = m / 2^s, with the mantissa m normalized to 31 bits
//   1 / m is computed by a table and one Newton step, and the exponents are subtracted
#pragma once

#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// 1 / x. All results share one unit, so a result has one bit less for each power of two below the largest.
// Throws NoIntegerForm if fewer than 16 bits may remain.
[[nodiscard]] ScaledInteger reciprocal_of(IntegerBuilder& build, const ScaledInteger& x);
// a / b, in a unit for the largest result: the largest number of `eventual` (the qparams to which the result
// is rounded in the end) or the largest possible result, whichever is smaller. x / 0 becomes a number so
// large that it saturates when it is quantized. 0 / 0 is NaN (nan_masks.h).
[[nodiscard]] ScaledInteger quotient_of(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b,
                                        const std::optional<QParams>& eventual);
// a * b, in a unit for the largest number of `to`, the qparams to which the result is rounded in the end.
// Products beyond saturate. Each operand may have any 31 bits.
[[nodiscard]] ScaledInteger saturating_product_of(IntegerBuilder& build, const ScaledInteger& a,
                                                  const ScaledInteger& b, const QParams& to);

}  // namespace tosaic::passes
