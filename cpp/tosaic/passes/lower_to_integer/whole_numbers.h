// whole_numbers: computes floor, ceil, trunc and round of scaled integers.
//
// Results are exact, except that a number counts as being at a step of the function if f32, or the number's
// own error, cannot separate it from the step.
#pragma once

#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// `op` is floor, ceil, trunc or round; x has one scale. The result has scale 1, unless x may reach 2^30.
[[nodiscard]] ScaledInteger in_whole_numbers(IntegerBuilder& build, const ScaledInteger& x, Op op);

}  // namespace tosaic::passes
