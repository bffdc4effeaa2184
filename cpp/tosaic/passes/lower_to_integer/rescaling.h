// rescaling: changes the unit, the dtype or the zero point of scaled integers, by RESCALE.
//
//   x {scales, zero point, range}  ->  rescaled(x, dtype, scale)     one unit for all channels
//                                      widened(x)                    i32 in the unit of x
//                                      store(x, qparams)             the integers of a quantized value
//
// The range of every result is known. Integers for which RESCALE is not defined are clamped first, if they
// saturate anyway. If they do not, the functions throw NoIntegerForm.
#pragma once

#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// x in another dtype, scale and zero point. The range of the result is exact.
[[nodiscard]] ScaledInteger rescaled(IntegerBuilder& build, const ScaledInteger& x, DType dtype, double scale,
                                     std::int64_t zero_point = 0);
// x with one scale and at most 32 bits. Numbers with per-channel scales become i32 in a common scale, in
// which the channel of the largest scale has 29 bits.
[[nodiscard]] ScaledInteger with_one_scale(IntegerBuilder& build, const ScaledInteger& x);
// Sums of 48 bits as i32, divided by a power of two if they may have more than 30 bits.
[[nodiscard]] ScaledInteger within_32_bits(IntegerBuilder& build, const ScaledInteger& x);
// The same integers as i32. From i8 and i16 this is a RESCALE by one: Ethos-U computes it within the operator
// that reads it, unlike a CAST.
[[nodiscard]] ValueId in_32_bits(IntegerBuilder& build, ValueId id);
// x as i32 with zero point 0 and the same scales. Throws NoIntegerForm for i48.
[[nodiscard]] ScaledInteger widened(IntegerBuilder& build, const ScaledInteger& x);
// True for x in i8, and in i16 if the target has int16: pools, resizes and convolutions take no other
// integers.
[[nodiscard]] bool is_narrow(const IntegerBuilder& build, const ScaledInteger& x);
// x as i8 or i16 (see is_narrow()) if that can hold the range of x. Otherwise x as i32; i48 is unchanged.
[[nodiscard]] ScaledInteger narrowed(IntegerBuilder& build, const ScaledInteger& x);
// x with zero point 0 and a magnitude of at most 2^bits: x itself, or a rescale to i32, to a coarser scale
// if needed.
[[nodiscard]] ScaledInteger within_bits(IntegerBuilder& build, const ScaledInteger& x, int bits);
// x rounded to integers with the qparams `to`. From i8 to i8 the result is exactly that of dequantize and
// quantize. A TABLE computes it if multiplier and shift would round differently.
[[nodiscard]] ValueId store(IntegerBuilder& build, const ScaledInteger& x, const QParams& to);
// store(), or only a clamp if `x` has the dtype, scale and zero point of `to` already.
[[nodiscard]] ValueId requantize(IntegerBuilder& build, const ScaledInteger& x, const QParams& to);
// The same numbers in unsigned or signed storage: a rescale that subtracts or adds signed_offset().
[[nodiscard]] ValueId with_other_sign(IntegerBuilder& build, ValueId id, DType from, DType to);

// QParams with the scales, axis and zero point of `x` and the full range of its dtype.
[[nodiscard]] QParams full_range_qparams(const IntegerBuilder& build, const ScaledInteger& x);

}  // namespace tosaic::passes
