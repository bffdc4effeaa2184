#include <limits>

#include "run_kernel.h"
#include "tosaic/base/error.h"

namespace tosaic::kernels::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Compares every instruction set with the reference, with the absolute value of each result as its scale.
void check_all(const Call& call) {
  std::vector<double> scales = reference(call);
  for (double& scale : scales) scale = std::abs(scale);
  check_fast_paths(call, scales);
}

// Checks that the results of the reference and of all fast kernels are exactly these values. NaN equals NaN.
void check_values(const Call& call, const std::vector<double>& expected) {
  std::vector<Options> all{{.reference = true}};
  for (const Isa isa : usable_isas()) all.push_back({.reference = false, .isa = isa});
  for (const Options& options : all) {
    const Outcome outcome = run(call, options);
    INFO(outcome.name);
    REQUIRE(outcome.values.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      INFO("element " << i);
      if (std::isnan(expected[i]))
        CHECK(std::isnan(outcome.values[i]));
      else
        CHECK(outcome.values[i] == expected[i]);
    }
  }
}

Call unary(Op op, Attrs attrs, Array input, DType result) {
  const Shape shape = input.shape;
  return {
      .op = op, .attrs = std::move(attrs), .operands = {std::move(input)}, .dtype = result, .shape = shape};
}

Call binary(Op op, Attrs attrs, Array a, Array b, DType result) {
  const Shape shape = broadcast(a.shape, b.shape);
  return {.op = op,
          .attrs = std::move(attrs),
          .operands = {std::move(a), std::move(b)},
          .dtype = result,
          .shape = shape};
}

Array line(DType dtype, std::vector<double> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return array(dtype, {count}, std::move(values));
}

TEST_CASE("every broadcast pattern of two operands equals the reference") {
  std::mt19937 random(7);
  const std::vector<std::pair<Shape, Shape>> pairs{{{}, {}},
                                                   {{5, 7}, {5, 7}},
                                                   {{}, {4, 9}},
                                                   {{3, 4, 5}, {5}},
                                                   {{2, 3, 4, 4}, {3, 1, 1}},
                                                   {{2, 1, 6}, {3, 1}},
                                                   {{0, 3}, {3}},
                                                   {{4, 3, 700}, {3, 1}},
                                                   {{2, 1000}, {1000}},
                                                   {{4, 600, 3}, {600, 1}},
                                                   {{1500}, {}},
                                                   {{3, 1}, {1, 1300}},
                                                   {{1, 1}, {1}},
                                                   {{2, 3, 1, 2, 3, 2}, {3, 4, 1, 1, 2}}};
  for (const auto& [a, b] : pairs) {
    INFO(to_string(a) << " " << to_string(b));
    for (const DType dtype :
         {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI32, DType::kI8, DType::kI64}) {
      const Array left = random_array(random, dtype, a);
      const Array right = random_array(random, dtype, b);
      check_all(binary(Op::kSub, AlphaAttrs{}, left, right, dtype));
      check_all(binary(Op::kSub, AlphaAttrs{}, right, left, dtype));
      check_all(binary(Op::kLt, NoAttrs{}, left, right, DType::kBool));
    }
  }
}

TEST_CASE("one element is the first or the second operand of a block") {
  std::mt19937 random(8);
  const std::vector<std::pair<Shape, Shape>> pairs{
      {{517}, {}},         {{1, 1}, {3, 70}},      {{5, 64}, {5, 1}}, {{3, 2, 513}, {3, 1, 1}},
      {{2, 1300}, {1, 1}}, {{2, 1}, {2, 1}},       {{9, 49}, {9, 1}}, {{2, 4, 16}, {2, 4, 1}},
      {{40, 15}, {40, 1}}, {{2, 5, 30}, {2, 1, 1}}};
  for (const auto& [a, b] : pairs)
    for (const auto& [left, right] : {std::pair(a, b), std::pair(b, a)}) {
      INFO(to_string(left) << " " << to_string(right));
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32, DType::kI8, DType::kI64}) {
        const Array x = random_array(random, dtype, left), y = random_array(random, dtype, right);
        for (const Op op : {Op::kMul, Op::kMaximum, Op::kMinimum})
          check_all(binary(op, NoAttrs{}, x, y, dtype));
        check_all(binary(Op::kAdd, AlphaAttrs{}, x, y, dtype));
        for (const Op op : {Op::kEq, Op::kGe}) check_all(binary(op, NoAttrs{}, x, y, DType::kBool));
        if (is_float(dtype)) check_all(binary(Op::kDiv, DivAttrs{}, x, y, dtype));
      }
      for (const DType dtype : {DType::kI32, DType::kI16, DType::kI8}) {
        const Array x = random_array(random, dtype, left), y = random_array(random, dtype, right);
        for (const Op op : {Op::kTosaBitwiseAnd, Op::kTosaBitwiseXor, Op::kTosaSub}) {
          if (op == Op::kTosaSub && dtype != DType::kI32) continue;
          check_all(binary(op, NoAttrs{}, x, y, dtype));
        }
      }
    }
}

TEST_CASE("unary functions meet their tolerance on special and random values") {
  std::mt19937 random(11);
  std::vector<double> values{kNan, kInf,  -kInf, 0.0,   -0.0, 1,    -1,    1e-45, -1e-45, 1e-38,
                             3e38, -3e38, 0.5,   1.5,   2.5,  -2.5, 88.7,  -103,  -87.5,  104,
                             1e6,  -1e7,  12.9,  -13.2, 3.9,  4.1,  99999, 100001};
  std::normal_distribution<float> normal(0, 8);
  for (int i = 0; i < 3000; ++i) values.push_back(normal(random));
  for (double& value : values) value = static_cast<float>(value);
  const Array input = line(DType::kF32, values);
  for (const Op op :
       {Op::kAbs,     Op::kCeil,        Op::kCos,        Op::kErf,   Op::kExp,   Op::kFloor,
        Op::kLog,     Op::kNeg,         Op::kReciprocal, Op::kRound, Op::kRsqrt, Op::kSqrt,
        Op::kSigmoid, Op::kSign,        Op::kSin,        Op::kTanh,  Op::kTrunc, Op::kRelu,
        Op::kSilu,    Op::kHardsigmoid, Op::kHardswish,  Op::kGelu,  Op::kElu,   Op::kLeakyRelu}) {
    INFO(info(op).name);
    check_all(unary(op, default_attrs(op), input, DType::kF32));
  }
  check_all(unary(Op::kGelu, GeluAttrs{.tanh = true}, input, DType::kF32));
}

// The largest error on [low, high), in units of the spacing of f32. `exact` computes in long double with the
// C library.
double max_error(Op op, Isa isa, long double (*exact)(long double), double low, double high) {
  std::vector<double> values;
  for (int i = 0; i < 40000; ++i) values.push_back(static_cast<float>(low + (high - low) * i / 40000));
  const Call call = unary(op, default_attrs(op), line(DType::kF32, values), DType::kF32);
  const std::vector<double> results = run(call, {.reference = false, .isa = isa}).values;
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const long double expected = exact(values[i]);
    worst = std::max(
        worst, static_cast<double>(std::abs(results[i] - expected)) / spacing(static_cast<double>(expected)));
  }
  return worst;
}

long double exact_sigmoid(long double x) { return 1 / (1 + std::exp(-x)); }
long double exact_silu(long double x) { return x / (1 + std::exp(-x)); }
long double exact_gelu(long double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0L)); }

TEST_CASE("transcendental functions are within 0.501 ulp of the exact value, exp within 0.75") {
  struct Row {
    Op op;
    long double (*exact)(long double);
    double low, high;
  };
  const std::vector<Row> rows{{Op::kExp, std::exp, -100, 88},         {Op::kErf, std::erf, -5, 5},
                              {Op::kTanh, std::tanh, -12, 12},        {Op::kTanh, std::tanh, -1e-3, 1e-3},
                              {Op::kLog, std::log, 1e-3, 1000},       {Op::kLog, std::log, 0.9, 1.1},
                              {Op::kSin, std::sin, -1e5, 1e5},        {Op::kCos, std::cos, -50, 50},
                              {Op::kSigmoid, exact_sigmoid, -90, 90}, {Op::kSilu, exact_silu, -90, 90},
                              {Op::kGelu, exact_gelu, -12, 12}};
  for (const Row& row : rows)
    for (const Isa isa : usable_isas()) {
      INFO(info(row.op).name << " " << to_string(isa));
      CHECK(max_error(row.op, isa, row.exact, row.low, row.high) < (row.op == Op::kExp ? 0.75 : 0.501));
    }
}

TEST_CASE("pow follows C for special operands") {
  check_values(binary(Op::kPow, NoAttrs{}, line(DType::kF32, {-2, -2, 0, 0, -0.0, kInf, 1, kNan, -8, 9}),
                      line(DType::kF32, {3, 0.5, 0, -1, -3, -1, kNan, 0, 2, 0.5}), DType::kF32),
               {-8, kNan, 1, kInf, -kInf, 0, 1, 1, 64, 3});
  std::mt19937 random(3);
  check_all(binary(Op::kPow, NoAttrs{}, absolute(normal_array(random, {2000})), normal_array(random, {2000}),
                   DType::kF32));
}

TEST_CASE("integers wrap, divide and exponentiate as in torch") {
  const Array a = line(DType::kI32, {7, -7, 7, -7, -2147483648.0});
  const Array b = line(DType::kI32, {2, 2, -2, -2, -1});
  check_values(binary(Op::kDiv, DivAttrs{DivRounding::kFloor}, a, b, DType::kI32),
               {3, -4, -4, 3, -2147483648.0});
  check_values(binary(Op::kDiv, DivAttrs{DivRounding::kTrunc}, a, b, DType::kI32),
               {3, -3, -3, 3, -2147483648.0});
  check_values(binary(Op::kDiv, DivAttrs{}, a, b, DType::kF32), {3.5, -3.5, -3.5, 3.5, 2147483648.0});
  check_values(binary(Op::kAdd, AlphaAttrs{std::int64_t{2}}, line(DType::kI8, {100}), line(DType::kI8, {20}),
                      DType::kI8),
               {-116});
  check_values(
      binary(Op::kMul, NoAttrs{}, line(DType::kU8, {16, 20}), line(DType::kU8, {16, 20}), DType::kU8),
      {0, 144});
  check_values(binary(Op::kPow, NoAttrs{}, line(DType::kI64, {-2, 2, -1, 1, 0, 3}),
                      line(DType::kI64, {-3, -1, -3, -2, -1, 5}), DType::kI64),
               {0, 0, -1, 1, 0, 243});
  check_values(unary(Op::kAbs, NoAttrs{}, line(DType::kI8, {-128, -5}), DType::kI8), {-128, 5});
}

TEST_CASE("integer division by zero throws when the program runs") {
  const Call call =
      binary(Op::kTosaIntdiv, NoAttrs{}, line(DType::kI32, {1}), line(DType::kI32, {0}), DType::kI32);
  CHECK_THROWS_WITH(reference(call),
                    "[tosa.intdiv] integer division by zero: expected divisors other than 0, got 0");
  for (const Shape& divisors : {Shape{}, Shape{2, 1}, Shape{2, 100}}) {
    Array zeros = array(DType::kI32, divisors,
                        std::vector<double>(static_cast<std::size_t>(num_elements(divisors)), 0));
    const Array ones = array(DType::kI32, {2, 100}, std::vector<double>(200, 1));
    for (const Isa isa : usable_isas())
      CHECK_THROWS_WITH(run(binary(Op::kTosaIntdiv, NoAttrs{}, ones, zeros, DType::kI32), {.isa = isa}),
                        Catch::Contains("integer division by zero"));
  }
}

TEST_CASE("floor division of floats does not round up across an integer") {
  check_values(binary(Op::kDiv, DivAttrs{DivRounding::kFloor}, line(DType::kF32, {-1, 5, -5, 5, 1, kInf}),
                      line(DType::kF32, {0, kInf, kInf, -kInf, 0.1, 2}), DType::kF32),
               {-kInf, 0, -1, -1, 9, kNan});
}

TEST_CASE("comparisons promote dtypes; operands of rank 0 count only if their category is higher") {
  check_values(
      binary(Op::kLt, NoAttrs{}, line(DType::kI32, {1, 2}), line(DType::kF32, {1.5, 1.5}), DType::kBool),
      {1, 0});
  // The i32 operand of rank 0 is cast to u8: -1 becomes 255.
  check_values(
      binary(Op::kMinimum, NoAttrs{}, line(DType::kU8, {3}), array(DType::kI32, {}, {-1}), DType::kU8), {3});
  check_values(
      binary(Op::kEq, NoAttrs{}, line(DType::kF32, {kNan, 1}), line(DType::kF32, {kNan, 1}), DType::kBool),
      {0, 1});
}

TEST_CASE("NaN: relu and maximum propagate it, sign returns 0, a NaN bound makes every result NaN") {
  const Array x = line(DType::kF32, {kNan, -1, 2});
  check_values(unary(Op::kRelu, NoAttrs{}, x, DType::kF32), {kNan, 0, 2});
  check_values(unary(Op::kSign, NoAttrs{}, x, DType::kF32), {0, -1, 1});
  check_values(binary(Op::kMaximum, NoAttrs{}, x, array(DType::kF32, {}, {0}), DType::kF32), {kNan, 0, 2});
  check_values(unary(Op::kClamp, ClampAttrs{Scalar{0.0}, Scalar{1.0}}, x, DType::kF32), {kNan, 0, 1});
  check_values(unary(Op::kClamp, ClampAttrs{Scalar{3.0}, Scalar{1.0}}, x, DType::kF32), {kNan, 1, 1});
  check_values(unary(Op::kClamp, ClampAttrs{Scalar{kNan}, {}}, x, DType::kF32), {kNan, kNan, kNan});
  const TosaNanAttrs ignore{NanMode::kIgnore};
  check_values(binary(Op::kTosaMaximum, ignore, x, line(DType::kF32, {1, kNan, 1}), DType::kF32), {1, -1, 2});
  check_values(binary(Op::kTosaMinimum, ignore, x, line(DType::kF32, {kNan, kNan, 1}), DType::kF32),
               {kNan, -1, 1});
  check_values(
      unary(Op::kTosaClamp, TosaClampAttrs{Scalar{-0.5}, Scalar{1.0}, NanMode::kIgnore}, x, DType::kF32),
      {-0.5, -0.5, 1});
}

TEST_CASE("cast truncates and saturates, tosa.cast rounds half to even") {
  const Array x = line(DType::kF32, {2.5, 3.5, -2.5, 300, -300, kNan, 0.4});
  check_values(unary(Op::kCast, CastAttrs{DType::kI8}, x, DType::kI8), {2, 3, -2, 127, -128, 0, 0});
  check_values(unary(Op::kTosaCast, CastAttrs{DType::kI8}, x, DType::kI8), {2, 4, -2, 127, -128, 0, 0});
  check_values(unary(Op::kCast, CastAttrs{DType::kBool}, x, DType::kBool), {1, 1, 1, 1, 1, 1, 1});
  check_values(unary(Op::kTosaCast, CastAttrs{DType::kI8}, line(DType::kI32, {300, -129, 5}), DType::kI8),
               {44, 127, 5});
  check_values(
      unary(Op::kTosaCast, CastAttrs{DType::kI64}, line(DType::kF32, {0x1p63, -0x1p63}), DType::kI64),
      {0x1p63, -0x1p63});
  check_values(unary(Op::kCast, CastAttrs{DType::kF16},
                     line(DType::kF32, {65519, 65520, 0x1p-25, 0x1.8p-24, 1.0009765625}), DType::kF16),
               {65504, kInf, 0, 0x1p-23, 1.0009765625});
  check_values(unary(Op::kCast, CastAttrs{DType::kBF16}, line(DType::kF32, {1.00390625, 1.01171875, 3.4e38}),
                     DType::kBF16),
               {1, 1.015625, kInf});
  check_values(unary(Op::kCast, CastAttrs{DType::kF32},
                     line(DType::kF16, {0x1p-24, -0x1.8p-23, 65504, kInf, kNan}), DType::kF32),
               {0x1p-24, -0x1.8p-23, 65504, kInf, kNan});
}

TEST_CASE("TOSA integer operators") {
  const Array a = line(DType::kI32, {3, -3, 5, 1 << 30});
  const Array two = array(DType::kI32, {1}, {2});
  check_values(binary(Op::kTosaMul, TosaMulAttrs{1}, a, array(DType::kI32, {1}, {1}), DType::kI32),
               {2, -1, 3, 1 << 29});
  check_values(binary(Op::kTosaMul, TosaMulAttrs{0}, a, array(DType::kI32, {1}, {4}), DType::kI32),
               {12, -12, 20, 0});
  check_values(
      binary(Op::kTosaMul, TosaMulAttrs{0}, line(DType::kI8, {-128}), line(DType::kI8, {-128}), DType::kI32),
      {16384});
  check_values(binary(Op::kTosaArithmeticRightShift, TosaShiftAttrs{true}, a, two, DType::kI32),
               {1, -1, 1, 1 << 28});
  check_values(binary(Op::kTosaArithmeticRightShift, TosaShiftAttrs{false}, a, two, DType::kI32),
               {0, -1, 1, 1 << 28});
  check_values(binary(Op::kTosaLogicalRightShift, NoAttrs{}, line(DType::kI8, {-1, 4}),
                      line(DType::kI8, {4, 1}), DType::kI8),
               {15, 2});
  check_values(binary(Op::kTosaLogicalLeftShift, NoAttrs{}, line(DType::kI8, {-1, 65}),
                      line(DType::kI8, {4, 1}), DType::kI8),
               {-16, -126});
  check_values(unary(Op::kTosaClz, NoAttrs{}, line(DType::kI32, {0, 1, -1, 65536}), DType::kI32),
               {32, 31, 0, 15});
  check_values(
      unary(Op::kTosaNegate, TosaZeroPointAttrs{3, -2}, line(DType::kI8, {-128, 10, 127}), DType::kI8),
      {127, -9, -126});
  check_values(unary(Op::kTosaClamp,
                     TosaClampAttrs{Scalar{std::int64_t{-5}}, Scalar{std::int64_t{5}}, NanMode::kPropagate},
                     line(DType::kI8, {-128, 3, 9}), DType::kI8),
               {-5, 3, 5});
  check_values(unary(Op::kBitwiseNot, NoAttrs{}, line(DType::kBool, {0, 1}), DType::kBool), {1, 0});
  check_values(unary(Op::kBitwiseNot, NoAttrs{}, line(DType::kU8, {0, 1}), DType::kU8), {255, 254});
}

TEST_CASE("products and shifts of i32 equal the reference for every shift") {
  std::mt19937 random(17);
  std::uniform_int_distribution<std::int32_t> numbers(std::numeric_limits<std::int32_t>::min());
  const auto integers = [&](std::int64_t count, auto&& draw) {
    Array made{DType::kI32, {count}, {}};
    for (std::int64_t i = 0; i < count; ++i) made.values.push_back(static_cast<double>(draw()));
    return made;
  };
  const auto any = [&] { return numbers(random) >> random() % 32; };
  const auto place = [&] { return random() % 32; };
  for (const std::int64_t count : {1, 15, 33, 600})
    for (const std::int64_t first : {std::int64_t{1}, count})
      for (const std::int64_t second : {std::int64_t{1}, count}) {
        const Shape shape{std::max(first, second)};
        const auto check = [&](Op op, Attrs attrs, Array b) {
          check_fast_paths({op, std::move(attrs), {integers(first, any), std::move(b)}, DType::kI32, shape},
                           {});
        };
        for (std::int64_t shift = 0; shift < 63; ++shift)
          check(Op::kTosaMul, TosaMulAttrs{shift}, integers(second, any));
        for (const bool round : {false, true})
          check(Op::kTosaArithmeticRightShift, TosaShiftAttrs{round}, integers(second, place));
        check(Op::kTosaLogicalLeftShift, NoAttrs{}, integers(second, place));
        check(Op::kTosaLogicalRightShift, NoAttrs{}, integers(second, place));
      }
}

TEST_CASE("select chooses between its operands by a broadcast condition") {
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kBool, DType::kI64}) {
    const Call call{.op = Op::kTosaSelect,
                    .attrs = NoAttrs{},
                    .operands = {array(DType::kBool, {2, 1}, {1, 0}), array(dtype, {1, 2}, {1, 0}),
                                 array(dtype, {2, 2}, {0, 1, 0, 1})},
                    .dtype = dtype,
                    .shape = {2, 2}};
    check_values(call, {1, 0, 0, 1});
  }
}

TEST_CASE("an undefined combination of operator and dtype is refused by name") {
  const Call call = unary(Op::kErf, NoAttrs{}, line(DType::kI32, {1}), DType::kI32);
  CHECK_THROWS_AS(reference(call), UnsupportedOp);
  CHECK_THROWS_WITH(reference(call), Catch::Contains("no kernel for erf") && Catch::Contains("i32 -> i32"));
}

TEST_CASE("the result may overwrite an operand of its shape and element size") {
  std::vector<float> values{1, -2, 3};
  const float two = 2;
  const Attrs attrs = NoAttrs{};
  const std::vector<Operand> operands{{DType::kF32, {3}}, {DType::kF32, {}}};
  const std::vector<Operand> results{{DType::kF32, {3}}};
  const Kernel kernel = prepare({Op::kMul, &attrs, operands, results, {}});
  CHECK(kernel.in_place == 1u);
  auto* data = reinterpret_cast<std::byte*>(values.data());
  const std::byte* inputs[] = {data, reinterpret_cast<const std::byte*>(&two)};
  std::byte* outputs[] = {data};
  kernel.run({inputs, outputs, nullptr});
  CHECK(values == std::vector<float>{2, -4, 6});
}

TEST_CASE("functions have their limits as results at the ends of their domains") {
  check_values(unary(Op::kErfinv, NoAttrs{}, line(DType::kF32, {0.0, 1.0, -1.0, 2.0}), DType::kF32),
               {0.0, kInf, -kInf, kNan});
  check_values(unary(Op::kAtanh, NoAttrs{}, line(DType::kF64, {0.0, 1.0, -1.0, 2.0}), DType::kF64),
               {0.0, kInf, -kInf, kNan});
  check_values(
      unary(Op::kNanToNum, NanToNumAttrs{}, line(DType::kF16, {kNan, kInf, -kInf, 1.0}), DType::kF16),
      {0.0, 65504.0, -65504.0, 1.0});
  check_values(unary(Op::kIsinf, NoAttrs{}, line(DType::kF32, {kNan, kInf, -kInf, 1.0}), DType::kBool),
               {0.0, 1.0, 1.0, 0.0});
}

TEST_CASE("remainder has the sign of the divisor, fmod that of the dividend") {
  const Array a = line(DType::kF32, {5.5, -5.5, 5.5, -5.5, 1.0}),
              b = line(DType::kF32, {2.0, 2.0, -2.0, -2.0, 0.0});
  check_values(binary(Op::kRemainder, NoAttrs{}, a, b, DType::kF32), {1.5, 0.5, -0.5, -1.5, kNan});
  check_values(binary(Op::kFmod, NoAttrs{}, a, b, DType::kF32), {1.5, -1.5, 1.5, -1.5, kNan});
  const Array m = line(DType::kI64, {7, -7, 7, -7}), n = line(DType::kI64, {3, 3, -3, -3});
  check_values(binary(Op::kRemainder, NoAttrs{}, m, n, DType::kI64), {1, 2, -2, -1});
  check_values(binary(Op::kFmod, NoAttrs{}, m, n, DType::kI64), {1, -1, 1, -1});
}

TEST_CASE("shifts by counts outside the dtype's bits shift out everything but the sign") {
  const Array a = line(DType::kI8, {-128, 64, -3, 3}), b = line(DType::kI8, {9, -1, 1, 1});
  check_values(binary(Op::kRightShift, NoAttrs{}, a, b, DType::kI8), {-1, 0, -2, 1});
  check_values(binary(Op::kLeftShift, NoAttrs{}, a, b, DType::kI8), {0, 0, -6, 6});
}

}  // namespace
}  // namespace tosaic::kernels::testing
