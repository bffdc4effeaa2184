// integer_contraction: computes conv, linear and matmul as sums of products of integers.
//
//   sum[c] = sum((x - zp_x) * (w - zp_w)) + bias[c]        one unit of sum[c] is worth s_x * s_w[c]
//
// Products of i8 by i8 are summed in i32, products of i16 in i48. Wider operands are split into parts. The
// bias is rounded to the unit of the sums. A bound of each channel's sum proves that no sum overflows. It is
// computed from the weights if they are constant.
#pragma once

#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// x as i8, or as i16 if the target has int16. If x has more bits, it is split into two such parts, which add
// up to it. There are three parts of i8 if two would lose bits.
[[nodiscard]] std::vector<ScaledInteger> narrow_parts(IntegerBuilder& build, const ScaledInteger& x);

}  // namespace tosaic::passes
