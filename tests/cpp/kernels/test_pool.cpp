#include "run_kernel.h"

namespace tosaic::kernels::testing {
namespace {

PoolAttrs pool(Dims kernel, Dims stride, Dims padding, bool ceil_mode = false,
               bool count_include_pad = true) {
  PoolAttrs attrs;
  attrs.kernel = kernel;
  attrs.stride = stride;
  attrs.padding = padding;
  attrs.dilation = Dims::filled(kernel.size(), 1);
  attrs.ceil_mode = ceil_mode;
  attrs.count_include_pad = count_include_pad;
  return attrs;
}

Call on(Op op, Attrs attrs, Array input, Shape result) {
  return {.op = op, .attrs = std::move(attrs), .operands = {input}, .dtype = input.dtype, .shape = result};
}

const Array kFour = array(DType::kF32, {1, 1, 4}, {1, 2, 3, 6});

TEST_CASE("avg_pool divides by the window size, with padding unless count_include_pad is false") {
  CHECK(reference(on(Op::kAvgPool, pool({2}, {2}, {1}), kFour, {1, 1, 3})) ==
        std::vector<double>{0.5, 2.5, 3});
  CHECK(reference(on(Op::kAvgPool, pool({2}, {2}, {1}, false, false), kFour, {1, 1, 3})) ==
        std::vector<double>{1, 2.5, 6});
  PoolAttrs divided = pool({2}, {2}, {0});
  divided.divisor_override = 4;
  CHECK(reference(on(Op::kAvgPool, divided, kFour, {1, 1, 2})) == std::vector<double>{0.75, 2.25});
}

TEST_CASE("avg_pool with ceil_mode counts the padding, but not what is beyond it") {
  // The last window begins at 3 and would end at 6, but the padded image ends at 4.
  CHECK(reference(on(Op::kAvgPool, pool({3}, {3}, {0}, true), kFour, {1, 1, 2})) ==
        std::vector<double>{2, 6});
  CHECK(reference(on(Op::kAvgPool, pool({3}, {4}, {1}, true), kFour, {1, 1, 2})) ==
        std::vector<double>{1, 3});
}

TEST_CASE("max_pool propagates NaN and ignores padding") {
  const Array image = array(DType::kF32, {1, 1, 5}, {-1, -2, NAN, -4, -5});
  const Call call = on(Op::kMaxPool, pool({2}, {1}, {1}), image, {1, 1, 6});
  const std::vector<double> values = reference(call);
  CHECK(values[0] == -1);
  CHECK(values[1] == -1);
  CHECK(std::isnan(values[2]));
  CHECK(std::isnan(values[3]));
  CHECK(values[4] == -4);
  CHECK(values[5] == -5);
  check_fast_paths(call, std::vector<double>(6, 0));
}

TEST_CASE("max_pool with dilation skips inputs") {
  PoolAttrs attrs = pool({2}, {1}, {0});
  attrs.dilation = {3};
  CHECK(reference(on(Op::kMaxPool, attrs, kFour, {1, 1, 1})) == std::vector<double>{6});
}

TEST_CASE("adaptive_avg_pool has torch's overlapping windows") {
  const Array image = array(DType::kF32, {1, 5}, {1, 2, 3, 4, 10});
  CHECK(reference(on(Op::kAdaptiveAvgPool, ShapeAttrs{{3}}, image, {1, 3})) ==
        std::vector<double>{1.5, 3, 7});
  CHECK(reference(on(Op::kAdaptiveAvgPool, ShapeAttrs{{1}}, image, {1, 1})) == std::vector<double>{4});
}

TEST_CASE("fast pools stay within tolerance of the reference in both layouts") {
  std::mt19937 random(7);
  for (const std::int64_t channels : {1, 3, 16, 37, 70}) {
    check_fast_paths(on(Op::kAvgPool, pool({3, 2}, {2, 3}, {1, 1}, true),
                        normal_array(random, {2, channels, 9, 8}), {2, channels, 5, 4}));
    check_fast_paths(on(Op::kAvgPool, pool({2, 2, 2}, {1, 2, 1}, {0, 1, 0}, false, false),
                        normal_array(random, {channels, 3, 4, 5}), {channels, 2, 3, 4}));
    check_fast_paths(on(Op::kAdaptiveAvgPool, ShapeAttrs{{3, 1}}, normal_array(random, {2, channels, 7, 5}),
                        {2, channels, 3, 1}));
    const Call max = on(Op::kMaxPool, pool({3, 3}, {2, 2}, {1, 1}), normal_array(random, {1, channels, 7, 8}),
                        {1, channels, 4, 4});
    check_fast_paths(max);
    check_fast_paths(on(Op::kTosaAvgPool2d, TosaAvgPoolAttrs{{3, 2}, {2, 1}, {1, 0, 0, 1}, 0, 0, DType::kF32},
                        normal_array(random, {2, 6, 5, channels}), {2, 3, 5, channels}));
    check_fast_paths(on(Op::kTosaMaxPool2d,
                        TosaMaxPoolAttrs{{3, 2}, {2, 1}, {1, 0, 0, 1}, NanMode::kPropagate},
                        normal_array(random, {2, 6, 5, channels}), {2, 3, 5, channels}));
  }
  check_fast_paths(on(Op::kMaxPool, pool({2}, {2}, {0}), normal_array(random, {0, 3, 4}), {0, 3, 2}));
}

TEST_CASE("TOSA's integer mean counts positions inside the image and rounds half away from zero") {
  const TosaAvgPoolAttrs attrs{{1, 2}, {1, 2}, {0, 0, 1, 0}, 0, 0, DType::kI32};
  const Array image = array(DType::kI8, {1, 1, 5, 1}, {5, 1, 2, -1, -2});
  CHECK(reference(on(Op::kTosaAvgPool2d, attrs, image, {1, 1, 3, 1})) == std::vector<double>{5, 2, -2});
  const TosaAvgPoolAttrs shifted{{1, 2}, {1, 2}, {0, 0, 1, 0}, -3, 120, DType::kI32};
  CHECK(reference(on(Op::kTosaAvgPool2d, shifted, image, {1, 1, 3, 1})) ==
        std::vector<double>{127, 125, 122});
}

// Integers of the whole range of i8 or i16, many of them at its ends.
Array wide_array(std::mt19937& random, DType dtype, const Shape& shape) {
  const double low = dtype == DType::kI8 ? -128 : -32768;
  std::uniform_real_distribution<double> numbers(1.5 * low, -1.5 * low);
  Array result{.dtype = dtype, .shape = shape, .values = {}};
  for (std::int64_t i = 0; i < num_elements(shape); ++i)
    result.values.push_back(std::clamp(std::floor(numbers(random)), low, -low - 1));
  return result;
}

TEST_CASE("fast integer pools equal the reference over the whole range") {
  std::mt19937 random(13);
  for (const DType dtype : {DType::kI8, DType::kI16})
    for (const std::int64_t channels : {1, 3, 16, 37, 70, 300})
      for (const std::int64_t zero_point : {-128, 0, 127}) {
        const Array image = wide_array(random, dtype, {2, 6, 9, channels});
        const std::int64_t in = dtype == DType::kI8 ? zero_point : 0, out = dtype == DType::kI8 ? 5 : 0;
        check_fast_paths(on(Op::kTosaAvgPool2d,
                            TosaAvgPoolAttrs{{3, 2}, {2, 1}, {1, 0, 0, 1}, in, out, DType::kI32}, image,
                            {2, 3, 9, channels}));
        check_fast_paths(on(Op::kTosaAvgPool2d,
                            TosaAvgPoolAttrs{{6, 9}, {1, 1}, {0, 0, 0, 0}, in, -out, DType::kI32}, image,
                            {2, 1, 1, channels}));
        check_fast_paths(on(Op::kTosaMaxPool2d,
                            TosaMaxPoolAttrs{{3, 2}, {2, 1}, {1, 0, 0, 1}, NanMode::kIgnore}, image,
                            {2, 3, 9, channels}));
        check_fast_paths(on(Op::kMaxPool, pool({3, 3}, {2, 2}, {1, 1}),
                            wide_array(random, dtype, {1, channels, 7, 8}), {1, channels, 4, 4}));
      }
}

TEST_CASE("means of integers are exact even if the sums exceed 32 bits") {
  for (const std::int64_t extent : {180, 260}) {  // extent^2 * 2^15 is below 2^31, then above it
    const Shape shape{1, extent, extent, 1};
    const auto count = static_cast<std::size_t>(extent * extent);
    const Call call =
        on(Op::kTosaAvgPool2d, TosaAvgPoolAttrs{{extent, extent}, {1, 1}, {0, 0, 0, 0}, 0, 0, DType::kI32},
           array(DType::kI16, shape, std::vector<double>(count, -32768)), {1, 1, 1, 1});
    CHECK(reference(call) == std::vector<double>{-32768});
    check_fast_paths(call);
  }
}

TEST_CASE("TOSA's max_pool2d treats NaN according to its NaN mode") {
  const Array image = array(DType::kF32, {1, 1, 4, 1}, {NAN, 1, NAN, NAN});
  const auto call = [&](NanMode mode) {
    return on(Op::kTosaMaxPool2d, TosaMaxPoolAttrs{{1, 2}, {1, 2}, {0, 0, 0, 0}, mode}, image, {1, 1, 2, 1});
  };
  CHECK(std::isnan(reference(call(NanMode::kPropagate))[0]));
  CHECK(reference(call(NanMode::kIgnore))[0] == 1);
  CHECK(std::isnan(reference(call(NanMode::kIgnore))[1]));
  check_fast_paths(call(NanMode::kPropagate), {0, 0});
  check_fast_paths(call(NanMode::kIgnore), {0, 0});
}

TEST_CASE("pools of other dtypes equal the reference") {
  std::mt19937 random(9);
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kBF16, DType::kI8, DType::kU8, DType::kI64})
    check_fast_paths(on(Op::kMaxPool, pool({2, 2}, {1, 1}, {1, 0}),
                        absolute(random_array(random, dtype, {1, 2, 4, 4})), {1, 2, 5, 3}));
}

}  // namespace
}  // namespace tosaic::kernels::testing
