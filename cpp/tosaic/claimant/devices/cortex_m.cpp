// Limits of Cortex-M: the kernels of CMSIS-NN, and those that ExecuTorch's Cortex-M backend adds (activations
// by a table of 256 results, division). Tensors of integers have one scale, except the weights of
// convolutions and linear layers. ExecuTorch's portable kernels move integers. A product by a number is
// computed as the integers times 1 or -1; it needs no kernel if it only changes the scale.
#include <initializer_list>

#include "tosaic/claimant/devices/records.h"

namespace tosaic::claimant {
namespace {

constexpr DTypes kI8{DType::kI8};
constexpr DTypes kI16{DType::kI16};
constexpr DTypes kBoth{DType::kI8, DType::kI16};

constexpr std::initializer_list<Op> kWeighted{Op::kConv, Op::kLinear};
constexpr std::initializer_list<Op> kTables{Op::kSigmoid,   Op::kTanh,        Op::kSilu, Op::kGelu,
                                            Op::kHardswish, Op::kHardsigmoid, Op::kLog,  Op::kLog2,
                                            Op::kLog10,     Op::kLog1p,       Op::kSqrt, Op::kRsqrt};
constexpr std::initializer_list<Op> kSums{Op::kAdd, Op::kSub, Op::kMul};
constexpr std::initializer_list<Op> kExtrema{Op::kMinimum, Op::kMaximum};
constexpr std::initializer_list<Op> kPools{Op::kAvgPool, Op::kMaxPool};
constexpr std::initializer_list<Op> kAverages{Op::kAvgPool, Op::kAdaptiveAvgPool, Op::kMean};
constexpr std::initializer_list<Op> kProducts{Op::kMul, Op::kDiv};
constexpr std::initializer_list<Op> kMoves{Op::kReshape, Op::kClone,  Op::kPermute, Op::kCat, Op::kSlice,
                                           Op::kSplit,   Op::kSelect, Op::kExpand,  Op::kPad};

Limits table() {
  Limits out;
  out.operators = {
      {kWeighted, kI8, kI8, kI8},
      {kWeighted, kI16, kI8, kI16},
      {{Op::kMatmul}, kI8, kI8, kI8},
      {{Op::kMatmul}, kI16, kI16, kI16},
      {kSums, kI8, kI8, kI8},
      {kSums, kI16, kI16, kI16},
      {{Op::kDiv}, kI8, kI8, kI8},
      {{Op::kDiv}, kI16, kI16, kI16},
      {kProducts, kI8, {DType::kF32}, kI8},
      {kProducts, kI16, {DType::kF32}, kI16},
      {{Op::kMul}, {DType::kF32}, kI8, kI8},
      {{Op::kMul}, {DType::kF32}, kI16, kI16},
      {kExtrema, kI8, kI8, kI8},
      {{Op::kSoftmax}, kI8, {}, kI8},
      {kTables, kI8, {}, kI8},
      {{Op::kRelu, Op::kClamp}, kI8, {}, kI8},
      {{Op::kRelu, Op::kClamp}, kI16, {}, kI16},
      {kPools, kI8, {}, kI8},
      {kPools, kI16, {}, kI16},
      {{Op::kAdaptiveAvgPool, Op::kMean}, kI8, {}, kI8},
      {kMoves, kBoth, {}, kBoth},
      {{Op::kQuantize}, {DType::kF32}, {}, kBoth},
      {{Op::kDequantize}, kBoth, {}, {DType::kF32}},
  };
  for (const OperatorRow& row : std::vector(out.operators)) {
    out.limits.push_back({row.ops, Quantity::kPerTensor, 1, 1});
    out.limits.push_back({row.ops, Quantity::kInputZeroPoint, 0, 0, When::kWide});
    out.limits.push_back({row.ops, Quantity::kOutputZeroPoint, 0, 0, When::kWide});
  }
  const std::vector<LimitRow> more{
      {kWeighted, Quantity::kConstantWeight, 1, 1},
      {kWeighted, Quantity::kConstantBias, 1, 1},
      {{Op::kConv}, Quantity::kSpatialRank, 1, 2},
      {kWeighted, Quantity::kWeightAxis, 0, 0, When::kForward},
      {{Op::kConv}, Quantity::kWeightAxis, 1, 1, When::kTransposed},
      {{Op::kConv}, Quantity::kSpatialRank, 2, 2, When::kTransposed},
      {{Op::kConv}, Quantity::kGroups, 1, 1, When::kTransposed},
      {{Op::kConv}, Quantity::kDilation, 1, 1, When::kTransposed},
      {{Op::kConv}, Quantity::kOutputPadding, 0, 0, When::kTransposed},
      {{Op::kConv}, Quantity::kTransposed, 0, 0, When::kWide},
      {{Op::kConv}, Quantity::kGroups, 1, 1, When::kWide},
      {{Op::kMatmul}, Quantity::kRank, 2, 4},
      {kSums, Quantity::kChannelBroadcast, 1, 1, When::kByTensor},
      {{Op::kDiv}, Quantity::kSameShapes, 1, 1, When::kByTensor},
      {kProducts, Quantity::kNumber, 1, 1},
      {kProducts, Quantity::kScaleOnly, 1, 1, When::kWideResult},
      {kExtrema, Quantity::kSharedQParams, 1, 1},
      {{Op::kSoftmax}, Quantity::kOutputScale256, 1, 1},
      {kPools, Quantity::kSpatialRank, 2, 2},
      {kPools, Quantity::kSharedQParams, 1, 1},
      {{Op::kAvgPool}, Quantity::kDivisorOverride, 0, 0},
      {{Op::kAvgPool}, Quantity::kCountsPadding, 0, 0, When::kPadded},
      {{Op::kMaxPool}, Quantity::kDilation, 1, 1},
      {{Op::kMaxPool}, Quantity::kCeilMode, 0, 0},
      {{Op::kAdaptiveAvgPool}, Quantity::kDividesInput, 1, 1},
      {kAverages, Quantity::kSharedQParams, 1, 1},
      {{Op::kMean}, Quantity::kAxisIsSpatial, 1, 1},
      {{Op::kMean}, Quantity::kRank, 2, 4},
      {{Op::kPad}, Quantity::kRank, 1, 4},
      {kMoves, Quantity::kSharedQParams, 1, 1},
  };
  out.limits.insert(out.limits.end(), more.begin(), more.end());
  return out;
}

}  // namespace

// Nodes that quantize and dequantize have kernels, too, so the arithmetic has floats.
Device cortex_m() {
  return {.name = "cortex-m",
          .members = {{"cortex-m0plus", CmsisNnKernels::kPlain},
                      {"cortex-m4", CmsisNnKernels::kDsp},
                      {"cortex-m33", CmsisNnKernels::kDsp},
                      {"cortex-m55", CmsisNnKernels::kMve},
                      {"cortex-m85", CmsisNnKernels::kMve}},
          .arithmetic = "TOSA-1.0+INT+FP+int16+doubleround",
          .limits = table(),
          .integers = target::cmsis_nn_semantics(),
          .orders = Orders::kPreserving,
          .preserves_composites = true};
}

}  // namespace tosaic::claimant
