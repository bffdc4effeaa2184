// Result types of TOSA 1.0 operators. The rules check shapes and kinds of dtypes as the specification's
// ERROR_IF clauses do. They do not check which dtypes a profile or extension allows; the layer target does.

#include "tosaic/base/error.h"
#include "tosaic/ir/infer_rules.h"
#include "tosaic/ir/op_table.h"

namespace tosaic::rules {
namespace {

Types like_operand(const Call& call) { return single_result(call.operand(0).dtype, call.operand(0).shape); }

std::string text_of(DType dtype) { return std::string(to_string(dtype)); }

void require_zero_point(const Call& call, const char* name, DType dtype, std::int64_t value) {
  if (value == 0) return;
  if (dtype != DType::kI8)
    call.fail(std::string("attribute '") + name + "' for " + text_of(dtype), "0", std::to_string(value));
  if (value < -128 || value > 127)
    call.fail(std::string("attribute '") + name + "'", "-128 to 127", std::to_string(value));
}

// ---- elementwise ----

// The broadcast shape. Ranks must be equal, and extents equal or 1.
Shape broadcast_equal_rank(const Call& call) {
  Shape shape = call.operand(0).shape;
  for (std::size_t i = 1; i < call.count(); ++i) {
    if (call.operand(i).rank() != shape.size())
      call.fail("operands differ in rank", "rank " + std::to_string(shape.size()),
                std::to_string(call.operand(i).rank()));
    shape = broadcast(shape, call.operand(i).shape);
  }
  return shape;
}

// A check of the dtype of an operand.
using Check = void (Call::*)(std::size_t) const;
constexpr Check kFloat = &Call::require_float, kNumber = &Call::require_number,
                kInteger = &Call::require_integer, kBool = &Call::require_bool;

template <Check check>
Types unary(const Call& call) {
  (call.*check)(0);
  return like_operand(call);
}

Types negate(const Call& call) {
  const auto& attrs = call.attrs<TosaZeroPointAttrs>();
  call.require_number(0);
  require_zero_point(call, "first_zp", call.operand(0).dtype, attrs.first_zp);
  require_zero_point(call, "second_zp", call.operand(0).dtype, attrs.second_zp);
  return like_operand(call);
}

Types clamp(const Call& call) {
  const auto& attrs = call.attrs<TosaClampAttrs>();
  call.require_number(0);
  const double low = as_double(attrs.min_val), high = as_double(attrs.max_val);
  if (!(low <= high))
    call.fail("'min_val' and 'max_val'", "min_val <= max_val",
              std::to_string(low) + " and " + std::to_string(high));
  return like_operand(call);
}

template <Check check>
Types binary(const Call& call) {
  (call.*check)(0);
  call.require_same_dtype(1, 0);
  return single_result(call.operand(0).dtype, broadcast_equal_rank(call));
}

Types compare(const Call& call) {
  Types types = binary<kNumber>(call);
  types.front().dtype = DType::kBool;
  return types;
}

// The product of integers is i32 (i64 for i64). Only i32 operands may have a shift.
Types multiply(const Call& call) {
  const std::int64_t shift = call.attrs<TosaMulAttrs>().shift;
  Types types = binary<kNumber>(call);
  DType& dtype = types.front().dtype;
  const std::int64_t limit = dtype == DType::kI32 ? 63 : 0;
  if (shift < 0 || shift > limit)
    call.fail("attribute 'shift' for " + text_of(dtype), "0 to " + std::to_string(limit),
              std::to_string(shift));
  if (is_integer(dtype) && dtype != DType::kI64) dtype = DType::kI32;
  return types;
}

Types select(const Call& call) {
  call.require_bool(0);
  call.require_same_dtype(2, 1);
  return single_result(call.operand(1).dtype, broadcast_equal_rank(call));
}

Types cast(const Call& call) { return single_result(call.attrs<CastAttrs>().dtype, call.operand(0).shape); }

// ---- reduction: the axis stays, with extent 1 ----

template <Check check, class A = AxisAttrs>
Types reduce(const Call& call) {
  (call.*check)(0);
  Shape shape = call.operand(0).shape;
  shape[call.axis(call.attrs<A>().axis, shape.size())] = 1;
  return single_result(call.operand(0).dtype, shape);
}

Types argmax(const Call& call) {
  call.require_number(0);
  Shape shape = call.operand(0).shape;
  const std::size_t axis = call.axis(call.attrs<TosaAxisNanAttrs>().axis, shape.size());
  shape.erase(axis);
  return single_result(DType::kI32, shape);
}

// ---- windows ----

// The extent numerator / divisor + 1. Throws InvalidGraph if the division is not exact or the numerator is
// negative.
std::int64_t exact_extent(const Call& call, const char* axis, std::int64_t numerator, std::int64_t divisor) {
  if (numerator < 0)
    call.fail(std::string("the window is larger than the padded input on ") + axis, "room of at least 0",
              std::to_string(numerator));
  if (numerator % divisor != 0)
    call.fail(std::string("the last window ends before the padded input on ") + axis,
              "a multiple of " + std::to_string(divisor), std::to_string(numerator));
  return call.plus(numerator / divisor, 1);
}

constexpr const char* kAxisNames[] = {"depth", "height", "width"};

// The name of spatial axis s: the axes are the last `spatial` of (depth, height, width).
const char* axis_name(std::size_t s, std::size_t spatial) { return kAxisNames[3 - spatial + s]; }

struct Accumulation {
  DType accumulator, result;
};

// The accumulator and result dtype of a convolution for an input dtype. Callers also allow f32 accumulators
// for f16.
Accumulation accumulation(const Call& call, DType input) {
  if (input == DType::kI8) return {DType::kI32, DType::kI32};
  if (input == DType::kI16) return {DType::kI48, DType::kI48};
  if (input == DType::kF16) return {DType::kF16, DType::kF16};
  if (input == DType::kBF16) return {DType::kF32, DType::kBF16};
  if (input == DType::kF32) return {DType::kF32, DType::kF32};
  if (input == DType::kF8E4M3 || input == DType::kF8E5M2) return {DType::kF16, DType::kF16};
  call.fail("wrong dtype of " + call.operand_text(0), "i8, i16, f8e4m3, f8e5m2, f16, bf16 or f32",
            text_of(input));
}

// Checks dtypes and zero points of input, weight and bias. Returns the dtype of the result.
DType conv_dtype(const Call& call, DType acc_type, std::int64_t input_zp, std::int64_t weight_zp) {
  const DType input = call.operand(0).dtype;
  const DType weight = call.operand(1).dtype;
  const Accumulation rule = accumulation(call, input);
  const bool four_bit = input == DType::kI8 && weight == DType::kI4;
  if (input == DType::kI16)
    call.require_dtype(1, DType::kI8);
  else if (!four_bit)
    call.require_same_dtype(1, 0);
  if (acc_type != rule.accumulator && !(input == DType::kF16 && acc_type == DType::kF32))
    call.fail("attribute 'acc_type' for " + text_of(input), text_of(rule.accumulator), text_of(acc_type));
  call.require_dtype(2, rule.result);
  require_zero_point(call, "input_zp", input, input_zp);
  require_zero_point(call, "weight_zp", weight, weight_zp);
  return rule.result;
}

// Requires a bias with one element, or one per channel.
void require_bias(const Call& call, std::int64_t channels) {
  call.require_rank(2, 1);
  if (call.operand(2).shape[0] != 1) call.require_extent(2, 0, channels);
}

// Replaces the spatial extents in `shape`, from axis 1 on, by the spatial extents of the result. `kernel` has
// the weight's spatial extents.
void set_conv_extents(const Call& call, const TosaConvAttrs& attrs, const Dims& kernel, Shape& shape) {
  const std::size_t spatial = kernel.size();
  call.require_size("pad", attrs.pad, 2 * spatial);
  call.require_size("stride", attrs.stride, spatial);
  call.require_size("dilation", attrs.dilation, spatial);
  call.require_at_least("pad", attrs.pad, 0);
  call.require_at_least("stride", attrs.stride, 1);
  call.require_at_least("dilation", attrs.dilation, 1);
  for (std::size_t s = 0; s < spatial; ++s) {
    const std::int64_t padded = call.plus(shape[1 + s], call.plus(attrs.pad[2 * s], attrs.pad[2 * s + 1]));
    const std::int64_t reach = call.plus(call.times(kernel[s] - 1, attrs.dilation[s]), 1);
    shape[1 + s] = exact_extent(call, axis_name(s, spatial), call.minus(padded, reach), attrs.stride[s]);
  }
}

template <std::size_t spatial>
Types conv(const Call& call) {
  const auto& attrs = call.attrs<TosaConvAttrs>();
  const DType dtype = conv_dtype(call, attrs.acc_type, attrs.input_zp, attrs.weight_zp);
  call.require_rank(0, spatial + 2);
  call.require_rank(1, spatial + 2);
  const Shape& weight = call.operand(1).shape;
  Shape shape = call.operand(0).shape;
  call.require_extent(1, spatial + 1, shape[spatial + 1]);
  require_bias(call, weight[0]);
  set_conv_extents(call, attrs, Dims(weight.span().subspan(1, spatial)), shape);
  shape[spatial + 1] = weight[0];
  return single_result(dtype, shape);
}

// The weight is (KH, KW, C, M). Element (c, m) contributes to channel c * M + m of the result.
Types depthwise_conv(const Call& call) {
  const auto& attrs = call.attrs<TosaConvAttrs>();
  const DType dtype = conv_dtype(call, attrs.acc_type, attrs.input_zp, attrs.weight_zp);
  call.require_rank(0, 4);
  call.require_rank(1, 4);
  const Shape& weight = call.operand(1).shape;
  Shape shape = call.operand(0).shape;
  call.require_extent(1, 2, shape[3]);
  const std::int64_t channels = call.times(weight[2], weight[3]);
  require_bias(call, channels);
  set_conv_extents(call, attrs, Dims(weight.span().first(2)), shape);
  shape[3] = channels;
  return single_result(dtype, shape);
}

// The spatial extents of the result are (in - 1) * stride + out_pads + kernel. Negative out_pads crop the
// result, each by less than the kernel.
Types transpose_conv(const Call& call) {
  const auto& attrs = call.attrs<TosaTransposeConvAttrs>();
  const DType dtype = conv_dtype(call, attrs.acc_type, attrs.input_zp, attrs.weight_zp);
  call.require_rank(0, 4);
  call.require_rank(1, 4);
  const Shape& weight = call.operand(1).shape;
  Shape shape = call.operand(0).shape;
  call.require_extent(1, 3, shape[3]);
  require_bias(call, weight[0]);
  call.require_size("out_pad", attrs.out_pad, 4);
  call.require_size("stride", attrs.stride, 2);
  call.require_at_least("stride", attrs.stride, 1);
  for (std::size_t s = 0; s < 2; ++s) {
    const std::int64_t kernel = weight[1 + s], before = attrs.out_pad[2 * s],
                       after = attrs.out_pad[2 * s + 1];
    if (before <= -kernel || after <= -kernel)
      call.fail(std::string("'out_pad' crops too much on ") + axis_name(s, 2),
                "more than " + std::to_string(-kernel),
                std::to_string(before) + " and " + std::to_string(after));
    std::int64_t out = call.plus(call.times(shape[1 + s] - 1, attrs.stride[s]), kernel);
    out = call.plus(out, call.plus(before, after));
    if (out < 1)
      call.fail(std::string("the result is empty on ") + axis_name(s, 2), "at least 1", std::to_string(out));
    shape[1 + s] = out;
  }
  shape[3] = weight[0];
  return single_result(dtype, shape);
}

Shape pool_shape(const Call& call, const Dims& kernel, const Dims& stride, const Dims& pad) {
  call.require_rank(0, 4);
  call.require_size("kernel", kernel, 2);
  call.require_size("stride", stride, 2);
  call.require_size("pad", pad, 4);
  call.require_at_least("kernel", kernel, 1);
  call.require_at_least("stride", stride, 1);
  call.require_at_least("pad", pad, 0);
  Shape shape = call.operand(0).shape;
  for (std::size_t s = 0; s < 2; ++s) {
    const std::int64_t before = pad[2 * s], after = pad[2 * s + 1];
    if (before >= kernel[s] || after >= kernel[s])
      call.fail(std::string("'pad' on ") + axis_name(s, 2),
                "less than the kernel " + std::to_string(kernel[s]),
                std::to_string(before) + " and " + std::to_string(after));
    const std::int64_t padded = call.plus(shape[1 + s], call.plus(before, after));
    shape[1 + s] = exact_extent(call, axis_name(s, 2), call.minus(padded, kernel[s]), stride[s]);
  }
  return shape;
}

Types avg_pool(const Call& call) {
  const auto& attrs = call.attrs<TosaAvgPoolAttrs>();
  const DType dtype = call.operand(0).dtype;
  call.require_number(0);
  const bool fits = is_integer(dtype) ? attrs.acc_type == DType::kI32
                                      : attrs.acc_type == DType::kF32 || attrs.acc_type == DType::kF16;
  if (!fits)
    call.fail("attribute 'acc_type' for " + text_of(dtype), is_integer(dtype) ? "i32" : "f32 or f16",
              text_of(attrs.acc_type));
  require_zero_point(call, "input_zp", dtype, attrs.input_zp);
  require_zero_point(call, "output_zp", dtype, attrs.output_zp);
  return single_result(dtype, pool_shape(call, attrs.kernel, attrs.stride, attrs.pad));
}

Types max_pool(const Call& call) {
  const auto& attrs = call.attrs<TosaMaxPoolAttrs>();
  call.require_number(0);
  return single_result(call.operand(0).dtype, pool_shape(call, attrs.kernel, attrs.stride, attrs.pad));
}

// Bilinear resize of integers does not divide by the scale, so the result is wider: i32 for i8, i48 for i16.
DType resize_dtype(const Call& call, ResizeMode mode) {
  const DType input = call.operand(0).dtype;
  call.require_number(0);
  if (mode == ResizeMode::kNearest || is_float(input)) return input;
  if (input == DType::kI8) return DType::kI32;
  if (input == DType::kI16) return DType::kI48;
  call.fail("wrong dtype of " + call.operand_text(0), "i8, i16 or a float dtype", text_of(input));
}

// The spatial extents of the result are ((in - 1) * n - offset + border) / d + 1, where n / d is the scale.
// Each term is first checked against the bound of the specification, so nothing overflows.
Types resize(const Call& call) {
  const auto& attrs = call.attrs<TosaResizeAttrs>();
  constexpr std::int64_t kMaxScale = 1 << 11, kMaxExtent = 16384;
  const DType dtype = resize_dtype(call, attrs.mode);
  call.require_rank(0, 4);
  call.require_size("scale", attrs.scale, 4);
  call.require_size("offset", attrs.offset, 2);
  call.require_size("border", attrs.border, 2);
  call.require_at_least("scale", attrs.scale, 1);
  Shape shape = call.operand(0).shape;
  for (std::size_t s = 0; s < 2; ++s) {
    const std::int64_t n = attrs.scale[2 * s], d = attrs.scale[2 * s + 1];
    const std::int64_t offset = attrs.offset[s], border = attrs.border[s];
    const std::string place = std::string(" on ") + axis_name(s, 2);
    if (n > kMaxScale) call.fail("'scale'" + place, "a numerator of at most 2048", std::to_string(n));
    if (d >= 16 * n)
      call.fail("'scale'" + place, "a denominator below 16 times the numerator", std::to_string(d));
    if (offset < -n || offset >= 16 * n)
      call.fail("'offset'" + place, std::to_string(-n) + " to " + std::to_string(16 * n - 1),
                std::to_string(offset));
    if (border < -16 * n || border >= n)
      call.fail("'border'" + place, std::to_string(-16 * n) + " to " + std::to_string(n - 1),
                std::to_string(border));
    if (shape[1 + s] >= kMaxExtent)
      call.fail("the input is too large" + place, "less than 16384", std::to_string(shape[1 + s]));
    shape[1 + s] = exact_extent(call, axis_name(s, 2), (shape[1 + s] - 1) * n - offset + border, d);
    if (shape[1 + s] >= kMaxExtent)
      call.fail("the result is too large" + place, "less than 16384", std::to_string(shape[1 + s]));
  }
  return single_result(dtype, shape);
}

// ---- matrix product ----

// MATMUL has no accumulator attribute: the result has the accumulator's dtype. For f16 operands this is f16,
// or f32 if the attribute `dtype` is f32.
DType matmul_dtype(const Call& call, DType input) {
  const DType dtype = accumulation(call, input).accumulator;
  const std::optional<DType> asked = call.attrs<TosaMatmulAttrs>().dtype;
  if (asked && *asked != dtype && !(input == DType::kF16 && *asked == DType::kF32))
    call.fail("attribute 'dtype' for " + text_of(input), text_of(dtype), text_of(*asked));
  return asked.value_or(dtype);
}

Types matmul(const Call& call) {
  const auto& attrs = call.attrs<TosaMatmulAttrs>();
  const DType input = call.operand(0).dtype;
  const DType dtype = matmul_dtype(call, input);
  call.require_same_dtype(1, 0);
  require_zero_point(call, "first_zp", input, attrs.first_zp);
  require_zero_point(call, "second_zp", input, attrs.second_zp);
  call.require_rank(0, 3);
  call.require_rank(1, 3);
  const Shape& a = call.operand(0).shape;
  call.require_extent(1, 0, a[0]);
  call.require_extent(1, 1, a[2]);
  return single_result(dtype, {a[0], a[1], call.operand(1).shape[2]});
}

// ---- movement ----

Types concat(const Call& call) {
  if (call.count() == 0) call.fail("no operands", "1 or more", "0");
  Shape shape = call.operand(0).shape;
  const std::size_t axis = call.axis(call.attrs<AxisAttrs>().axis, shape.size());
  for (std::size_t i = 1; i < call.count(); ++i) {
    call.require_same_dtype(i, 0);
    call.require_rank(i, shape.size());
    Shape expected = shape;
    expected[axis] = call.operand(i).shape[axis];
    call.require_shape(i, expected);
    shape[axis] = call.plus(shape[axis], expected[axis]);
  }
  return single_result(call.operand(0).dtype, shape);
}

Types pad(const Call& call) {
  const auto& attrs = call.attrs<TosaPadAttrs>();
  Shape shape = call.operand(0).shape;
  call.require_rank_between(0, 1, kMaxRank);
  call.require_size("before", attrs.before, shape.size());
  call.require_size("after", attrs.after, shape.size());
  call.require_at_least("before", attrs.before, 0);
  call.require_at_least("after", attrs.after, 0);
  for (std::size_t i = 0; i < shape.size(); ++i)
    shape[i] = call.plus(shape[i], call.plus(attrs.before[i], attrs.after[i]));
  return single_result(call.operand(0).dtype, shape);
}

Types reshape(const Call& call) {
  const Shape& shape = call.attrs<ShapeAttrs>().shape;
  call.require_at_least("shape", shape, 1);
  return infer_reshape(call);
}

Types reverse(const Call& call) {
  static_cast<void>(call.axis(call.attrs<AxisAttrs>().axis, call.operand(0).rank()));
  return like_operand(call);
}

Types slice(const Call& call) {
  const auto& attrs = call.attrs<TosaSliceAttrs>();
  const Shape& input = call.operand(0).shape;
  call.require_rank_between(0, 1, kMaxRank);
  call.require_size("start", attrs.start, input.size());
  call.require_size("size", attrs.size, input.size());
  call.require_at_least("start", attrs.start, 0);
  call.require_at_least("size", attrs.size, 1);
  for (std::size_t i = 0; i < input.size(); ++i)
    if (call.plus(attrs.start[i], attrs.size[i]) > input[i])
      call.fail("the slice ends beyond the input on axis " + std::to_string(i),
                "at most " + std::to_string(input[i]),
                std::to_string(attrs.start[i]) + " + " + std::to_string(attrs.size[i]));
  return single_result(call.operand(0).dtype, attrs.size);
}

Types tile(const Call& call) {
  const Shape& multiples = call.attrs<ShapeAttrs>().shape;
  Shape shape = call.operand(0).shape;
  call.require_size("shape", multiples, shape.size());
  call.require_at_least("shape", multiples, 1);
  for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = call.times(shape[i], multiples[i]);
  return single_result(call.operand(0).dtype, shape);
}

// values (N, K, C) at indices (N, W) become (N, W, C).
Types gather(const Call& call) {
  call.require_rank(0, 3);
  call.require_rank(1, 2);
  call.require_dtype(1, DType::kI32);
  const Shape& values = call.operand(0).shape;
  call.require_extent(1, 0, values[0]);
  return single_result(call.operand(0).dtype, {values[0], call.operand(1).shape[1], values[2]});
}

// values_in (N, K, C), indices (N, W), input (N, W, C) -> (N, K, C). No row may be written twice, so W <= K.
Types scatter(const Call& call) {
  call.require_rank(0, 3);
  call.require_rank(1, 2);
  call.require_dtype(1, DType::kI32);
  call.require_same_dtype(2, 0);
  const Shape& values = call.operand(0).shape;
  const std::int64_t written = call.operand(1).shape[1];
  call.require_extent(1, 0, values[0]);
  if (written > values[1])
    call.fail("more indices than rows", "at most " + std::to_string(values[1]), std::to_string(written));
  call.require_shape(2, {values[0], written, values[2]});
  return like_operand(call);
}

constexpr OpTable<Rule> kRules = {
    {Op::kTosaArgmax, argmax},
    {Op::kTosaAvgPool2d, avg_pool},
    {Op::kTosaConv2d, conv<2>},
    {Op::kTosaConv3d, conv<3>},
    {Op::kTosaDepthwiseConv2d, depthwise_conv},
    {Op::kTosaMatmul, matmul},
    {Op::kTosaMaxPool2d, max_pool},
    {Op::kTosaTransposeConv2d, transpose_conv},
    {Op::kTosaClamp, clamp},
    {Op::kTosaErf, unary<kFloat>},
    {Op::kTosaSigmoid, unary<kFloat>},
    {Op::kTosaTanh, unary<kFloat>},
    {Op::kTosaCeil, unary<kFloat>},
    {Op::kTosaCos, unary<kFloat>},
    {Op::kTosaExp, unary<kFloat>},
    {Op::kTosaFloor, unary<kFloat>},
    {Op::kTosaLog, unary<kFloat>},
    {Op::kTosaReciprocal, unary<kFloat>},
    {Op::kTosaRsqrt, unary<kFloat>},
    {Op::kTosaSin, unary<kFloat>},
    {Op::kTosaAbs, unary<kNumber>},
    {Op::kTosaBitwiseNot, unary<kInteger>},
    {Op::kTosaClz, unary<kInteger>},
    {Op::kTosaLogicalNot, unary<kBool>},
    {Op::kTosaNegate, negate},
    {Op::kTosaAdd, binary<kNumber>},
    {Op::kTosaSub, binary<kNumber>},
    {Op::kTosaMaximum, binary<kNumber>},
    {Op::kTosaMinimum, binary<kNumber>},
    {Op::kTosaPow, binary<kFloat>},
    {Op::kTosaMul, multiply},
    {Op::kTosaArithmeticRightShift, binary<kInteger>},
    {Op::kTosaBitwiseAnd, binary<kInteger>},
    {Op::kTosaBitwiseOr, binary<kInteger>},
    {Op::kTosaBitwiseXor, binary<kInteger>},
    {Op::kTosaIntdiv, binary<kInteger>},
    {Op::kTosaLogicalLeftShift, binary<kInteger>},
    {Op::kTosaLogicalRightShift, binary<kInteger>},
    {Op::kTosaLogicalAnd, binary<kBool>},
    {Op::kTosaLogicalOr, binary<kBool>},
    {Op::kTosaLogicalXor, binary<kBool>},
    {Op::kTosaEqual, compare},
    {Op::kTosaGreater, compare},
    {Op::kTosaGreaterEqual, compare},
    {Op::kTosaSelect, select},
    {Op::kTosaReduceAll, reduce<kBool>},
    {Op::kTosaReduceAny, reduce<kBool>},
    {Op::kTosaReduceMax, reduce<kNumber, TosaAxisNanAttrs>},
    {Op::kTosaReduceMin, reduce<kNumber, TosaAxisNanAttrs>},
    {Op::kTosaReduceProduct, reduce<kFloat>},
    {Op::kTosaReduceSum, reduce<kNumber>},
    {Op::kTosaConcat, concat},
    {Op::kTosaPad, pad},
    {Op::kTosaReshape, reshape},
    {Op::kTosaReverse, reverse},
    {Op::kTosaSlice, slice},
    {Op::kTosaTile, tile},
    {Op::kTosaGather, gather},
    {Op::kTosaScatter, scatter},
    {Op::kTosaResize, resize},
    {Op::kTosaCast, cast},
    {Op::kTosaIdentity, like_operand},
};
static_assert(complete<kRules.mismatch(is_inferred_by<infer_tosa>)>);

}  // namespace

Types infer_tosa(const Call& call) { return (*kRules.find(call.op()))(call); }

}  // namespace tosaic::rules
