// The loops of elementwise kernels: one function over blocks of one compute domain.
#pragma once

#include <cstdint>

#include "tosaic/kernels/block.h"

namespace tosaic::kernels {

// What is computed, apart from dtypes. Comparisons and logical functions write one byte (0 or 1) an element.
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
  kClampNumbers,  // NaN becomes low
  kLow,           // low, whatever the operand
  kLeakyRelu,
  kElu,
  kEluScaled,  // low x, or alpha low expm1(high x)
  kGelu,
  kGeluTanh,
  kSilu,
  kHardsigmoid,
  kHardswish,
  kBitwiseNot,
  kCountLeadingZeros,
  kNegateZeroPoints,  // clamp(second - (x - first), low, high)
  kAcos,
  kAcosh,
  kAsin,
  kAsinh,
  kAtan,
  kAtanh,
  kCosh,
  kErfinv,
  kExpm1,
  kLog10,
  kLog1p,
  kLog2,
  kSinh,
  kTan,
  kLogSigmoid,
  kMish,
  kSoftplus,  // of alpha x; beyond `high` x itself
  kSoftshrink,
  kHardshrink,
  kNanToNum,  // NaN, inf and -inf become alpha, high and low
  kLogicalNot,
  kIsInf,
  // binary
  kAdd,
  kAddScaled,  // a + alpha b
  kSub,
  kSubScaled,
  kMul,
  kMulShift,  // (a b + 2^(shift-1)) >> shift
  kDiv,
  kDivFloor,
  kDivTrunc,
  kPow,
  kMaximum,
  kMinimum,
  kMaximumNumbers,  // the number where one operand is NaN
  kMinimumNumbers,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
  kArithmeticRightShift,
  kLogicalLeftShift,
  kLogicalRightShift,
  kFmod,
  kRemainder,
  kAtan2,
  kPrelu,
  kLeftShift,   // any count
  kRightShift,  // any count
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

// Constants of a function. Fields that it does not name above are unused.
struct Parameters {
  double alpha = 1, low = 0, high = 0;
  std::int64_t int_alpha = 1, int_low = 0, int_high = 0;
  std::int64_t first_zp = 0, second_zp = 0;
  std::int64_t shift = 0;
  std::int64_t width = 32;  // bits of the integer dtype
  bool round = false;
};

// Reads in[0..arity) and writes out, `count` elements each. `out` may be one of the operands.
using ElementwiseBlock = void (*)(const Parameters& parameters, const void* const* in, void* out,
                                  std::int64_t count);

struct ElementwiseKernels {
  // Null where the domain does not have the function. Integers and f32; f64 is computed by the reference.
  ElementwiseBlock (*find)(Function function, Domain domain) = nullptr;
};

namespace baseline {
extern const ElementwiseKernels kElementwiseKernels;
}
namespace avx2 {
extern const ElementwiseKernels kElementwiseKernels;
}
namespace avx512 {
extern const ElementwiseKernels kElementwiseKernels;
}

// The definition of `function` over doubles, with the C library's functions.
[[nodiscard]] ElementwiseBlock find_reference(Function function);

// The functions that have no vectorised loop and the integers' own; null for the others.
[[nodiscard]] ElementwiseBlock find_function(Function function, Domain domain);

}  // namespace tosaic::kernels
