// Limits of Ethos-U over operators of TOSA, from the report of supported operators that Vela 5.2 writes
// (--supported-ops- report). The tests of the full tier compile programs around each limit with Vela.
#include <initializer_list>

#include "tosaic/claimant/devices/records.h"
#include "tosaic/target/device_windows.h"

namespace tosaic::claimant {
namespace {

using target::kAvgPoolWindows;
using target::kConvolutionWindows;
using target::kMaxPoolWindows;

constexpr std::int64_t k64K = 65536;
constexpr std::int64_t kBias40 = 549755813887;
constexpr DTypes kI8{DType::kI8};
constexpr DTypes kI32{DType::kI32};
constexpr DTypes kI48{DType::kI48};
constexpr DTypes kI8I16{DType::kI8, DType::kI16};
constexpr DTypes kNumbers{DType::kI8, DType::kI16, DType::kI32};
constexpr DTypes kWeights{DType::kI8, DType::kI4};

constexpr std::initializer_list<Op> kConvolutions{Op::kTosaConv2d, Op::kTosaDepthwiseConv2d, Op::kTosaConv3d,
                                                  Op::kTosaTransposeConv2d};
constexpr std::initializer_list<Op> kForward{Op::kTosaConv2d, Op::kTosaDepthwiseConv2d, Op::kTosaConv3d};
constexpr std::initializer_list<Op> kPools{Op::kTosaAvgPool2d, Op::kTosaMaxPool2d};

Limits u55() {
  Limits out;
  out.operators = {
      {kConvolutions, kI8, kWeights, kI32},
      {kForward, {DType::kI16}, kI8, kI48},  // Vela refuses transposed ones, though it lists them
      {{Op::kTosaMatmul}, kI8, kI8, kI32},
      {{Op::kTosaTable}, kI8, kI8, kI8},
      {{Op::kTosaArithmeticRightShift, Op::kTosaLogicalLeftShift}, kI32, kI32, kI32},
      {kPools, kI8I16, {}, kI8I16},
      {{Op::kTosaReduceMax, Op::kTosaReduceMin}, kI8I16, {}, kI8I16},
      {{Op::kTosaReduceSum}, kI32, {}, kI32},
      {{Op::kTosaArgmax}, kI8, {}, kI32},
      {{Op::kTosaResize}, kI8I16, {}, {}},
      {{Op::kTosaReverse}, kI8I16, {}, kI8I16},
      {{Op::kTosaClamp}, kI8I16, {}, kI8I16},
      {{Op::kTosaConcat, Op::kTosaReshape, Op::kTosaSlice, Op::kTosaTile, Op::kTosaPad, Op::kTosaTranspose},
       kNumbers,
       {},
       kNumbers},
      {{Op::kTosaIdentity}, {DType::kI8, DType::kI16, DType::kI32, DType::kI48}, {}, {}},
      {{Op::kTosaCast}, kI8I16, {}, kNumbers},
      {{Op::kTosaRescale}, {DType::kI8, DType::kI16, DType::kI32, DType::kI48}, {}, kNumbers},
      {{Op::kTosaAbs, Op::kTosaClz, Op::kTosaNegate}, kNumbers, {}, kNumbers},
      {{Op::kTosaAdd, Op::kTosaSub, Op::kTosaMul, Op::kTosaMaximum, Op::kTosaMinimum},
       kNumbers,
       kNumbers,
       kNumbers},
  };
  out.limits = {
      {{Op::kTosaAvgPool2d}, Quantity::kBatch, 1, kAvgPoolWindows.batch},
      {{Op::kTosaAvgPool2d}, Quantity::kKernelHeight, 1, 8, When::kPadded},
      {{Op::kTosaAvgPool2d}, Quantity::kKernelWidth, 1, 8, When::kPadded},
      {{Op::kTosaAvgPool2d}, Quantity::kKernelHeight, 1, kAvgPoolWindows.height, When::kUnpadded},
      {{Op::kTosaAvgPool2d}, Quantity::kKernelProduct, 1, kAvgPoolWindows.product, When::kUnpadded},
      {{Op::kTosaMaxPool2d}, Quantity::kKernelHeight, 1, kMaxPoolWindows.height},
      {{Op::kTosaMaxPool2d}, Quantity::kKernelProduct, 1, kMaxPoolWindows.product},
      {kPools, Quantity::kStride, 1, 3},
      {kPools, Quantity::kHeight, 1, k64K},
      {kPools, Quantity::kWidth, 1, k64K},
      {kPools, Quantity::kChannels, 1, k64K},
      {{Op::kTosaArgmax}, Quantity::kRank, 1, 4},
      {{Op::kTosaArgmax}, Quantity::kBatch, 1, 1},  // not listed, but Vela refuses more
      {{Op::kTosaArgmax}, Quantity::kAxisIsLast, 1, 1},
      {{Op::kTosaArgmax}, Quantity::kAxisExtent, 1, 127},
      {{Op::kTosaArgmax}, Quantity::kRowCount, 1, k64K},
      {kConvolutions, Quantity::kInputChannels, 1, k64K},
      {kConvolutions, Quantity::kConstantWeight, 1, 1},
      {kConvolutions, Quantity::kKernelHeight, 1, kConvolutionWindows.height},
      {kConvolutions, Quantity::kKernelProduct, 1, kConvolutionWindows.product},
      {kConvolutions, Quantity::kWeightSum, 0, 127 * k64K},
      {kConvolutions, Quantity::kBias, -kBias40 - 1, kBias40},
      {kForward, Quantity::kStride, 1, 3},
      {{Op::kTosaConv3d}, Quantity::kKernelDepth, 1, 1},
      {{Op::kTosaTransposeConv2d}, Quantity::kStride, 1, 2},
      {{Op::kTosaTransposeConv2d}, Quantity::kSquareStride, 1, 1},
      {{Op::kTosaTransposeConv2d}, Quantity::kHeight, 1, k64K},
      {{Op::kTosaTransposeConv2d}, Quantity::kWidth, 1, k64K},
      {{Op::kTosaMatmul}, Quantity::kWidth, 1, k64K},
      {{Op::kTosaMatmul}, Quantity::kChannels, 1, k64K},
      {{Op::kTosaResize}, Quantity::kUpscale, 2, 8},
      // Vela lists bilinear resizes, but refuses them. It also refuses nearest resizes of any other form.
      {{Op::kTosaResize}, Quantity::kBilinear, 0, 0},
      {{Op::kTosaResize}, Quantity::kReplicates, 1, 1},
      {{Op::kTosaResize}, Quantity::kBatch, 1, 1},
      {{Op::kTosaTranspose}, Quantity::kRank, 1, 4, When::kInt32},
      {{Op::kTosaTranspose}, Quantity::kSimplePermutation, 1, 1, When::kInt32},
      {{Op::kTosaTranspose}, Quantity::kPermutedProduct, 1, k64K, When::kNarrow},
      {{Op::kTosaReduceSum}, Quantity::kAxisExtent, 1, k64K},
      {{Op::kTosaReduceSum}, Quantity::kAxisOuter, 1, k64K, When::kNotLast},
      {{Op::kTosaReduceSum}, Quantity::kAxisInner, 1, k64K, When::kNotLast},
      {{Op::kTosaReverse}, Quantity::kAxisIsSpatial, 1, 1},
      {{Op::kTosaArithmeticRightShift}, Quantity::kRoundingShift, 1, 1},
  };
  return out;
}

// Ethos-U85 has the operators of profile INT with all their dtypes, which lowering checks.
Limits u85() {
  Limits out;
  out.operators = {{tosa_1_0_operators()}, {{Op::kTosaCondIf, Op::kTosaWhileLoop}}};
  out.limits = {
      {kConvolutions, Quantity::kInputChannels, 1, k64K},  // not listed, but Vela refuses more
      {{Op::kTosaTransposeConv2d, Op::kTosaConv3d}, Quantity::kConstantWeight, 1, 1},
      {{Op::kTosaTransposeConv2d, Op::kTosaConv3d}, Quantity::kConstantBias, 1, 1},
  };
  return out;
}

}  // namespace

Device ethos_u55() {
  return {.name = "ethos-u55",
          .members = {{"ethos-u55-32"},
                      {"ethos-u55-64"},
                      {"ethos-u55-128"},
                      {"ethos-u55-256"},
                      {"ethos-u65-256"},
                      {"ethos-u65-512"}},
          .target = "TOSA-1.0+INT+int16+int4",
          .limits = u55()};
}

Device ethos_u85() {
  return {.name = "ethos-u85",
          .members = {{"ethos-u85-128"},
                      {"ethos-u85-256"},
                      {"ethos-u85-512"},
                      {"ethos-u85-1024"},
                      {"ethos-u85-2048"}},
          .target = "TOSA-1.0+INT+int16+int4",
          .limits = u85()};
}

}  // namespace tosaic::claimant
