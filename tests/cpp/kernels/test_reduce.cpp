#include <limits>

#include "run_kernel.h"
#include "tosaic/base/error.h"

namespace tosaic::kernels::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Shape reduced(const Shape& shape, const Dims& axes, bool keepdim) {
  Shape result;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (!axes.contains(static_cast<std::int64_t>(i)))
      result.push_back(shape[i]);
    else if (keepdim)
      result.push_back(1);
  }
  return result;
}

Call reduce(Op op, const Array& input, const Dims& axes, DType dtype, bool keepdim = false) {
  ReduceAttrs attrs;
  attrs.axes = axes;
  attrs.keepdim = keepdim;
  return {.op = op,
          .attrs = attrs,
          .operands = {input},
          .dtype = dtype,
          .shape = reduced(input.shape, axes, keepdim)};
}

Call on(Op op, Attrs attrs, Array input, DType dtype, Shape shape) {
  return {
      .op = op, .attrs = std::move(attrs), .operands = {std::move(input)}, .dtype = dtype, .shape = shape};
}

const Array kTable = array(DType::kF32, {2, 3}, {1, 5, 3, 4, 2, 6});

TEST_CASE("reductions along any axes equal the reference") {
  std::mt19937 random(5);
  const std::vector<std::pair<Shape, Dims>> cases{{{1100}, {0}},
                                                  {{5, 700}, {1}},
                                                  {{700, 5}, {0}},
                                                  {{2, 3, 4, 5}, {0, 2, 3}},
                                                  {{2, 3, 4, 5}, {1}},
                                                  {{3, 1100, 2}, {1}},
                                                  {{2, 3, 2, 2, 2, 3}, {0, 2, 4}},
                                                  {{4, 3, 600}, {0, 1}},
                                                  {{2, 1, 3}, {1}},
                                                  {{0, 3}, {1}}};
  for (const auto& [shape, axes] : cases)
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64, DType::kI32}) {
      INFO(to_string(shape) << " " << to_string(axes) << " " << to_string(dtype));
      const Array input = random_array(random, dtype, shape);
      check_fast_paths(reduce(Op::kSum, input, axes, is_float(dtype) ? dtype : DType::kI64));
      check_fast_paths(reduce(Op::kAmax, input, axes, dtype, true));
      check_fast_paths(reduce(Op::kAmin, input, axes, dtype));
      check_fast_paths(reduce(Op::kAny, input, axes, DType::kBool));
      check_fast_paths(reduce(Op::kAll, input, axes, DType::kBool));
      if (!is_float(dtype)) continue;
      check_fast_paths(reduce(Op::kMean, input, axes, dtype));
      check_fast_paths(on(Op::kVar, VarAttrs{axes, false, 0}, input, dtype, reduced(shape, axes, false)));
    }
}

TEST_CASE("reductions of narrow integers equal the reference where they wrap") {
  std::mt19937 random(6);
  std::uniform_int_distribution<std::int32_t> numbers(std::numeric_limits<std::int32_t>::min());
  for (const std::int64_t length : {1, 31, 33, 700}) {
    Array input{DType::kI32, {3, length, 2}, {}};
    for (std::int64_t i = 0; i < 6 * length; ++i) input.values.push_back(numbers(random));
    for (const std::int64_t axis : {1, 2})
      for (const Op op : {Op::kSum, Op::kProd, Op::kAmax, Op::kAmin}) {
        check_fast_paths(reduce(op, input, {axis}, DType::kI32), {});
        if (op == Op::kSum) check_fast_paths(reduce(op, input, {axis}, DType::kI64), {});
      }
  }
}

TEST_CASE("sums of f32 are the rounded exact sums") {
  const Array input = array(DType::kF32, {4}, {1e8, 1, -1e8, 1});
  CHECK(reference(reduce(Op::kSum, input, {0}, DType::kF32)) == std::vector<double>{2});
  check_fast_paths(reduce(Op::kSum, input, {0}, DType::kF32), {1});
}

TEST_CASE("reductions of an empty extent are the neutral element; an extremum of it is refused") {
  const Array empty = array(DType::kF32, {2, 0}, {});
  CHECK(reference(reduce(Op::kSum, empty, {1}, DType::kF32)) == std::vector<double>{0, 0});
  CHECK(reference(reduce(Op::kProd, empty, {1}, DType::kF32)) == std::vector<double>{1, 1});
  CHECK(reference(reduce(Op::kAll, empty, {1}, DType::kBool)) == std::vector<double>{1, 1});
  CHECK(std::isnan(reference(reduce(Op::kMean, empty, {1}, DType::kF32))[0]));
  CHECK_THROWS_WITH(reference(reduce(Op::kAmax, empty, {1}, DType::kF32)),
                    "[amax] no extremum of an empty extent: expected at least one element along the reduced "
                    "axes, got [2,0]");
  CHECK_THROWS_AS(reference(on(Op::kArgmax, ArgAttrs{1, false}, empty, DType::kI64, {2})), InvalidGraph);
}

TEST_CASE("an extremum with a NaN is NaN, unless TOSA's NaN mode is ignore") {
  const Array input = array(DType::kF32, {2, 3}, {1, kNan, 3, kNan, kNan, kNan});
  CHECK(std::isnan(reference(reduce(Op::kAmax, input, {1}, DType::kF32))[0]));
  check_fast_paths(reduce(Op::kAmax, input, {1}, DType::kF32), {1, 1});
  const Call ignoring =
      on(Op::kTosaReduceMax, TosaAxisNanAttrs{1, NanMode::kIgnore}, input, DType::kF32, {2, 1});
  CHECK(reference(ignoring) == std::vector<double>{3, -kInf});
  check_fast_paths(ignoring, {1, 1});
}

TEST_CASE("var subtracts the mean first and divides by the count less the correction") {
  const Array input = array(DType::kF32, {1, 4}, {1e7, 1e7 + 1, 1e7 + 2, 1e7 + 3});
  CHECK(reference(on(Op::kVar, VarAttrs{{1}, true, 1}, input, DType::kF32, {1, 1}))[0] == Approx(5.0 / 3));
  CHECK(reference(on(Op::kVar, VarAttrs{{1}, true, 0}, input, DType::kF32, {1, 1}))[0] == 1.25);
  CHECK(std::isnan(reference(
      on(Op::kVar, VarAttrs{{1}, true, 1}, array(DType::kF32, {1, 1}, {3}), DType::kF32, {1, 1}))[0]));
  check_fast_paths(on(Op::kVar, VarAttrs{{1}, true, 1}, input, DType::kF32, {1, 1}), {5});
}

TEST_CASE("integer sums wrap in the dtype of their result") {
  const Array bytes = array(DType::kI8, {3}, {127, 127, 127});
  CHECK(reference(reduce(Op::kSum, bytes, {0}, DType::kI64)) == std::vector<double>{381});
  const Array words = array(DType::kI32, {2}, {2147483647, 1});
  const Call tosa = on(Op::kTosaReduceSum, AxisAttrs{0}, words, DType::kI32, {1});
  CHECK(reference(tosa) == std::vector<double>{-2147483648.0});
  check_fast_paths(tosa, {1});
}

TEST_CASE("argmax and argmin return the first extremum; NaN counts as one") {
  const auto arg = [](Op op, const Array& input, std::optional<std::int64_t> axis, Shape shape) {
    return on(op, ArgAttrs{axis, false}, input, DType::kI64, shape);
  };
  CHECK(reference(arg(Op::kArgmax, kTable, 1, {2})) == std::vector<double>{1, 2});
  CHECK(reference(arg(Op::kArgmin, kTable, 0, {3})) == std::vector<double>{0, 1, 0});
  CHECK(reference(arg(Op::kArgmax, kTable, {}, {})) == std::vector<double>{5});
  const Array ties = array(DType::kF32, {2, 4}, {2, 2, 1, 2, 1, kNan, 3, kNan});
  CHECK(reference(arg(Op::kArgmax, ties, 1, {2})) == std::vector<double>{0, 1});
  CHECK(reference(arg(Op::kArgmin, ties, 1, {2})) == std::vector<double>{2, 1});
  const Call ignoring = on(Op::kTosaArgmax, TosaAxisNanAttrs{1, NanMode::kIgnore}, ties, DType::kI32, {2});
  CHECK(reference(ignoring) == std::vector<double>{0, 2});
}

TEST_CASE("argsort keeps the order of equal elements, and a NaN is the largest number") {
  const auto sorted = [](const Array& input, bool descending, std::int64_t axis = 1) {
    return reference(on(Op::kArgsort, SortAttrs{axis, descending}, input, DType::kI64, input.shape));
  };
  const Array line = array(DType::kF32, {1, 6}, {0, kNan, -0.0, kInf, -kInf, kNan});
  CHECK(sorted(line, false) == std::vector<double>{4, 0, 2, 3, 1, 5});
  CHECK(sorted(line, true) == std::vector<double>{1, 5, 3, 0, 2, 4});
  const Array bytes = array(DType::kI8, {3, 2}, {5, -128, -3, 127, 5, 0});
  CHECK(sorted(bytes, false, 0) == std::vector<double>{1, 0, 0, 2, 2, 1});
  CHECK(sorted(array(DType::kBool, {1, 3}, {1, 0, 1}), false) == std::vector<double>{1, 0, 2});
  CHECK(sorted(array(DType::kF32, {2, 0}, {}), false).empty());
  check_fast_paths(on(Op::kArgsort, SortAttrs{1, true}, line, DType::kI64, {1, 6}));
  std::vector<double> values(2 * 3 * 70);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 37 % 11);
  const Array wide = array(DType::kF32, {2, 3, 70}, values);
  check_fast_paths(on(Op::kArgsort, SortAttrs{1, false}, wide, DType::kI64, {2, 3, 70}));
  check_fast_paths(on(Op::kArgsort, SortAttrs{1, false, 2}, wide, DType::kI64, {2, 2, 70}));
  CHECK(reference(on(Op::kArgsort, SortAttrs{1, true, 3}, line, DType::kI64, {1, 3})) ==
        std::vector<double>{1, 5, 3});
  CHECK(reference(on(Op::kArgsort, SortAttrs{0, false, 1}, bytes, DType::kI64, {1, 2})) ==
        std::vector<double>{1, 0});
}

TEST_CASE("cumargmax and cumargmin return the last extremum so far; a NaN stays") {
  const auto so_far = [](Op op, const Array& input, std::int64_t axis) {
    return reference(on(op, AxisAttrs{axis}, input, DType::kI64, input.shape));
  };
  const Array line = array(DType::kF32, {1, 7}, {1, 3, 3, 2, kNan, 9, kNan});
  CHECK(so_far(Op::kCumargmax, line, 1) == std::vector<double>{0, 1, 2, 2, 4, 4, 6});
  CHECK(so_far(Op::kCumargmin, line, 1) == std::vector<double>{0, 0, 0, 0, 4, 4, 6});
  CHECK(so_far(Op::kCumargmin, array(DType::kI32, {3, 2}, {5, 1, 5, 2, 4, 1}), 0) ==
        std::vector<double>{0, 0, 1, 0, 2, 2});
}

TEST_CASE("scatter_reduce reduces the values of each position, with or without the own element") {
  const auto reduced = [](ScatterReduction how, bool own, DType dtype) {
    const Array input = array(dtype, {4}, {2, 3, 4, 5}), index = array(DType::kI64, {4}, {1, 3, 1, 3}),
                source = array(dtype, {4}, {6, -7, 1, 2});
    Call call = on(Op::kScatterReduce, ScatterReduceAttrs{0, how, own}, input, dtype, {4});
    call.operands = {input, index, source};
    return reference(call);
  };
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kI64}) {
    CHECK(reduced(ScatterReduction::kProd, true, dtype) == std::vector<double>{2, 18, 4, -70});
    CHECK(reduced(ScatterReduction::kProd, false, dtype) == std::vector<double>{2, 6, 4, -14});
    CHECK(reduced(ScatterReduction::kAmax, true, dtype) == std::vector<double>{2, 6, 4, 5});
    CHECK(reduced(ScatterReduction::kAmin, false, dtype) == std::vector<double>{2, 1, 4, -7});
  }
  Call beyond = on(Op::kScatterReduce, ScatterReduceAttrs{0, ScatterReduction::kAmax, true},
                   array(DType::kF32, {2}, {1, 2}), DType::kF32, {2});
  beyond.operands = {beyond.operands[0], array(DType::kI64, {1}, {2}), array(DType::kF32, {1}, {9})};
  CHECK_THROWS_AS(reference(beyond), InvalidGraph);
}

TEST_CASE("cumsum runs along its axis") {
  CHECK(reference(on(Op::kCumsum, AxisDtypeAttrs{1, {}}, kTable, DType::kF32, {2, 3})) ==
        std::vector<double>{1, 6, 9, 4, 6, 12});
  CHECK(reference(on(Op::kCumsum, AxisDtypeAttrs{0, {}}, kTable, DType::kF32, {2, 3})) ==
        std::vector<double>{1, 5, 3, 5, 7, 9});
  const Array flags = array(DType::kBool, {3}, {1, 1, 0});
  CHECK(reference(on(Op::kCumsum, AxisDtypeAttrs{0, {}}, flags, DType::kI64, {3})) ==
        std::vector<double>{1, 2, 2});
}

TEST_CASE("diff joins its operands, then computes differences repeatedly") {
  const Array input = array(DType::kI32, {3}, {1, 4, 9});
  const Array zero = array(DType::kI32, {1}, {0});
  const Call twice{.op = Op::kDiff,
                   .attrs = DiffAttrs{2, 0},
                   .operands = {input, zero, kAbsent},
                   .dtype = DType::kI32,
                   .shape = {2}};
  CHECK(reference(twice) == std::vector<double>{2, 2});
  const Array flags = array(DType::kBool, {4}, {1, 0, 0, 1});
  const Call exclusive{.op = Op::kDiff,
                       .attrs = DiffAttrs{2, 0},
                       .operands = {flags, kAbsent, kAbsent},
                       .dtype = DType::kBool,
                       .shape = {2}};
  CHECK(reference(exclusive) == std::vector<double>{1, 1});
}

}  // namespace
}  // namespace tosaic::kernels::testing
