// Checks result types by tables. A row has an operator, its attributes and operands, and the result types of
// torch or of the TOSA specification.
#include "tosaic/ir/infer.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor_types.h"
#include "tosaic/base/error.h"
#include "tosaic/ir/control_flow.h"

namespace tosaic {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

using testing::f32;
using testing::tensor;

TensorType f16(Shape shape) { return tensor(DType::kF16, shape); }
TensorType i8(Shape shape) { return tensor(DType::kI8, shape); }
TensorType i16(Shape shape) { return tensor(DType::kI16, shape); }
TensorType i32(Shape shape) { return tensor(DType::kI32, shape); }
TensorType i64(Shape shape) { return tensor(DType::kI64, shape); }
TensorType boolean(Shape shape) { return tensor(DType::kBool, shape); }

// Marks an operand that is absent.
TensorType none() { return tensor(DType::kF64, {-1}); }

std::vector<TensorType> run(Op op, const Attrs& attrs, const std::vector<TensorType>& operands) {
  std::vector<const TensorType*> pointers;
  for (const TensorType& operand : operands) pointers.push_back(operand == none() ? nullptr : &operand);
  return infer(op, attrs, pointers);
}

// The inferred result types as text, e.g. "f32[2,3] i64[4]", or the text of the error.
std::string text(Op op, const Attrs& attrs, const std::vector<TensorType>& operands) {
  std::string out;
  try {
    for (const TensorType& result : run(op, attrs, operands))
      out += (out.empty() ? "" : " ") + to_string(result);
  } catch (const Error& error) {
    return error.what();
  }
  return out;
}

struct Case {
  Op op;
  Attrs attrs;
  std::vector<TensorType> operands;
  std::string expected;
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    INFO(info(c.op).name);
    CHECK(text(c.op, c.attrs, c.operands) == c.expected);
  }
}

ConvAttrs conv2d(Dims stride, Dims pad, bool transposed = false, Dims output_padding = {}) {
  ConvAttrs attrs;
  attrs.stride = stride;
  attrs.pad_before = attrs.pad_after = pad;
  attrs.dilation = {1, 1};
  attrs.output_padding = output_padding;
  attrs.transposed = transposed;
  return attrs;
}

PoolAttrs pool2d(std::int64_t kernel, std::int64_t stride, std::int64_t padding, bool ceil_mode) {
  PoolAttrs attrs;
  attrs.kernel = {kernel, kernel};
  attrs.stride = {stride, stride};
  attrs.padding = {padding, padding};
  attrs.dilation = {1, 1};
  attrs.ceil_mode = ceil_mode;
  return attrs;
}

TosaConvAttrs tosa_conv(Dims pad, Dims stride, DType acc_type) {
  TosaConvAttrs attrs;
  attrs.pad = pad;
  attrs.stride = stride;
  attrs.dilation = {1, 1};
  attrs.acc_type = acc_type;
  return attrs;
}

TEST_CASE("dtype promotion: rank-0 operands count only if their category is higher") {
  const auto promoted = [](const std::vector<TensorType>& operands) {
    return text(Op::kMul, NoAttrs{}, operands);
  };
  CHECK(promoted({i8({2}), i64({2})}) == "i64[2]");
  CHECK(promoted({i8({2}), i64({})}) == "i8[2]");
  CHECK(promoted({i8({2}), f32({})}) == "f32[2]");
  CHECK(promoted({f16({2}), f32({})}) == "f16[2]");
  CHECK(promoted({f16({2}), tensor(DType::kBF16, {2})}) == "f32[2]");
  CHECK(promoted({tensor(DType::kU8, {2}), i8({2})}) == "i16[2]");
  CHECK(promoted({boolean({2}), i32({})}) == "i32[2]");
  CHECK(promoted({i32({}), f32({})}) == "f32[]");
}

TEST_CASE("elementwise operators follow torch's dtypes and broadcasting") {
  check({
      {Op::kExp, NoAttrs{}, {i64({2, 3})}, "f32[2,3]"},
      {Op::kExp, NoAttrs{}, {f16({2})}, "f16[2]"},
      {Op::kFloor, NoAttrs{}, {i8({2})}, "i8[2]"},
      {Op::kSign, NoAttrs{}, {boolean({2})}, "bool[2]"},
      {Op::kDiv, DivAttrs{}, {i32({2}), i32({2})}, "f32[2]"},
      {Op::kDiv, DivAttrs{DivRounding::kFloor}, {i32({2}), i32({2})}, "i32[2]"},
      {Op::kEq, NoAttrs{}, {i32({2, 1}), f32({3})}, "bool[2,3]"},
      {Op::kWhere, NoAttrs{}, {boolean({2, 1}), f32({}), i64({3})}, "f32[2,3]"},
      {Op::kClamp, ClampAttrs{Scalar{0.5}, {}}, {i8({2})}, "f32[2]"},
      {Op::kClamp, ClampAttrs{Scalar{std::int64_t{0}}, {}}, {boolean({2})}, "i64[2]"},
      {Op::kBitwiseNot, NoAttrs{}, {boolean({2})}, "bool[2]"},
      {Op::kCast, CastAttrs{DType::kI8}, {f32({0, 2})}, "i8[0,2]"},
      {Op::kNeg,
       NoAttrs{},
       {boolean({2})},
       "[infer] neg: wrong dtype of operand 'input': expected an integer or float dtype, got bool"},
      {Op::kSilu,
       NoAttrs{},
       {i32({2})},
       "[infer] silu: wrong dtype of operand 'input': expected a float dtype, got i32"},
      {Op::kAdd,
       AlphaAttrs{Scalar{1.5}},
       {i32({2}), i32({2})},
       "[infer] add: a float 'alpha' for an integer result: expected an integer 'alpha', got 1.500000"},
      {Op::kMul,
       NoAttrs{},
       {f32({2}), f32({3})},
       "[infer] shapes do not broadcast: expected extents that are equal or 1, got [2] and [3]"},
      {Op::kClamp,
       ClampAttrs{},
       {f32({2})},
       "[infer] clamp: neither 'min' nor 'max' is given: expected at least one bound, got none"},
  });
}

TEST_CASE("contractions check inner extents and have the dtype of their operands") {
  ConvAttrs grouped = conv2d({1, 1}, {0, 0});
  grouped.groups = 2;
  SdpaAttrs gqa;
  gqa.enable_gqa = true;
  check({
      {Op::kConv, conv2d({2, 2}, {1, 1}), {f32({1, 3, 9, 8}), f32({4, 3, 3, 3}), f32({4})}, "f32[1,4,5,4]"},
      {Op::kConv, conv2d({1, 1}, {0, 0}), {f32({3, 9, 8}), f32({4, 3, 3, 3})}, "f32[4,7,6]"},
      {Op::kConv, grouped, {f32({1, 4, 2, 2}), f32({6, 2, 1, 1})}, "f32[1,6,2,2]"},
      {Op::kConv,
       conv2d({2, 2}, {1, 1}, true, {1, 0}),
       {f32({1, 4, 3, 3}), f32({4, 2, 3, 3})},
       "f32[1,2,6,5]"},
      {Op::kLinear, NoAttrs{}, {f32({2, 5, 3}), f32({4, 3}), f32({4})}, "f32[2,5,4]"},
      {Op::kMatmul, NoAttrs{}, {f32({3}), f32({3})}, "f32[]"},
      {Op::kMatmul, NoAttrs{}, {f32({5, 1, 2, 3}), f32({4, 3, 6})}, "f32[5,4,2,6]"},
      {Op::kMatmul, NoAttrs{}, {f32({3}), f32({4, 3, 6})}, "f32[4,6]"},
      {Op::kAddmm, AddmmAttrs{}, {f32({6}), f32({2, 3}), f32({3, 6})}, "f32[2,6]"},
      {Op::kBaddbmm, AddmmAttrs{}, {f32({1}), f32({5, 2, 3}), f32({5, 3, 6})}, "f32[5,2,6]"},
      {Op::kSdpa,
       gqa,
       {f32({2, 8, 3, 4}), f32({2, 2, 5, 4}), f32({2, 4, 5, 6}), boolean({3, 5})},
       "f32[2,8,3,6]"},
      {Op::kEmbedding, NoAttrs{}, {f32({10, 4}), i64({2, 3})}, "f32[2,3,4]"},
      {Op::kConv,
       conv2d({1, 1}, {0, 0}),
       {f32({1, 3, 9, 9}), f32({4, 2, 3, 3})},
       "[infer] conv: wrong extent of operand 'input' on axis 1: expected 2, got 3 in [1,3,9,9]"},
      {Op::kConv,
       conv2d({0, 1}, {0, 0}),
       {f32({1, 3, 9, 9}), f32({4, 3, 3, 3})},
       "[infer] conv: attribute 'stride' is too small: expected entries of at least 1, got [0,1]"},
      {Op::kConv,
       conv2d({1, 1}, {0, 0}),
       {f32({1, 3, 2, 9}), f32({4, 3, 3, 3})},
       "[infer] conv: the kernel is larger than the padded input on spatial axis 0: expected at most 2, got "
       "3"},
      {Op::kConv,
       conv2d({1, 1}, {kHuge, 0}),
       {f32({1, 3, 2, 9}), f32({4, 3, 3, 3})},
       "[infer] conv: an extent does not fit 63 bits"},
      {Op::kLinear,
       NoAttrs{},
       {f32({2, 3}), f32({4, 2})},
       "[infer] linear: wrong extent of operand 'weight' on axis 1: expected 3, got 2 in [4,2]"},
      {Op::kMatmul,
       NoAttrs{},
       {f32({2, 3}), f16({3, 2})},
       "[infer] matmul: dtypes of operand 'input' and operand 'other' differ: expected f32, got f16"},
  });
}

TEST_CASE("reductions drop or keep axes and widen integers") {
  check({
      {Op::kSum, ReduceAttrs{{1}, false, {}}, {i8({2, 3, 4})}, "i64[2,4]"},
      {Op::kSum, ReduceAttrs{{0, 2}, true, DType::kF16}, {i8({2, 3, 4})}, "f16[1,3,1]"},
      {Op::kMean, ReduceAttrs{{0}, false, {}}, {f16({2, 3})}, "f16[3]"},
      {Op::kAny, ReduceAttrs{{0}, false, {}}, {tensor(DType::kU8, {2, 3})}, "u8[3]"},
      {Op::kAll, ReduceAttrs{{0}, false, {}}, {f32({2, 3})}, "bool[3]"},
      {Op::kAmax, ReduceAttrs{{1}, false, {}}, {i32({0, 3})}, "i32[0]"},
      {Op::kArgmax, ArgAttrs{{}, true}, {f32({2, 3})}, "i64[1,1]"},
      {Op::kArgmax, ArgAttrs{1, false}, {f32({2, 3})}, "i64[2]"},
      {Op::kArgsort, SortAttrs{1, true}, {f16({2, 3})}, "i64[2,3]"},
      {Op::kArgsort, SortAttrs{0, true, 1}, {f16({2, 3})}, "i64[1,3]"},
      {Op::kCumargmax, AxisAttrs{0}, {boolean({2, 3})}, "i64[2,3]"},
      {Op::kCumsum, AxisDtypeAttrs{0, {}}, {boolean({2})}, "i64[2]"},
      {Op::kDiff, DiffAttrs{2, 1}, {f32({2, 5}), f32({2, 1}), none()}, "f32[2,4]"},
      {Op::kDiff, DiffAttrs{9, 1}, {f32({2, 5})}, "f32[2,0]"},
      {Op::kSoftmax, AxisDtypeAttrs{1, DType::kF32}, {i8({2, 5})}, "f32[2,5]"},
      {Op::kLayerNorm, NormAttrs{2, 1e-5}, {f16({2, 3, 4}), f32({3, 4}), none()}, "f16[2,3,4]"},
      {Op::kBatchNorm, BatchNormAttrs{}, {f32({2, 3}), none(), none(), f32({3}), f32({3})}, "f32[2,3]"},
      {Op::kMean,
       ReduceAttrs{{0}, false, {}},
       {i32({2, 3})},
       "[infer] mean: wrong dtype of operand 'input': expected a float dtype, got i32"},
      {Op::kAmax,
       ReduceAttrs{{0}, false, {}},
       {f32({0, 3})},
       "[infer] amax: axis 0 of operand 'input' is empty: expected an extent of at least 1, got [0,3]"},
      {Op::kSum,
       ReduceAttrs{{1, 1}, false, {}},
       {f32({2, 3})},
       "[infer] sum: an axis is named twice: expected distinct axes, got [1,1]"},
      {Op::kSum,
       ReduceAttrs{{-1}, false, {}},
       {f32({2, 3})},
       "[infer] sum: axis out of range: expected an axis in [0, 2), got -1"},
      {Op::kGroupNorm,
       GroupNormAttrs{2, 1e-5},
       {f32({2, 3})},
       "[infer] group_norm: 'groups' does not divide the channels: expected a divisor of 3, got 2"},
      {Op::kBatchNorm,
       BatchNormAttrs{},
       {f32({2, 3}), none(), none(), none(), f32({3})},
       "[infer] batch_norm: operand 'mean' is absent"},
  });
}

TEST_CASE("pools round up only where the last window begins in the input or left pad") {
  check({
      {Op::kMaxPool, pool2d(2, 2, 0, false), {f32({1, 1, 5, 5})}, "f32[1,1,2,2]"},
      {Op::kMaxPool, pool2d(2, 2, 0, true), {f32({1, 1, 5, 5})}, "f32[1,1,3,3]"},
      {Op::kAvgPool, pool2d(2, 3, 1, true), {f32({1, 5, 5})}, "f32[1,2,2]"},
      {Op::kMaxPool, pool2d(1, 4, 0, true), {f32({1, 1, 2, 2})}, "f32[1,1,1,1]"},
      {Op::kAdaptiveAvgPool, ShapeAttrs{{1, 2}}, {f32({2, 3, 7, 7})}, "f32[2,3,1,2]"},
      {Op::kResize,
       ResizeAttrs{ResizeMode::kNearest, {4, 6}, false, {2.0, 2.0}},
       {f32({1, 1, 2, 3})},
       "f32[1,1,4,6]"},
      {Op::kMaxPool,
       pool2d(3, 1, 2, false),
       {f32({1, 1, 5, 5})},
       "[infer] max_pool: 'padding' on spatial axis 0: expected at most half of the kernel 3, got 2"},
      {Op::kMaxPool,
       pool2d(6, 1, 0, false),
       {f32({1, 1, 5, 5})},
       "[infer] max_pool: the result is empty on spatial axis 0: expected at least 1, got 0"},
  });
}

TEST_CASE("movement operators: result shapes and bounds") {
  check({
      {Op::kReshape, ShapeAttrs{{3, 4}}, {f32({2, 6})}, "f32[3,4]"},
      {Op::kPermute, PermuteAttrs{{2, 0, 1}}, {f32({2, 3, 4})}, "f32[4,2,3]"},
      {Op::kExpand, ShapeAttrs{{5, 2, 3}}, {f32({1, 3})}, "f32[5,2,3]"},
      {Op::kRepeat, ShapeAttrs{{2, 1, 3}}, {f32({4, 5})}, "f32[2,4,15]"},
      {Op::kCat, AxisAttrs{1}, {f32({0}), f32({2, 3}), i64({2, 1})}, "f32[2,4]"},
      {Op::kStack, AxisAttrs{1}, {f32({2}), f32({2}), f32({2})}, "f32[2,3]"},
      {Op::kSplit, SplitAttrs{0, {1, 2}}, {f32({3, 4})}, "f32[1,4] f32[2,4]"},
      {Op::kUnbind, AxisAttrs{1}, {f32({3, 2})}, "f32[3] f32[3]"},
      {Op::kSelect, SelectAttrs{0, 2}, {f32({3, 2})}, "f32[2]"},
      {Op::kSlice, SliceAttrs{0, 1, 6, 2}, {f32({7})}, "f32[3]"},
      {Op::kPad, PadAttrs{{1, -1}, {0, -1}, PadMode::kConstant, 0.0}, {f32({2, 3})}, "f32[3,1]"},
      {Op::kGather, AxisAttrs{1}, {f32({3, 2}), i64({2, 5})}, "f32[2,5]"},
      {Op::kIndexSelect, AxisAttrs{1}, {f32({3, 2}), i64({})}, "f32[3,1]"},
      {Op::kIndex, NoAttrs{}, {f32({2, 3, 4, 5}), none(), i64({6}), i64({7, 1})}, "f32[2,7,6,5]"},
      {Op::kIndex, NoAttrs{}, {f32({2, 3, 4, 5}), none(), i64({6}), none(), i64({7, 1})}, "f32[7,6,2,4]"},
      {Op::kArange,
       ArangeAttrs{std::int64_t{0}, std::int64_t{7}, std::int64_t{2}, DType::kI64},
       {},
       "i64[4]"},
      {Op::kArange, ArangeAttrs{5.0, 0.5, -1.5, DType::kF32}, {}, "f32[3]"},
      {Op::kFull, FullAttrs{{2, 0}, 1.0, DType::kI8}, {}, "i8[2,0]"},
      {Op::kReshape,
       ShapeAttrs{{5}},
       {f32({2, 3})},
       "[infer] reshape: the number of elements changes: expected 6 of [2,3], got 5 of [5]"},
      {Op::kPermute,
       PermuteAttrs{{0, 0}},
       {f32({2, 3})},
       "[infer] permute: attribute 'perm': expected a permutation of 2 axes, got [0,0]"},
      {Op::kSlice,
       SliceAttrs{0, 1, 9, 1},
       {f32({7})},
       "[infer] slice: 'start' and 'end': expected 0 <= start <= end <= 7, got 1 and 9"},
      {Op::kSplit,
       SplitAttrs{0, {1, 1}},
       {f32({3})},
       "[infer] split: 'sizes' do not add up to the extent: expected 3, got 2"},
      {Op::kPad,
       PadAttrs{{3}, {0}, PadMode::kReflect, 0.0},
       {f32({3})},
       "[infer] pad: the pad on axis 0 reaches beyond the input: expected at most the extent 3, got 3"},
      {Op::kIndex,
       NoAttrs{},
       {f32({2}), boolean({2})},
       "[infer] index: a mask as index: the result's shape depends on data: expected i32 or i64, got bool"},
      {Op::kArange,
       ArangeAttrs{std::int64_t{0}, kHuge, std::int64_t{1}, DType::kI64},
       {},
       "[infer] arange: the result is too large: expected at most 2^56 elements, got [72057594037927937]"},
      {Op::kUnbind,
       AxisAttrs{0},
       {f32({kHuge / 256})},
       "[infer] unbind: number of results: expected 1 to 65536, got 36028797018963967"},
  });
}

TEST_CASE("TOSA operators follow the specification's shape rules") {
  TosaTransposeConvAttrs transpose_conv;
  transpose_conv.out_pad = {-1, 0, 0, 1};
  transpose_conv.stride = {2, 2};
  TosaAvgPoolAttrs avg;
  avg.kernel = {2, 2};
  avg.stride = {2, 2};
  avg.pad = {0, 0, 0, 0};
  avg.acc_type = DType::kI32;
  TosaResizeAttrs resize{ResizeMode::kBilinear, {4, 2, 4, 2}, {0, 0}, {2, 2}};
  check({
      {Op::kTosaAdd, NoAttrs{}, {f32({2, 1}), f32({1, 3})}, "f32[2,3]"},
      {Op::kTosaMul, TosaMulAttrs{}, {i8({2}), i8({2})}, "i32[2]"},
      {Op::kTosaGreater, NoAttrs{}, {i32({2}), i32({1})}, "bool[2]"},
      {Op::kTosaReduceSum, AxisAttrs{1}, {i32({2, 3})}, "i32[2,1]"},
      {Op::kTosaArgmax, TosaAxisNanAttrs{1, NanMode::kPropagate}, {i8({2, 3})}, "i32[2]"},
      {Op::kTosaMatmul, TosaMatmulAttrs{}, {i16({2, 3, 4}), i16({2, 4, 5})}, "i48[2,3,5]"},
      {Op::kTosaMatmul, TosaMatmulAttrs{0, 0, DType::kF32}, {f16({2, 3, 4}), f16({2, 4, 5})}, "f32[2,3,5]"},
      {Op::kTosaConv2d,
       tosa_conv({1, 1, 1, 1}, {1, 1}, DType::kI32),
       {i8({1, 8, 8, 3}), i8({4, 3, 3, 3}), i32({1})},
       "i32[1,8,8,4]"},
      {Op::kTosaDepthwiseConv2d,
       tosa_conv({0, 0, 0, 0}, {1, 1}, DType::kI48),
       {i16({1, 8, 8, 3}), i8({3, 3, 3, 2}), tensor(DType::kI48, {6})},
       "i48[1,6,6,6]"},
      {Op::kTosaTransposeConv2d,
       transpose_conv,
       {f32({1, 3, 3, 2}), f32({4, 2, 2, 2}), f32({4})},
       "f32[1,5,7,4]"},
      {Op::kTosaAvgPool2d, avg, {i8({1, 4, 6, 3})}, "i8[1,2,3,3]"},
      {Op::kTosaResize, resize, {i8({1, 4, 4, 3})}, "i32[1,8,8,3]"},
      {Op::kTosaConcat, AxisAttrs{0}, {i8({1, 2}), i8({3, 2})}, "i8[4,2]"},
      {Op::kTosaPad, TosaPadAttrs{{1, 0}, {0, 2}, 0.0}, {i8({1, 2})}, "i8[2,4]"},
      {Op::kTosaTile, ShapeAttrs{{2, 3}}, {i8({1, 2})}, "i8[2,6]"},
      {Op::kTosaSlice, TosaSliceAttrs{{0, 1}, {1, 1}}, {i8({1, 2})}, "i8[1,1]"},
      {Op::kTosaGather, NoAttrs{}, {i8({2, 5, 3}), i32({2, 7})}, "i8[2,7,3]"},
      {Op::kTosaScatter, NoAttrs{}, {i8({2, 5, 3}), i32({2, 4}), i8({2, 4, 3})}, "i8[2,5,3]"},
      {Op::kTosaSelect, NoAttrs{}, {boolean({1, 1}), f32({2, 1}), f32({1, 3})}, "f32[2,3]"},
      {Op::kTosaAdd,
       NoAttrs{},
       {f32({2, 1}), f32({3})},
       "[infer] tosa.add: operands differ in rank: expected rank 2, got 1"},
      {Op::kTosaConv2d,
       tosa_conv({0, 0, 0, 0}, {2, 2}, DType::kF32),
       {f32({1, 8, 8, 3}), f32({4, 3, 3, 3}), f32({4})},
       "[infer] tosa.conv2d: the last window ends before the padded input on height: expected a multiple of "
       "2, got 5"},
      {Op::kTosaConv2d,
       tosa_conv({0, 0, 0, 0}, {1, 1}, DType::kF32),
       {i8({1, 8, 8, 3}), i8({4, 3, 3, 3}), i32({4})},
       "[infer] tosa.conv2d: attribute 'acc_type' for i8: expected i32, got f32"},
      {Op::kTosaAbs,
       NoAttrs{},
       {f32({0})},
       "[infer] tosa.abs: operand 'input' is empty: expected extents of at least 1, got [0]"},
      {Op::kTosaSlice,
       TosaSliceAttrs{{0, kHuge}, {1, 1}},
       {i8({1, 2})},
       "[infer] tosa.slice: an extent does not fit 63 bits"},
  });
}

TEST_CASE("TOSA operators of extensions follow the specification's rules") {
  TosaRescaleAttrs rescale;
  rescale.dtype = DType::kI16;
  rescale.per_channel = true;
  rescale.multiplier = {5, 6, 7};
  rescale.shift = {2, 30, 62};
  TosaRescaleAttrs of_unsigned = rescale;
  of_unsigned.input_unsigned = true;
  of_unsigned.input_zp = 255;
  const TosaVariableAttrs variable{"v", DType::kF16, {2, 3}};
  const TosaVariableAccessAttrs name{"v", DType::kF16, {2, 3}};
  check({
      {Op::kTosaFft2d, TosaFftAttrs{}, {f32({3, 4, 1}), f32({3, 4, 1})}, "f32[3,4,1] f32[3,4,1]"},
      {Op::kTosaRfft2d, TosaRfftAttrs{}, {f32({3, 2, 8})}, "f32[3,2,5] f32[3,2,5]"},
      {Op::kTosaRfft2d, TosaRfftAttrs{}, {f32({1, 1, 1})}, "f32[1,1,1] f32[1,1,1]"},
      {Op::kTosaTable, NoAttrs{}, {i8({2, 3}), i8({256})}, "i8[2,3]"},
      {Op::kTosaTable, NoAttrs{}, {i16({}), i16({513})}, "i32[]"},
      {Op::kTosaRescale, rescale, {i32({2, 3})}, "i16[2,3]"},
      {Op::kTosaRescale, of_unsigned, {i8({2, 3})}, "i16[2,3]"},
      {Op::kTosaVariable, variable, {}, ""},
      {Op::kTosaVariable, variable, {f16({2, 3})}, ""},
      {Op::kTosaVariableWrite, name, {f16({2, 3})}, ""},
      {Op::kTosaVariableRead, name, {}, "f16[2,3]"},
      {Op::kTosaFft2d,
       TosaFftAttrs{},
       {f32({1, 6, 4}), f32({1, 6, 4})},
       "[infer] tosa.fft2d: the height is no power of two: expected 1, 2, 4, 8, ..., got 6 in [1,6,4]"},
      {Op::kTosaTable,
       NoAttrs{},
       {i8({2}), i8({255})},
       "[infer] tosa.table: wrong shape of operand 'table': expected [256], got [255]"},
      {Op::kTosaRescale,
       of_unsigned,
       {i32({2, 3})},
       "[infer] tosa.rescale: 'input_unsigned' for i32: expected false, got true"},
      {Op::kTosaRescale,
       rescale,
       {i8({2, 4})},
       "[infer] tosa.rescale: wrong number of entries in 'multiplier': expected 4, got 3"},
      {Op::kTosaVariableWrite,
       name,
       {f32({2, 3})},
       "[infer] tosa.variable_write: wrong dtype of operand 'input': expected f16, got f32"},
  });
}

TEST_CASE("operand counts, absent operands, extents and attribute kinds are checked first") {
  CHECK(text(Op::kAbs, NoAttrs{}, {}) == "[infer] abs: wrong number of operands: expected 1, got 0");
  CHECK(text(Op::kCat, AxisAttrs{0}, {}) == "[infer] cat: no operands: expected 1 or more, got 0");
  CHECK(text(Op::kCat, AxisAttrs{0}, {f32({1}), none()}) ==
        "[infer] cat: operand 'tensors' (number 1) is absent");
  CHECK(text(Op::kAbs, NoAttrs{}, {f32({-2})}) ==
        "[infer] abs: operand 'input' has a negative extent: expected extents of at least 0, got [-2]");
  CHECK_THROWS_AS(run(Op::kAbs, AxisAttrs{}, {f32({2})}), InvalidGraph);
  CHECK_THROWS_AS(run(Op::kFull, FullAttrs{{0, kHuge, 4}, 0.0, DType::kF32}, {}), InvalidGraph);
}

TEST_CASE("foreign operators and control flow have no type inference") {
  for (const OpInfo& row : all_ops())
    CHECK(has_inference(row.op) != (is_foreign(row.op) || is_cond(row.op) || is_while_loop(row.op)));
  CHECK_THROWS_AS(run(Op::kOpaque, OpaqueAttrs{}, {}), InternalError);
  CHECK_THROWS_AS(run(Op::kCond, NoAttrs{}, {boolean({})}), InternalError);
}

TEST_CASE("default attributes and unusual operands are inferred or cause a user error") {
  const std::vector<TensorType> odd = {f32({}), f32({0}), i8({1, 2, 2, 3}), boolean({2}), none()};
  for (const OpInfo& row : all_ops()) {
    if (!has_inference(row.op)) continue;
    for (const TensorType& operand : odd)
      for (std::size_t count = 0; count < 7; ++count) {
        try {
          static_cast<void>(run(row.op, default_attrs(row.op), std::vector<TensorType>(count, operand)));
        } catch (const InvalidGraph&) {
        } catch (const UnsupportedOp&) {
        }
      }
  }
  SUCCEED();
}

// Calls `visit` with every integer of a struct of attributes.
template <class Visit>
struct IntegerVisitor {
  Visit visit;
  template <class Field>
  void operator()(const char*, Field& field) {
    if constexpr (std::is_same_v<Field, std::int64_t>)
      visit(field);
    else if constexpr (std::is_same_v<Field, Dims> || std::is_same_v<Field, std::vector<std::int64_t>>)
      for (std::int64_t& value : field) visit(value);
  }
};

TEST_CASE("extreme attribute values and extents are inferred or cause a user error") {
  TosaTransposeConvAttrs transpose_conv{{0, 0, 0, 0}, {1, 1}, 0, 0, DType::kF32, false};
  TosaMaxPoolAttrs max_pool{{2, 2}, {2, 2}, {0, 0, 0, 0}, NanMode::kPropagate};
  const TosaResizeAttrs resize{ResizeMode::kNearest, {4, 2, 4, 2}, {0, 0}, {2, 2}};
  const std::vector<Case> cases = {
      {Op::kConv, conv2d({1, 1}, {1, 1}), {f32({1, 3, 9, 8}), f32({4, 3, 3, 3}), f32({4})}, ""},
      {Op::kConv, conv2d({2, 2}, {1, 1}, true, {1, 0}), {f32({1, 4, 3, 3}), f32({4, 2, 3, 3})}, ""},
      {Op::kMaxPool, pool2d(2, 2, 0, true), {f32({1, 1, 5, 5})}, ""},
      {Op::kAvgPool, pool2d(2, 2, 1, false), {f32({1, 1, 5, 5})}, ""},
      {Op::kPad, PadAttrs{{1, 1}, {1, 1}, PadMode::kConstant, 0.0}, {f32({2, 3})}, ""},
      {Op::kSlice, SliceAttrs{0, 1, 6, 2}, {f32({7})}, ""},
      {Op::kRepeat, ShapeAttrs{{2, 2}}, {f32({2, 3})}, ""},
      {Op::kSplit, SplitAttrs{0, {1, 1}}, {f32({2})}, ""},
      {Op::kDiff, DiffAttrs{1, 0}, {f32({2})}, ""},
      {Op::kTosaConv2d,
       tosa_conv({1, 1, 1, 1}, {1, 1}, DType::kF32),
       {f32({1, 8, 8, 3}), f32({4, 3, 3, 3}), f32({1})},
       ""},
      {Op::kTosaTransposeConv2d, transpose_conv, {f32({1, 3, 3, 2}), f32({4, 2, 2, 2}), f32({4})}, ""},
      {Op::kTosaMaxPool2d, max_pool, {f32({1, 4, 4, 2})}, ""},
      {Op::kTosaResize, resize, {f32({1, 4, 4, 3})}, ""},
      {Op::kTosaSlice, TosaSliceAttrs{{0, 1}, {1, 1}}, {f32({1, 2})}, ""},
      {Op::kTosaPad, TosaPadAttrs{{1, 0}, {0, 2}, 0.0}, {f32({1, 2})}, ""},
  };
  const auto survives = [](const Case& c) {
    try {
      for (const TensorType& result : run(c.op, c.attrs, c.operands)) {
        CHECK(num_elements(result.shape) >= 0);
        CHECK(result.bytes() < std::size_t{1} << 60);
      }
    } catch (const InvalidGraph&) {
    } catch (const UnsupportedOp&) {
    }
  };
  const std::vector<std::int64_t> extremes = {kHuge, kHuge - 1, -kHuge - 1, -kHuge,
                                              -1,    0,         kHuge / 2,  kHuge / 4};
  for (Case c : cases) {
    CHECK_NOTHROW(run(c.op, c.attrs, c.operands));
    const auto replace = [&](std::int64_t& place) {
      const std::int64_t kept = place;
      for (const std::int64_t extreme : extremes) {
        place = extreme;
        survives(c);
      }
      place = kept;
    };
    visit([&](auto& attrs) { attrs.fields(attrs, IntegerVisitor<decltype(replace)>{replace}); }, c.attrs);
    for (TensorType& operand : c.operands)
      for (std::int64_t& extent : operand.shape) replace(extent);
  }
}

TEST_CASE("infer_node names the node and its source line") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2, 3}), "x");
  const ValueId w = graph.add_input(InputKind::kUser, "w", f32({4, 2}), "w");
  auto origin = std::make_shared<Origin>();
  origin->fx_name = "linear_1";
  origin->module_path = "head.fc";
  origin->file = "/home/me/model.py";
  origin->line = 41;
  const std::vector<ValueId> operands = {x, w};
  try {
    static_cast<void>(infer_node(graph, Op::kLinear, NoAttrs{}, operands, origin, "y"));
    FAIL("no error");
  } catch (const InvalidGraph& error) {
    CHECK(std::string(error.what()) ==
          "[infer] linear: wrong extent of operand 'weight' on axis 1: expected 3, got 2 in [4,2] (node "
          "'linear_1', "
          "module 'head.fc', model.py:41)");
  }
  const std::vector<ValueId> missing = {x, ValueId(99)};
  CHECK_THROWS_AS(infer_node(graph, Op::kLinear, NoAttrs{}, missing, nullptr, "y"), InvalidGraph);
}

}  // namespace
}  // namespace tosaic
