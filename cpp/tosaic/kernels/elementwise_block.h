// elementwise_block: the loops of elementwise kernels. Each computes one Function on blocks of one compute
// domain.
#pragma once

#include <cstdint>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/isa/each_set.h"

namespace tosaic::kernels {

// What is computed, independent of dtypes. Comparisons and logical functions write one byte (0 or 1) per
// element. low, high, alpha, shift, first_zp and second_zp are fields of Parameters.
enum class Function : std::uint8_t {
  // unary
  kIdentity,
  kAbs,
  kCeil,
  kCos,
  kErf,
  kExp,
  kFloor,
  kLog,
  kNeg,
  kReciprocal,
  kRound,
  kRsqrt,
  kSqrt,
  kSigmoid,
  kSign,
  kSin,
  kTanh,
  kTrunc,
  kRelu,
  kClamp,         // NaN stays NaN; min(max(x, low), high)
  kClampNumbers,  // as kClamp, but NaN becomes low
  kLow,           // low, whatever the operand is
  kLeakyRelu,
  kElu,
  kEluScaled,  // low * x for x > 0; alpha * low * expm1(high * x) for others
  kGelu,
  kGeluTanh,
  kSilu,
  kHardsigmoid,
  kHardswish,
  kBitwiseNot,
  kCountLeadingZeros,
  kNegateZeroPoints,  // clamp(second_zp - (x - first_zp), low, high)
  kAcos,
  kAcosh,
  kAsin,
  kAsinh,
  kAtan,
  kAtanh,
  kCosh,
  kErfc,
  kErfinv,
  kExpm1,
  kLog10,
  kLog1p,
  kLog2,
  kSinh,
  kTan,
  kLogSigmoid,
  kMish,
  kSoftplus,  // log(1 + e^(alpha * x)) / alpha; x if alpha * x > high
  kSoftshrink,
  kHardshrink,
  kNanToNum,  // NaN becomes alpha, inf becomes high, -inf becomes low
  kLogicalNot,
  kIsInf,
  // binary
  kAdd,
  kAddScaled,  // a + alpha * b
  kSub,
  kSubScaled,
  kMul,
  kMulShift,  // (a * b + 2^(shift - 1)) >> shift
  kDiv,
  kDivFloor,
  kDivTrunc,
  kPow,
  kMaximum,
  kMinimum,
  kMaximumNumbers,  // if one operand is NaN, the result is the other one
  kMinimumNumbers,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
  kArithmeticRightShift,
  kLogicalLeftShift,
  kLogicalRightShift,
  kGcd,
  kFmod,
  kRemainder,
  kAtan2,
  kPrelu,
  kLeftShift,   // defined for every shift count
  kRightShift,  // arithmetic, defined for every shift count
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  // ternary
  kWhere,
  kLerp,
  kAddcmul,
  kAddcdiv
};

[[nodiscard]] constexpr bool writes_bool(Function function) {
  return function == Function::kLogicalNot || function == Function::kIsInf ||
         (function >= Function::kEq && function <= Function::kLogicalXor);
}

// The constant parameters of an elementwise function. A function reads only the fields that it needs; over
// integers it reads the int_ fields instead of `alpha`, `low` and `high`.
struct Parameters {
  double alpha = 1, low = 0, high = 0;
  std::int64_t int_alpha = 1, int_low = 0, int_high = 0;
  std::int64_t first_zp = 0, second_zp = 0;
  std::int64_t shift = 0;
  std::int64_t width = 32;  // bits of the integer dtype
  bool round = false;
  std::uint32_t scalars = 0;  // bit i: operand i is one element for the whole block; only if takes_scalars
};

// Reads the operands in[0..arity) and writes `out`, `count` elements each. `out` may be one of the operands.
using ElementwiseBlock = void (*)(const Parameters& parameters, const void* const* in, void* out,
                                  std::int64_t count);

struct ElementwiseLoop {
  ElementwiseBlock block = nullptr;  // null if there is none
  bool takes_scalars = false;        // one of two operands may be one element
};

struct ElementwiseKernels {
  // Returns no loop if this instruction set has none for the function and domain. It has none for kF64, which
  // find_reference() and find_function() compute.
  ElementwiseLoop (*find)(Function function, Domain domain) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const ElementwiseKernels kElementwiseKernels;)

// The function on doubles by its definition, with the C library's functions. Returns null for functions that
// find_function() has.
[[nodiscard]] ElementwiseBlock find_reference(Function function);

// The functions that have no vectorised loop. Returns null for functions that have one.
[[nodiscard]] ElementwiseBlock find_function(Function function, Domain domain);

}  // namespace tosaic::kernels
