// The tolerance of each operator, by the kind of rounding error that it has.
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {
namespace {

enum class Error : std::uint8_t {
  kExact,       // elements are chosen, moved or compared, or one correctly rounded operation
  kRounded,     // a few correctly rounded operations, which may be fused or in another order in torch
  kFunction,    // a transcendental function
  kSum,         // a sum of elements or of products, or a weighted mean
  kNormalized,  // sums, a function of them, and a product
  kOpaque       // no kernel here; the operators in the regions of control flow have their own tolerances
};

Error error_of(Op op) {
  switch (op) {
    case Op::kConv:
    case Op::kIntegerConv:
    case Op::kLinear:
    case Op::kMatmul:
    case Op::kAddmm:
    case Op::kBaddbmm:
    case Op::kSum:
    case Op::kMean:
    case Op::kProd:
    case Op::kEinsum:
    case Op::kGridSample:
    case Op::kAffineGrid:
    case Op::kIndexPut:
    case Op::kFft2:
    case Op::kRfft2:
    case Op::kCumsum:
    case Op::kAvgPool:
    case Op::kAdaptiveAvgPool:
    case Op::kResize:
    case Op::kTosaAvgPool2d:
    case Op::kTosaConv2d:
    case Op::kTosaConv3d:
    case Op::kTosaDepthwiseConv2d:
    case Op::kTosaMatmul:
    case Op::kTosaTransposeConv2d:
    case Op::kTosaReduceProduct:
    case Op::kTosaReduceSum:
    case Op::kTosaResize:
    case Op::kTosaFft2d:
    case Op::kTosaRfft2d:
      return Error::kSum;
    case Op::kSdpa:
    case Op::kVar:
    case Op::kStd:
    case Op::kLogsumexp:
    case Op::kVectorNorm:
    case Op::kRecurrent:
    case Op::kBatchNorm:
    case Op::kLayerNorm:
    case Op::kRmsNorm:
    case Op::kGroupNorm:
    case Op::kSoftmax:
    case Op::kSafeSoftmax:
    case Op::kLogSoftmax:
      return Error::kNormalized;
    case Op::kCos:
    case Op::kErf:
    case Op::kExp:
    case Op::kLog:
    case Op::kRsqrt:
    case Op::kSigmoid:
    case Op::kSin:
    case Op::kTanh:
    case Op::kAcos:
    case Op::kAcosh:
    case Op::kAsin:
    case Op::kAsinh:
    case Op::kAtan:
    case Op::kAtanh:
    case Op::kCosh:
    case Op::kErfinv:
    case Op::kExpm1:
    case Op::kLog10:
    case Op::kLog1p:
    case Op::kLog2:
    case Op::kSinh:
    case Op::kTan:
    case Op::kLogit:
    case Op::kMish:
    case Op::kLogSigmoid:
    case Op::kSoftplus:
    case Op::kAtan2:
    case Op::kElu:
    case Op::kGelu:
    case Op::kSilu:
    case Op::kPow:
    case Op::kTosaErf:
    case Op::kTosaSigmoid:
    case Op::kTosaTanh:
    case Op::kTosaPow:
    case Op::kTosaCos:
    case Op::kTosaExp:
    case Op::kTosaLog:
    case Op::kTosaRsqrt:
    case Op::kTosaSin:
      return Error::kFunction;
    case Op::kReciprocal:
    case Op::kDiv:
    case Op::kRemainder:
    case Op::kFmod:
    case Op::kSqrt:  // torch's vectorised square root is off by an ulp
    case Op::kLerp:
    case Op::kAddcmul:
    case Op::kAddcdiv:
    case Op::kSoftshrink:
    case Op::kGlu:
    case Op::kLeakyRelu:
    case Op::kHardsigmoid:
    case Op::kHardswish:
    case Op::kAdd:
    case Op::kSub:
    case Op::kTosaReciprocal:
      return Error::kRounded;
    case Op::kOpaque:
    case Op::kTosaCustom:
    case Op::kTosaCondIf:
    case Op::kTosaWhileLoop:
    case Op::kCond:
    case Op::kWhileLoop:
      return Error::kOpaque;
    case Op::kAbs:
    case Op::kIsinf:
    case Op::kNanToNum:
    case Op::kHardshrink:
    case Op::kLeftShift:
    case Op::kRightShift:
    case Op::kPrelu:
    case Op::kAdaptiveMaxPool:
    case Op::kScatter:
    case Op::kSliceScatter:
    case Op::kQuantize:
    case Op::kDequantize:
    case Op::kTosaTable:
    case Op::kTosaRescale:
    case Op::kRescale:
    case Op::kTosaVariable:
    case Op::kTosaVariableRead:
    case Op::kTosaVariableWrite:
    case Op::kCeil:
    case Op::kFloor:
    case Op::kNeg:
    case Op::kRound:
    case Op::kSign:
    case Op::kTrunc:
    case Op::kRelu:
    case Op::kClamp:
    case Op::kLogicalNot:
    case Op::kBitwiseNot:
    case Op::kCast:
    case Op::kMul:
    case Op::kMaximum:
    case Op::kMinimum:
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
    case Op::kGt:
    case Op::kGe:
    case Op::kLogicalAnd:
    case Op::kLogicalOr:
    case Op::kLogicalXor:
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor:
    case Op::kWhere:
    case Op::kAmax:
    case Op::kAmin:
    case Op::kAny:
    case Op::kAll:
    case Op::kArgmax:
    case Op::kArgmin:
    case Op::kDiff:
    case Op::kMaxPool:
    case Op::kReshape:
    case Op::kClone:
    case Op::kPermute:
    case Op::kExpand:
    case Op::kRepeat:
    case Op::kCat:
    case Op::kStack:
    case Op::kSplit:
    case Op::kUnbind:
    case Op::kSelect:
    case Op::kSlice:
    case Op::kFlip:
    case Op::kPad:
    case Op::kTril:
    case Op::kTriu:
    case Op::kGather:
    case Op::kIndexSelect:
    case Op::kIndex:
    case Op::kEmbedding:
    case Op::kArange:
    case Op::kFull:
    case Op::kTosaArgmax:
    case Op::kTosaMaxPool2d:
    case Op::kTosaClamp:
    case Op::kTosaAdd:
    case Op::kTosaArithmeticRightShift:
    case Op::kTosaBitwiseAnd:
    case Op::kTosaBitwiseOr:
    case Op::kTosaBitwiseXor:
    case Op::kTosaIntdiv:
    case Op::kTosaLogicalAnd:
    case Op::kTosaLogicalLeftShift:
    case Op::kTosaLogicalRightShift:
    case Op::kTosaLogicalOr:
    case Op::kTosaLogicalXor:
    case Op::kTosaMaximum:
    case Op::kTosaMinimum:
    case Op::kTosaMul:
    case Op::kTosaSub:
    case Op::kTosaAbs:
    case Op::kTosaBitwiseNot:
    case Op::kTosaCeil:
    case Op::kTosaClz:
    case Op::kTosaFloor:
    case Op::kTosaLogicalNot:
    case Op::kTosaNegate:
    case Op::kTosaSelect:
    case Op::kTosaEqual:
    case Op::kTosaGreater:
    case Op::kTosaGreaterEqual:
    case Op::kTosaReduceAll:
    case Op::kTosaReduceAny:
    case Op::kTosaReduceMax:
    case Op::kTosaReduceMin:
    case Op::kTosaConcat:
    case Op::kTosaPad:
    case Op::kTosaReshape:
    case Op::kTosaReverse:
    case Op::kTosaSlice:
    case Op::kTosaTile:
    case Op::kTosaTranspose:
    case Op::kTosaGather:
    case Op::kTosaScatter:
    case Op::kTosaCast:
    case Op::kTosaIdentity:
      return Error::kExact;
  }
  return Error::kExact;
}

// The distance between 1 and the next number of the dtype; 0 for integers.
double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return 0x1p-3;
    case DType::kF8E5M2:
      return 0x1p-2;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    case DType::kF32:
      return 0x1p-23;
    case DType::kF64:
      return 0x1p-52;
    case DType::kBool:
    case DType::kI4:
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kI48:
    case DType::kI64:
      return 0;
  }
  return 0;
}

// Floats narrower than f32 are summed in f32, here and in torch. What remains is the rounding of the stored
// result (half an ulp) and of the narrow intermediate results that some composites of torch have.
bool sums_in_f32(DType dtype) { return dtype != DType::kF32 && dtype != DType::kF64; }

}  // namespace

// Sums: n terms that are added one after the other err by at most (n - 1) * u times the sum of their absolute
// values, where u = eps / 2. Our chains have one block of depth (128 terms in f32, see gemm_blocking()), then
// one term per block. Rounding errors have either sign, so their sum grows as sqrt(n / 3) * u, even if all
// terms have the same sign and the partial sums grow linearly. For n = 512 this is 6.5 eps, and no order of
// summation that torch uses is worse. 16 eps allows for two such errors (ours and torch's) and their spread.
//
// Functions: our results are rounded from double and err by at most 1 ulp; torch's vectorised functions err
// by up to 4 ulp.
//
// Normalizations: the errors of the sums and of the function affect the same element. Subtracting the mean or
// the maximum adds one rounding error at the scale of the operand.
Tolerance tolerance(Op op, DType dtype) {
  const double eps = epsilon(dtype);
  if (eps == 0) return {};
  switch (error_of(op)) {
    case Error::kExact:
    case Error::kOpaque:
      return {};
    case Error::kRounded:
      return {.ulp = 2, .relative = 0};
    case Error::kFunction:
      return {.ulp = 4, .relative = 0};
    case Error::kSum:
      return sums_in_f32(dtype) ? Tolerance{.ulp = 1, .relative = eps / 2}
                                : Tolerance{.ulp = 1, .relative = 16 * eps};
    case Error::kNormalized:
      return sums_in_f32(dtype) ? Tolerance{.ulp = 4, .relative = 2 * eps}
                                : Tolerance{.ulp = 4, .relative = 32 * eps};
  }
  return {};
}

LoweredTolerance lowered_tolerance(const Tolerance& program) {
  return {{program.ulp + 8.0, 16.0 * program.relative}, 8.0};
}

}  // namespace tosaic::kernels
