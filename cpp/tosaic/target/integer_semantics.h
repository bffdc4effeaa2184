// integer_semantics: how a backend computes with integers, as data.
//
// Several integer forms of an operator are within one unit of torch's q/dq graph. TOSA leaves the choice to
// the compiler, and lower-to-integer chooses the most precise form. A backend with kernels of its own has
// made the choice: its library rounds in one way. IntegerSemantics says in which. A claimant other than TOSA
// sets it (PassOptions::semantics), and the lowered graph then computes the same integers as the backend.
//
// The functions that lower-to-integer builds for a choice are in passes/lower_to_integer/backend_forms.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tosaic/ir/attributes.h"

namespace tosaic::target {

// add and sub of two operands of 8 bits.
enum class SumForm : std::uint8_t {
  kCommonUnit,        // one rounding to a common unit, which is as fine as the ranges allow
  kTwiceLargerScale,  // 20 more bits, then each operand in units of twice the larger scale
};
// mul of an operand of 8 bits by a quantized constant.
enum class ProductForm : std::uint8_t {
  kFactorInScale,  // a constant of one sign only changes the scale
  kIntegers,       // the integers are multiplied, as for two variables
};
// avg_pool, and mean over an image, with the same qparams for operand and result.
enum class AverageForm : std::uint8_t {
  kCentredSum,  // the sum of integer - zero point, rounded half away from zero
  kRawSum,      // the sum of the integers; the caller pads the image with the zero point
};
// softmax of 8 bits to scale 1/256 and zero point -128.
enum class SoftmaxForm : std::uint8_t {
  kThirtyBits,      // exp of 30 bits by table, reciprocal by linear interpolation
  kFixedPoint5_26,  // CMSIS-NN: exp of numbers with 5 integer bits, sums of 12 fewer bits, Newton's method
};
// A function of one operand of 8 bits, as a table.
enum class FunctionForm : std::uint8_t {
  kAsTorch,   // in f32, rounded half to even; NaN becomes 0
  kInDouble,  // in f64, rounded half away from zero; NaN becomes the entry of the nearest number
};
// div of two operands of 8 bits.
enum class QuotientForm : std::uint8_t {
  kAsTorch,  // x / 0 saturates
  kInFloat,  // f32 quotient of integers times one f32 scale, rounded half away from zero; x / 0 is 0
};
// hardsigmoid and hardswish.
enum class HardForm : std::uint8_t {
  kExact,
  kInQParams,  // x / 6 and the offset 3 are rounded into scale and zero point
};
// The integer of the number that pads, and of the bounds of a clamp.
enum class BoundForm : std::uint8_t {
  kAsTorch,   // round(x * (1 / scale)) + zero point
  kInOneSum,  // round(x / scale + zero point)
};

struct IntegerSemantics {
  std::optional<RoundingMode> rounding = {};  // of RESCALE; without it, the target's extensions decide
  SumForm sum = SumForm::kCommonUnit;
  ProductForm product = ProductForm::kFactorInScale;
  AverageForm average = AverageForm::kCentredSum;
  SoftmaxForm softmax = SoftmaxForm::kThirtyBits;
  FunctionForm function = FunctionForm::kAsTorch;
  QuotientForm quotient = QuotientForm::kAsTorch;
  HardForm hard = HardForm::kExact;
  BoundForm bound = BoundForm::kAsTorch;

  bool operator==(const IntegerSemantics&) const = default;
};

// The most precise form of each operator: "tosa".
[[nodiscard]] const IntegerSemantics& tosa_semantics();
// The arithmetic of CMSIS-NN as ExecuTorch's Cortex-M backend calls it: "cmsis-nn".
[[nodiscard]] const IntegerSemantics& cmsis_nn_semantics();
// The semantics of this name. Throws InvalidGraph, which lists the names, if there is none.
[[nodiscard]] const IntegerSemantics& semantics_named(std::string_view name);

}  // namespace tosaic::target
