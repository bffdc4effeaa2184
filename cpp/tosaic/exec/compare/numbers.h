// numbers: the numbers that quantized integers represent.
#pragma once

#include <optional>

#include "tosaic/exec/local_error.h"

namespace tosaic::exec {

// The array, dequantized unless `qparams` is null.
[[nodiscard]] Held as_numbers(const ArrayView& view, const QParamsRef& qparams);
// The array with this dtype, if both are integers of the same width: TOSA stores unsigned integers without
// qparams in the signed dtype, with the same bits. Returns other arrays as they are.
[[nodiscard]] ArrayView with_sign_of(DType dtype, const ArrayView& view);
// The integers that represent the numbers of a float array.
[[nodiscard]] Held as_integers(const ArrayView& numbers, const QParams& qparams);
// The scale, if the whole value has a single scale.
[[nodiscard]] std::optional<double> unit_of(const QParamsRef& qparams);
// True if both are null, or if integers represent the same numbers with both: the scales are equal except for
// rounding to f32.
[[nodiscard]] bool is_same(const QParamsRef& a, const QParamsRef& b);
// True if the qparams represent the same numbers by integers that differ by a constant, e.g. u8 and i8 whose
// zero points are 128 apart.
[[nodiscard]] bool has_same_numbers(const QParams& a, const QParams& b);
// True if a and b may be from two calibrations of one program: the lowest numbers that they represent differ
// by at most a's scale plus 0.1 % of a's range, and so do the highest.
[[nodiscard]] bool is_near(const QParams& a, const QParams& b);
// The qparams of a quantize node.
[[nodiscard]] QParamsRef qparams_of(const Node& quantize);

}  // namespace tosaic::exec
