#include <algorithm>
#include <cmath>

#include "run_kernel.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "tosaic/base/error.h"
#include "tosaic/kernels/block.h"
#include "tosaic/kernels/gemm/contraction.h"
#include "tosaic/kernels/gemm/forms.h"

namespace tosaic::kernels::testing {
namespace {

std::int64_t conv_extent(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t before,
                         std::int64_t after, std::int64_t dilation) {
  return (in + before + after - dilation * (kernel - 1) - 1) / stride + 1;
}

// A convolution of generated data. A list that is empty has the neutral value for every axis: stride and
// dilation 1, padding and output padding (`extra`) 0.
struct ConvCase {
  std::int64_t batch = 1, channels = 1, filters = 1;
  Dims in = {}, kernel = {}, stride = {}, before = {}, after = {}, dilation = {}, extra = {};
  std::int64_t groups = 1;
  bool transposed = false, bias = true, constant_weight = true;
};

Call conv_call(ConvCase c, DType dtype = DType::kF32) {
  const std::size_t rank = c.in.size();
  const auto fill = [&](Dims& dims, std::int64_t value) {
    if (dims.empty()) dims = Dims::filled(rank, value);
  };
  fill(c.stride, 1);
  fill(c.before, 0);
  fill(c.after, 0);
  fill(c.dilation, 1);
  fill(c.extra, 0);
  Shape x{c.batch, c.channels};
  Shape y{c.batch, c.filters};
  Shape w = c.transposed ? Shape{c.channels, c.filters / c.groups} : Shape{c.filters, c.channels / c.groups};
  for (std::size_t i = 0; i < rank; ++i) {
    x.push_back(c.in[i]);
    w.push_back(c.kernel[i]);
    y.push_back(c.transposed
                    ? (c.in[i] - 1) * c.stride[i] - c.before[i] - c.after[i] +
                          c.dilation[i] * (c.kernel[i] - 1) + c.extra[i] + 1
                    : conv_extent(c.in[i], c.kernel[i], c.stride[i], c.before[i], c.after[i], c.dilation[i]));
  }
  std::mt19937 random(17);
  Array weight = dtype == DType::kF32 ? normal_array(random, w) : random_array(random, dtype, w);
  weight.constant = c.constant_weight;
  return {.op = Op::kConv,
          .attrs = ConvAttrs{c.stride, c.before, c.after, c.dilation, c.extra, c.groups, c.transposed},
          .operands = {dtype == DType::kF32 ? normal_array(random, x) : random_array(random, dtype, x),
                       weight, c.bias ? random_array(random, dtype, {c.filters}) : kAbsent},
          .dtype = dtype,
          .shape = y};
}

Array floats(const Shape& shape, std::vector<double> values) {
  return array(DType::kF32, shape, std::move(values));
}

TEST_CASE("the reference convolution equals values computed by hand") {
  Call call{.op = Op::kConv,
            .attrs = ConvAttrs{{1}, {1}, {0}, {1}, {0}, 1, false},
            .operands = {floats({1, 1, 3}, {1, 2, 3}), floats({1, 1, 2}, {10, 1}), floats({1}, {0.5})},
            .dtype = DType::kF32,
            .shape = {1, 1, 3}};
  CHECK(reference(call) == std::vector<double>{1.5, 12.5, 23.5});
  check_fast_paths(call);
}

TEST_CASE("the reference transposed convolution equals values computed by hand") {
  // Stride 2: 1 * (1, 10, 100) begins at 0 and 2 * (1, 10, 100) at 2; then one element of output padding.
  Call call{.op = Op::kConv,
            .attrs = ConvAttrs{{2}, {0}, {0}, {1}, {1}, 1, true},
            .operands = {floats({1, 1, 2}, {1, 2}), floats({1, 1, 3}, {1, 10, 100}), kAbsent},
            .dtype = DType::kF32,
            .shape = {1, 1, 6}};
  CHECK(reference(call) == std::vector<double>{1, 10, 102, 20, 200, 0});
  check_fast_paths(call);
}

TEST_CASE("fast convolutions stay within tolerance of the reference") {
  const ConvCase cases[] = {
      {.channels = 3,
       .filters = 20,
       .in = {17, 19},
       .kernel = {7, 7},
       .stride = {2, 2},
       .before = {3, 3},
       .after = {3, 3}},
      {.batch = 2,
       .channels = 16,
       .filters = 33,
       .in = {9, 7},
       .kernel = {3, 3},
       .before = {1, 1},
       .after = {1, 1}},
      {.batch = 2, .channels = 70, .filters = 65, .in = {5, 6}, .kernel = {1, 1}},
      {.channels = 70, .filters = 15, .in = {5, 6}, .kernel = {1, 1}, .stride = {2, 2}},
      {.channels = 6, .filters = 8, .in = {11, 12}, .kernel = {3, 2}, .stride = {1, 4}, .dilation = {2, 3}},
      {.channels = 4, .filters = 5, .in = {8, 8}, .kernel = {1, 1}, .stride = {3, 3}},
      {.channels = 12,
       .filters = 9,
       .in = {8, 8},
       .kernel = {3, 3},
       .before = {2, 0},
       .after = {0, 1},
       .groups = 3},
      {.channels = 6, .filters = 6, .in = {4, 4}, .kernel = {1, 1}, .groups = 2},
      {.batch = 0, .channels = 3, .filters = 4, .in = {5, 5}, .kernel = {3, 3}},
      {.channels = 700, .filters = 3, .in = {3}, .kernel = {3}, .before = {2}, .after = {2}},
      {.channels = 1, .filters = 40, .in = {33}, .kernel = {5}, .bias = false},
      {.channels = 3,
       .filters = 17,
       .in = {4, 5, 6},
       .kernel = {3, 2, 3},
       .stride = {1, 2, 1},
       .before = {1, 0, 1},
       .after = {1, 1, 0}},
      {.channels = 1, .filters = 1, .in = {1, 1}, .kernel = {1, 1}},
      {.channels = 1024, .filters = 20, .in = {3, 5}, .kernel = {1, 1}},
  };
  for (ConvCase c : cases)
    for (const bool constant_weight : {true, false}) {
      c.constant_weight = constant_weight;
      check_fast_paths(conv_call(c));
    }
}

TEST_CASE("fast depthwise convolutions stay within tolerance of the reference") {
  const ConvCase cases[] = {
      {.channels = 40,
       .filters = 40,
       .in = {9, 11},
       .kernel = {3, 3},
       .before = {1, 1},
       .after = {1, 1},
       .groups = 40},
      {.batch = 2,
       .channels = 5,
       .filters = 5,
       .in = {12, 13},
       .kernel = {3, 3},
       .stride = {2, 2},
       .before = {1, 1},
       .after = {1, 1},
       .groups = 5},
      {.channels = 3,
       .filters = 6,
       .in = {9, 9},
       .kernel = {5, 5},
       .stride = {3, 1},
       .before = {2, 2},
       .after = {2, 2},
       .groups = 3},
      {.channels = 3,
       .filters = 3,
       .in = {20, 3},
       .kernel = {3, 3},
       .before = {4, 2},
       .after = {4, 2},
       .dilation = {4, 2},
       .groups = 3},
      {.channels = 7, .filters = 7, .in = {2, 2}, .kernel = {1, 1}, .stride = {4, 4}, .groups = 7},
      {.channels = 17,
       .filters = 17,
       .in = {50},
       .kernel = {7},
       .stride = {2},
       .before = {0},
       .after = {5},
       .groups = 17},
      {.channels = 18,
       .filters = 36,
       .in = {3, 4, 5},
       .kernel = {3, 3, 3},
       .before = {1, 1, 1},
       .after = {1, 1, 1},
       .groups = 18},
  };
  for (ConvCase c : cases)
    for (const bool constant_weight : {true, false}) {
      c.constant_weight = constant_weight;
      check_fast_paths(conv_call(c));
    }
}

TEST_CASE("fast transposed convolutions stay within tolerance of the reference") {
  const ConvCase cases[] = {
      {.channels = 6, .filters = 20, .in = {5, 4}, .kernel = {2, 2}, .stride = {2, 2}, .transposed = true},
      {.batch = 2,
       .channels = 4,
       .filters = 6,
       .in = {5, 4},
       .kernel = {3, 4},
       .stride = {2, 3},
       .before = {1, 1},
       .after = {1, 2},
       .extra = {1, 2},
       .groups = 2,
       .transposed = true},
      {.channels = 3,
       .filters = 2,
       .in = {4, 4},
       .kernel = {1, 1},
       .stride = {3, 3},
       .extra = {2, 2},
       .transposed = true},
      {.channels = 3,
       .filters = 5,
       .in = {6},
       .kernel = {3},
       .stride = {2},
       .dilation = {3},
       .transposed = true},
      {.channels = 2,
       .filters = 3,
       .in = {3, 3, 2},
       .kernel = {3, 3, 3},
       .stride = {2, 1, 2},
       .before = {1, 1, 1},
       .after = {1, 1, 1},
       .extra = {1, 0, 0},
       .transposed = true},
  };
  for (ConvCase c : cases)
    for (const bool constant_weight : {true, false}) {
      c.constant_weight = constant_weight;
      check_fast_paths(conv_call(c));
    }
}

TEST_CASE("convolutions of other dtypes equal the reference if all sums are exact") {
  const ConvCase c{.channels = 6,
                   .filters = 18,
                   .in = {6, 7},
                   .kernel = {3, 3},
                   .before = {1, 1},
                   .after = {0, 1},
                   .groups = 2};
  for (const DType dtype :
       {DType::kF64, DType::kF16, DType::kBF16, DType::kI8, DType::kI16, DType::kI32, DType::kI64})
    check_fast_paths(conv_call(c, dtype));
}

Call tosa_conv(DType in, DType weight, DType out, TosaConvAttrs attrs) {
  std::mt19937 random(3);
  return {.op = Op::kTosaConv2d,
          .attrs = attrs,
          .operands = {random_array(random, in, {2, 5, 6, 7}),
                       constant(random_array(random, weight, {9, 3, 2, 7})), random_array(random, out, {1})},
          .dtype = out,
          .shape = {2, 3, 6, 9}};
}

TEST_CASE("TOSA convolutions accumulate integers exactly and subtract zero points before padding") {
  const TosaConvAttrs attrs{{1, 0, 0, 1}, {2, 1}, {1, 1}, -5, 3, DType::kI32, false};
  check_fast_paths(tosa_conv(DType::kI8, DType::kI8, DType::kI32, attrs));
  check_fast_paths(tosa_conv(DType::kI16, DType::kI8, DType::kI48,
                             {{1, 0, 0, 1}, {2, 1}, {1, 1}, 0, 0, DType::kI48, false}));

  const Call one{.op = Op::kTosaConv2d,
                 .attrs = TosaConvAttrs{{0, 1, 0, 0}, {1, 1}, {1, 1}, -128, 0, DType::kI32, false},
                 .operands = {array(DType::kI8, {1, 1, 1, 1}, {127}),
                              array(DType::kI8, {1, 2, 1, 1}, {-128, 100}), array(DType::kI32, {1}, {7})},
                 .dtype = DType::kI32,
                 .shape = {1, 1, 1, 1}};
  CHECK(reference(one) == std::vector<double>{255 * -128 + 7});
}

// Elements with a normal distribution, as the weights of networks have: few are near 127.
Array normal_i8(std::mt19937& random, const Shape& shape) {
  std::normal_distribution<float> numbers(0, 40);
  std::vector<double> values(static_cast<std::size_t>(num_elements(shape)));
  for (double& value : values) value = std::clamp(std::round(numbers(random)), -128.0F, 127.0F);
  return {DType::kI8, shape, std::move(values)};
}

// Values of the whole range of i8, many of them -128 or 127.
Array wide_i8(std::mt19937& random, const Shape& shape) {
  std::uniform_int_distribution<int> numbers(-200, 200);
  Array result{.dtype = DType::kI8, .shape = shape, .values = {}};
  for (std::int64_t i = 0; i < num_elements(shape); ++i)
    result.values.push_back(std::clamp(numbers(random), -128, 127));
  return result;
}

// A channels-last convolution with the same kernel extent and stride on both spatial axes. Both are padded by
// one element before and by none after.
Call i8_conv(Op op, std::int64_t channels, std::int64_t filters, std::int64_t kernel, std::int64_t stride,
             std::int64_t input_zp, std::int64_t weight_zp, bool constant_weight) {
  std::mt19937 random(static_cast<unsigned>(channels * 31 + filters));
  const std::int64_t extent = 4;
  const std::int64_t in = (extent - 1) * stride + kernel - 1;  // without the padded element
  const bool depthwise = op == Op::kTosaDepthwiseConv2d;
  Array weight = wide_i8(random, depthwise ? Shape{kernel, kernel, channels, filters / channels}
                                           : Shape{filters, kernel, kernel, channels});
  weight.constant = constant_weight;
  return {
      .op = op,
      .attrs = TosaConvAttrs{{1, 0, 1, 0}, {stride, stride}, {1, 1}, input_zp, weight_zp, DType::kI32, false},
      .operands = {wide_i8(random, {2, in, in, channels}), weight,
                   random_array(random, DType::kI32, {filters})},
      .dtype = DType::kI32,
      .shape = {2, extent, extent, filters}};
}

TEST_CASE("fast convolutions of i8 equal the reference over the whole range") {
  for (const bool fixed : {true, false})
    for (const std::int64_t zero_point : {-128, 0, 127})
      for (const std::int64_t kernel : {1, 3})
        for (const std::int64_t stride : {1, 2}) {
          for (const std::int64_t channels : {1, 3, 16, 37, 300})
            for (const std::int64_t filters : {1, 15, 70})
              check_fast_paths(i8_conv(Op::kTosaConv2d, channels, filters, kernel, stride, zero_point,
                                       -zero_point / 2, fixed));
          for (const std::int64_t multiplier : {1, 2})
            check_fast_paths(i8_conv(Op::kTosaDepthwiseConv2d, 21, 21 * multiplier, kernel, stride,
                                     zero_point, zero_point, fixed));
        }
}

TEST_CASE(
    "fast convolutions of i8 equal the reference with groups, dilation, three axes and channels first") {
  const ConvCase cases[] = {
      {.batch = 2, .channels = 70, .filters = 33, .in = {5, 6}, .kernel = {1, 1}},
      {.channels = 3, .filters = 20, .in = {17, 19}, .kernel = {7, 7}, .stride = {2, 2}, .before = {3, 3}},
      {.channels = 6, .filters = 8, .in = {11, 12}, .kernel = {3, 2}, .stride = {1, 4}, .dilation = {2, 3}},
      {.channels = 12, .filters = 9, .in = {8, 8}, .kernel = {3, 3}, .before = {2, 0}, .groups = 3},
      {.channels = 6, .filters = 6, .in = {4, 4}, .kernel = {1, 1}, .groups = 2},
      {.batch = 2,
       .channels = 35,
       .filters = 35,
       .in = {7, 9},
       .kernel = {3, 3},
       .after = {1, 1},
       .groups = 35},
      {.channels = 5, .filters = 15, .in = {9, 9}, .kernel = {3, 5}, .dilation = {2, 1}, .groups = 5},
      {.channels = 700, .filters = 3, .in = {3}, .kernel = {3}, .before = {2}, .after = {2}},
      {.channels = 9, .filters = 9, .in = {3, 5, 4}, .kernel = {2, 3, 3}, .before = {1, 1, 0}, .groups = 9},
      {.channels = 3, .filters = 17, .in = {4, 5, 6}, .kernel = {3, 2, 3}, .stride = {1, 2, 1}},
      {.batch = 2,
       .channels = 7,
       .filters = 5,
       .in = {5, 4},
       .kernel = {3, 3},
       .stride = {2, 3},
       .transposed = true},
      {.channels = 6,
       .filters = 8,
       .in = {5, 4},
       .kernel = {4, 2},
       .before = {1, 0},
       .groups = 2,
       .transposed = true},
  };
  std::mt19937 random(23);
  for (ConvCase c : cases)
    for (const bool fixed : {true, false}) {
      c.constant_weight = fixed;
      Call call = conv_call(c, DType::kI8);
      call.dtype = DType::kI32;
      for (const std::size_t side : {0U, 1U})
        call.operands[side].values = wide_i8(random, call.operands[side].shape).values;
      check_fast_paths(call);
      call.operands[1].values = normal_i8(random, call.operands[1].shape).values;
      check_fast_paths(call);
    }
}

TEST_CASE("fast transposed and three-axis TOSA convolutions of i8 equal the reference") {
  std::mt19937 random(29);
  for (const bool fixed : {true, false})
    for (const std::int64_t zero_point : {-128, 5, 127}) {
      Array weight = wide_i8(random, {11, 2, 3, 6});
      weight.constant = fixed;
      check_fast_paths(
          {.op = Op::kTosaTransposeConv2d,
           .attrs = TosaTransposeConvAttrs{{-1, 2, 0, 1}, {2, 3}, zero_point, 3, DType::kI32, false},
           .operands = {wide_i8(random, {2, 4, 5, 6}), weight, random_array(random, DType::kI32, {1})},
           .dtype = DType::kI32,
           .shape = {2, 9, 16, 11}});
      Array cube = wide_i8(random, {4, 2, 3, 1, 5});
      cube.constant = fixed;
      check_fast_paths(
          {.op = Op::kTosaConv3d,
           .attrs =
               TosaConvAttrs{{1, 0, 2, 1, 0, 0}, {1, 2, 1}, {1, 1, 1}, zero_point, 0, DType::kI32, false},
           .operands = {wide_i8(random, {1, 3, 4, 4, 5}), cube, random_array(random, DType::kI32, {4})},
           .dtype = DType::kI32,
           .shape = {1, 3, 3, 4, 4}});
    }
}

TEST_CASE("products of i8 with results of 64 bits, and of i16 by i8, are exact beyond 32 bits") {
  const std::vector<double> left(33100, -128);
  const Call wide{.op = Op::kMatmul,
                  .attrs = NoAttrs{},
                  .operands = {array(DType::kI8, {1, 33100}, left), array(DType::kI8, {33100, 1}, left)},
                  .dtype = DType::kI64,
                  .shape = {1, 1}};
  CHECK(reference(wide) == std::vector<double>{33100.0 * 128 * 128});
  check_fast_paths(wide);
  const Call words{.op = Op::kTosaConv2d,
                   .attrs = TosaConvAttrs{{0, 0, 0, 0}, {1, 1}, {1, 1}, 0, 0, DType::kI48, false},
                   .operands = {array(DType::kI16, {1, 1, 1, 33100}, std::vector<double>(33100, -32768)),
                                constant(array(DType::kI8, {1, 1, 1, 33100}, left)),
                                array(DType::kI48, {1}, {-140737488355328})},
                   .dtype = DType::kI48,
                   .shape = {1, 1, 1, 1}};
  CHECK(reference(words) == std::vector<double>{33100.0 * 128 * 32768 - 140737488355328});
  check_fast_paths(words);
}

TEST_CASE("sums of the largest products of i8 are exact up to 32 bits, and wrap beyond") {
  // 255 * 255 * depth exceeds 2^31 from a depth of 33026 on.
  for (const std::int64_t depth : {1, 2, 255, 257, 33025, 33027})
    for (const double left : {-128.0, 127.0}) {
      const auto count = static_cast<std::size_t>(depth);
      const Call call{.op = Op::kTosaMatmul,
                      .attrs = TosaMatmulAttrs{left < 0 ? 127 : -128, 127, std::nullopt},
                      .operands = {array(DType::kI8, {1, 2, depth}, std::vector<double>(2 * count, left)),
                                   array(DType::kI8, {1, depth, 3}, std::vector<double>(3 * count, -128))},
                      .dtype = DType::kI32,
                      .shape = {1, 2, 3}};
      const std::int64_t sum = depth * 255 * (left < 0 ? 255 : -255);
      CHECK(reference(call)[0] == static_cast<double>(static_cast<std::int32_t>(sum)));
      check_fast_paths(call);
    }
}

#if defined(__SSE2__)
TEST_CASE("products of i8 are the same where floats have no denormal numbers, and leave that as it is") {
  constexpr unsigned kFlushes = 0x8040;  // results, and operands
  const unsigned before = _mm_getcsr();
  for (const double left : {-128.0, 127.0})
    for (const double right : {-128.0, 127.0}) {
      const Call call{
          .op = Op::kTosaMatmul,
          .attrs = TosaMatmulAttrs{-5, 9, std::nullopt},
          .operands = {array(DType::kI8, {1, 13, 700}, std::vector<double>(13 * 700, left)),
                       constant(array(DType::kI8, {1, 700, 70}, std::vector<double>(700 * 70, right)))},
          .dtype = DType::kI32,
          .shape = {1, 13, 70}};
      CHECK(reference(call) == std::vector<double>(13 * 70, 700 * (left + 5) * (right - 9)));
      _mm_setcsr(before | kFlushes);
      check_fast_paths(call);
      CHECK((_mm_getcsr() & kFlushes) == kFlushes);
      _mm_setcsr(before);
    }
}
#endif

TEST_CASE("fast products of i8 equal the reference over the whole range") {
  std::mt19937 random(11);
  for (const bool fixed : {true, false})
    for (const std::int64_t depth : {0, 1, 31, 64, 259, 1024})
      for (const std::int64_t cols : {1, 17, 200})
        for (const std::int64_t rows : {1, 5, 40}) {
          Array right = wide_i8(random, {2, depth, cols});
          right.constant = fixed;
          Call call{.op = Op::kTosaMatmul,
                    .attrs = TosaMatmulAttrs{-128, 3, std::nullopt},
                    .operands = {wide_i8(random, {2, rows, depth}), right},
                    .dtype = DType::kI32,
                    .shape = {2, rows, cols}};
          check_fast_paths(call);
          call.operands[1].values = normal_i8(random, {2, depth, cols}).values;
          check_fast_paths(call);
        }
}

TEST_CASE("TOSA depthwise weights are height, width, channel, multiplier") {
  const Call call{.op = Op::kTosaDepthwiseConv2d,
                  .attrs = TosaConvAttrs{{0, 0, 0, 0}, {1, 1}, {1, 1}, 0, 0, DType::kF32, false},
                  .operands = {floats({1, 1, 2, 2}, {1, 2, 3, 4}),
                               floats({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), floats({4}, {0, 0, 0, 100})},
                  .dtype = DType::kF32,
                  .shape = {1, 1, 1, 4}};
  // Channel 0: 1 * (1, 2) + 3 * (5, 6); channel 1: 2 * (3, 4) + 4 * (7, 8).
  CHECK(reference(call) == std::vector<double>{16, 20, 34, 140});
  check_fast_paths(call);
}

TEST_CASE("TOSA transposed convolutions crop by a negative and extend by a positive out_pad") {
  const auto call = [](Dims out_pad, Shape shape) {
    return Call{
        .op = Op::kTosaTransposeConv2d,
        .attrs = TosaTransposeConvAttrs{out_pad, {1, 2}, 0, 0, DType::kF32, false},
        .operands = {floats({1, 1, 2, 1}, {1, 2}), floats({1, 1, 3, 1}, {1, 10, 100}), floats({1}, {0})},
        .dtype = DType::kF32,
        .shape = shape};
  };
  const Call extended = call({0, 0, 1, 1}, {1, 1, 7, 1});
  CHECK(reference(extended) == std::vector<double>{0, 1, 10, 102, 20, 200, 0});
  check_fast_paths(extended);
  const Call cropped = call({0, 0, -1, -1}, {1, 1, 3, 1});
  CHECK(reference(cropped) == std::vector<double>{10, 102, 20});
  check_fast_paths(cropped);
}

Call product(Op op, Attrs attrs, std::vector<Shape> shapes, Shape result, bool constant_right) {
  std::mt19937 random(5);
  Call call{.op = op, .attrs = std::move(attrs), .operands = {}, .dtype = DType::kF32, .shape = result};
  for (const Shape& shape : shapes) call.operands.push_back(normal_array(random, shape));
  const std::size_t right = op == Op::kAddmm || op == Op::kBaddbmm ? 2 : 1;
  call.operands[right].constant = constant_right;
  return call;
}

TEST_CASE("fast products stay within tolerance of the reference") {
  for (const bool fixed : {true, false}) {
    check_fast_paths(product(Op::kLinear, NoAttrs{}, {{2, 3, 700}, {70, 700}, {70}}, {2, 3, 70}, fixed));
    check_fast_paths(product(Op::kLinear, NoAttrs{}, {{1, 65}, {300, 65}}, {1, 300}, fixed));
    check_fast_paths(product(Op::kLinear, NoAttrs{}, {{29, 1024}, {33, 1024}}, {29, 33}, fixed));
    check_fast_paths(product(Op::kLinear, NoAttrs{}, {{0, 3}, {4, 3}}, {0, 4}, fixed));
    check_fast_paths(product(Op::kMatmul, NoAttrs{}, {{3, 29, 17}, {3, 17, 29}}, {3, 29, 29}, fixed));
    check_fast_paths(product(Op::kMatmul, NoAttrs{}, {{2, 1, 5, 4}, {3, 4, 6}}, {2, 3, 5, 6}, fixed));
    check_fast_paths(product(Op::kMatmul, NoAttrs{}, {{4, 5, 6}, {6, 7}}, {4, 5, 7}, fixed));
    check_fast_paths(product(Op::kMatmul, NoAttrs{}, {{9}, {9}}, {}, fixed));
    check_fast_paths(product(Op::kMatmul, NoAttrs{}, {{9}, {2, 9, 3}}, {2, 3}, fixed));
    check_fast_paths(product(Op::kMatmul, NoAttrs{}, {{2, 3, 9}, {9}}, {2, 3}, fixed));
    check_fast_paths(product(Op::kMatmul, NoAttrs{}, {{3, 0}, {0, 4}}, {3, 4}, fixed));
    check_fast_paths(
        product(Op::kTosaMatmul, TosaMatmulAttrs{}, {{2, 15, 33}, {2, 33, 47}}, {2, 15, 47}, fixed));
    check_fast_paths(product(Op::kAddmm, AddmmAttrs{}, {{7}, {5, 6}, {6, 7}}, {5, 7}, fixed));
    check_fast_paths(product(Op::kAddmm, AddmmAttrs{0.5, 2.0}, {{5, 1}, {5, 6}, {6, 7}}, {5, 7}, fixed));
    check_fast_paths(
        product(Op::kBaddbmm, AddmmAttrs{2.0, 0.25}, {{3, 1, 7}, {3, 5, 6}, {3, 6, 7}}, {3, 5, 7}, fixed));
  }
}

TEST_CASE("with a beta of zero, addmm ignores its input, even if that is NaN") {
  const Call call{.op = Op::kAddmm,
                  .attrs = AddmmAttrs{std::int64_t{0}, std::int64_t{2}},
                  .operands = {floats({1}, {NAN}), floats({1, 2}, {1, 2}), floats({2, 1}, {3, 4})},
                  .dtype = DType::kF32,
                  .shape = {1, 1}};
  CHECK(reference(call) == std::vector<double>{22});
  check_fast_paths(call, {22});
}

TEST_CASE("integer products wrap in two's complement") {
  const Call call{
      .op = Op::kMatmul,
      .attrs = NoAttrs{},
      .operands = {array(DType::kI32, {1, 2}, {2147483647, 2}), array(DType::kI32, {2, 1}, {2, 2})},
      .dtype = DType::kI32,
      .shape = {1, 1}};
  CHECK(reference(call) == std::vector<double>{2});
  check_fast_paths(call);
}

TEST_CASE("TOSA matmul subtracts both zero points") {
  const Call call{
      .op = Op::kTosaMatmul,
      .attrs = TosaMatmulAttrs{3, -4, std::nullopt},
      .operands = {array(DType::kI8, {1, 1, 2}, {-128, 5}), array(DType::kI8, {1, 2, 1}, {127, -4})},
      .dtype = DType::kI32,
      .shape = {1, 1, 1}};
  CHECK(reference(call) == std::vector<double>{-131 * 131});
  check_fast_paths(call);
}

// Compares the results of a fast core with its clamp, and without it but clamped afterwards.
template <class Prepare>
void check_clamp(Prepare prepare_core, std::int64_t left, std::int64_t right, std::int64_t result) {
  std::mt19937 random(19);
  std::normal_distribution<float> normal;
  std::vector<float> a(static_cast<std::size_t>(left));
  std::vector<float> b(static_cast<std::size_t>(right));
  for (float& value : a) value = normal(random);
  for (float& value : b) value = normal(random);
  for (const Isa isa : usable_isas()) {
    const auto run_core = [&](bool clamp) {
      const Core<float> core =
          prepare_core(FastInputs<float>{.loops = form_loops<F32>({.isa = isa}),
                                         .transpose = &TOSAIC_SELECT_ISA(isa, kTransposeKernels),
                                         .right = b.data(),
                                         .clamp = clamp,
                                         .low = -0.5F,
                                         .high = 0.25F});
      const CoreOperands<float> operands{a.data(), b.data(), nullptr};
      std::vector<float> values(static_cast<std::size_t>(result));
      const Bytes scratch(core.scratch_bytes);
      core.run(operands, reinterpret_cast<std::byte*>(values.data()), {scratch.data(), nullptr});
      return values;
    };
    std::vector<float> expected = run_core(false);
    for (float& value : expected) value = std::clamp(value, -0.5F, 0.25F);
    CHECK(run_core(true) == expected);
  }
}

TEST_CASE("a core with a clamp stores clamped results") {
  Product product;
  product.batches = {{}};
  product.rows = 20;
  product.depth = product.a_row = product.b_col = 600;
  product.cols = 33;
  product.b_depth = 1;
  product.a_size = 20 * 600;
  product.b_size = 33 * 600;
  check_clamp([&](const FastInputs<float>& inputs) { return fast_product(product, inputs); }, 20 * 600,
              33 * 600, 20 * 33);
  for (const bool channels_last : {true, false})
    for (const Index taps : {1, 3})
      for (const Index groups : {1, 18}) {
        Convolution conv;
        conv.channels_last = channels_last;
        conv.groups = groups;
        conv.in_channels = conv.out_channels = 18;
        conv.in = {1, 5, 7};
        conv.out = {1, 6 - taps, 8 - taps};
        conv.taps = {1, taps, taps};
        conv.weight_tap = {0, taps, 1};
        conv.weight_in = taps * taps;
        conv.weight_out = conv.group_in() * taps * taps;
        conv.weight_group = conv.group_out() * conv.weight_out;
        check_clamp([&](const FastInputs<float>& inputs) { return fast_convolution(conv, inputs); }, 18 * 35,
                    18 * conv.group_in() * taps * taps, 18 * conv.out_pixels());
      }
}

TEST_CASE("dtypes for which a contraction has no kernel are refused by name") {
  const Call call{.op = Op::kMatmul,
                  .attrs = NoAttrs{},
                  .operands = {array(DType::kF32, {1}, {1}), array(DType::kI8, {1}, {1})},
                  .dtype = DType::kF32,
                  .shape = {}};
  CHECK_THROWS_WITH(run(call, {}), Catch::Contains("[kernels] no kernel for 'matmul' on f32 and i8"));
  CHECK_THROWS_AS(run(call, {}), UnsupportedOp);
}

}  // namespace
}  // namespace tosaic::kernels::testing
