// backend_forms: the integer forms of operators that a backend's semantics choose
// (target/integer_semantics.h).
//
//   add, sub               each operand in units of twice the larger scale, with 20 more bits
//   mul                    the product of the integers, also if one operand is a constant
//   mul, div by a number   the product with 1 or -1; the same integers if that only changes the scale
//   div                    a table over both operands: f32 quotients
//   softmax                fixed-point numbers with 5 integer bits (backend_softmax.cpp)
//   hardsigmoid, hardswish with 1/6 and 3 in the qparams
//   pad, clamp             on the integers
//   other functions        a table of f64 results, rounded half away from zero
//
//   adaptive_avg_pool      one average of a whole image (integer_reduction.cpp)
//
// These are forms for operands of 8 bits. A node with other operands has the form that it has on any target.
// The rules of avg_pool and mean read the semantics themselves, since only their zero points differ.
#pragma once

#include <optional>

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// Lowers the node to the form that the backend computes. Returns nothing if the semantics choose the form
// that every target has, or if the backend has no kernel for these operands.
[[nodiscard]] std::optional<RuleResult> backend_form(const RuleContext& ctx);

// backend_softmax.cpp. Softmax of i8 numbers x, as SoftmaxForm::kFixedPoint5_26 computes it. Returns nothing
// if a row has too many elements for its sums.
[[nodiscard]] std::optional<ScaledInteger> fixed_point_softmax(IntegerBuilder& build, const ScaledInteger& x,
                                                               std::int64_t axis);

// integer_reduction.cpp. adaptive_avg_pool to one pixel, with the same qparams for operand and result, as
// AverageForm::kRawSum computes it. Returns nothing for other nodes.
[[nodiscard]] std::optional<RuleResult> whole_image_average(const RuleContext& ctx);

}  // namespace tosaic::passes
