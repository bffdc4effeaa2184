// Limits of NXP's eIQ Neutron N3-64 (i.MX RT700), as far as they are public: ExecuTorch's NXP backend states
// them. Its SDK is not public, so nothing here was run on it. A split and a select are slices. A product or
// quotient by a number that only changes the scale needs no kernel.
#include <initializer_list>

#include "tosaic/claimant/devices/records.h"

namespace tosaic::claimant {
namespace {

constexpr std::int64_t kMaxWindow = 4096, kMaxProduct = 65535;
constexpr std::int64_t kMacs = 8;  // of a pipeline; input channels are padded to a multiple
constexpr DTypes kBytes{DType::kI8, DType::kU8};
constexpr DTypes kI8{DType::kI8};

constexpr std::initializer_list<Op> kBroadcasting{Op::kAdd,     Op::kSub,     Op::kMul,
                                                  Op::kMaximum, Op::kMinimum, Op::kPrelu};
constexpr std::initializer_list<Op> kSharing{
    Op::kAvgPool, Op::kAdaptiveAvgPool, Op::kMaxPool, Op::kMean,    Op::kSum,     Op::kAmax,    Op::kAmin,
    Op::kPad,     Op::kPermute,         Op::kCat,     Op::kMaximum, Op::kMinimum, Op::kReshape, Op::kClone,
    Op::kSlice,   Op::kSplit,           Op::kSelect};
constexpr std::initializer_list<Op> kProducts{Op::kMul, Op::kDiv};
constexpr std::initializer_list<Op> kAlone{
    Op::kAbs,  Op::kNeg,   Op::kExp,       Op::kLog,       Op::kRsqrt,   Op::kSigmoid, Op::kTanh,
    Op::kRelu, Op::kClamp, Op::kHardswish, Op::kLeakyRelu, Op::kSoftmax, Op::kResize};

Limits table() {
  Limits out;
  out.operators = {
      {{Op::kConv, Op::kLinear}, kBytes, kI8, kBytes},
      {{Op::kMatmul}, kBytes, kBytes, kBytes},
      {kBroadcasting, kBytes, kBytes, kBytes},
      {kProducts, kBytes, {DType::kF32}, kBytes},
      {{Op::kMul}, {DType::kF32}, kBytes, kBytes},
      {kAlone, kBytes, {}, kBytes},
      {kSharing, kBytes, {}, kBytes},
  };
  for (const OperatorRow& row : std::vector(out.operators))
    out.limits.push_back({row.ops, Quantity::kPerTensor, 1, 1});
  const std::vector<LimitRow> more{
      {{Op::kConv, Op::kLinear}, Quantity::kConstantWeight, 1, 1},
      {{Op::kConv, Op::kLinear}, Quantity::kConstantBias, 1, 1},
      {{Op::kConv}, Quantity::kSpatialRank, 1, 2},
      {{Op::kConv}, Quantity::kKernelHeight, 1, kMaxWindow},
      {{Op::kConv}, Quantity::kKernelWidth, 1, kMaxWindow},
      {{Op::kConv}, Quantity::kStride, 1, kMaxWindow, When::kForward},
      {{Op::kConv}, Quantity::kDilation, 1, kMaxWindow, When::kForward},
      {{Op::kConv}, Quantity::kKernelVolume, 1, kMaxProduct, When::kAlways, kMacs},
      {{Op::kConv}, Quantity::kGroups, 1, 1, When::kTransposed},
      {{Op::kConv}, Quantity::kStride, 1, 2, When::kTransposed},
      {{Op::kConv}, Quantity::kStrideInKernel, 1, 1, When::kTransposed},
      {{Op::kConv}, Quantity::kPaddingInKernel, 1, 1, When::kTransposed},
      {{Op::kMatmul}, Quantity::kInputZeroPoint, 0, 0},
      {{Op::kMatmul}, Quantity::kRank, 2, 3},
      {{Op::kAvgPool, Op::kMaxPool}, Quantity::kSpatialRank, 1, 2},
      {{Op::kAvgPool, Op::kAdaptiveAvgPool}, Quantity::kKernelHeight, 1, kMaxWindow},
      {{Op::kAvgPool, Op::kAdaptiveAvgPool}, Quantity::kKernelWidth, 1, kMaxWindow},
      {{Op::kAvgPool, Op::kAdaptiveAvgPool, Op::kMaxPool}, Quantity::kStride, 1, kMaxWindow},
      {{Op::kAvgPool}, Quantity::kDivisorOverride, 0, 0},
      {{Op::kAvgPool}, Quantity::kCountsPadding, 1, 1, When::kPadded},
      {{Op::kAvgPool, Op::kMaxPool}, Quantity::kCeilMode, 0, 0},
      {{Op::kMaxPool}, Quantity::kDilation, 1, 1},
      {{Op::kAdaptiveAvgPool}, Quantity::kDividesInput, 1, 1},
      {{Op::kSoftmax}, Quantity::kAxisExtent, 1, 2040},
      {{Op::kSoftmax}, Quantity::kRowCount, 1, 4096},
      {{Op::kSoftmax}, Quantity::kElements, 1, 524288},
      {{Op::kResize}, Quantity::kSpatialRank, 2, 2},
      {{Op::kResize}, Quantity::kUpscale, 1, 8},
      {{Op::kAdd, Op::kSub}, Quantity::kAlpha, 1, 1},
      {kBroadcasting, Quantity::kFullOperand, 1, 1},
      {kProducts, Quantity::kNumber, 1, 1},
      {kProducts, Quantity::kScaleOnly, 1, 1},
      {kSharing, Quantity::kSharedQParams, 1, 1},
      {{Op::kReshape}, Quantity::kRank, 0, 7},
  };
  out.limits.insert(out.limits.end(), more.begin(), more.end());
  return out;
}

}  // namespace

// Nodes that quantize and dequantize have kernels, too, so the arithmetic has floats.
Device neutron() {
  return {.name = "neutron",
          .members = {{"neutron"}},
          .arithmetic = "TOSA-1.0+INT+FP+int16+doubleround",
          .limits = table(),
          .integers = target::cmsis_nn_semantics(),
          .orders = Orders::kPreserving,
          .preserves_composites = true};
}

}  // namespace tosaic::claimant
