#include <numeric>

#include "run_kernel.h"
#include "tosaic/base/error.h"

namespace tosaic::kernels::testing {
namespace {

// The elements 0, 1, 2, ... (i8: modulo 127).
Array counted(DType dtype, const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(num_elements(shape)));
  std::iota(values.begin(), values.end(), 0);
  if (dtype == DType::kI8)
    for (double& value : values) value = std::fmod(value, 127);
  return {dtype, shape, values};
}

Call move(Op op, Attrs attrs, std::vector<Array> operands, Shape shape) {
  const DType dtype = operands[0].dtype;
  return {
      .op = op, .attrs = std::move(attrs), .operands = std::move(operands), .dtype = dtype, .shape = shape};
}

// Checks that the results of the reference and of every instruction set are exactly these elements.
void check(const Call& call, const std::vector<double>& expected) {
  CHECK(reference(call) == expected);
  for (const Isa isa : usable_isas()) CHECK(run(call, {.reference = false, .isa = isa}).values == expected);
}

Array indices(const Shape& shape, std::vector<double> values) {
  return array(DType::kI64, shape, std::move(values));
}

const Array kMatrix = counted(DType::kF32, {2, 3});

TEST_CASE("permute moves every element, for all element sizes and permutations") {
  for (const DType dtype : {DType::kI8, DType::kBF16, DType::kF32, DType::kF64})
    for (const Shape& shape :
         {Shape{2, 37, 40}, Shape{1, 3, 70}, Shape{64, 16, 1}, Shape{2, 0, 3}, Shape{17, 19, 3}})
      for (const Dims& perm :
           {Dims{0, 2, 1}, Dims{2, 1, 0}, Dims{1, 2, 0}, Dims{2, 0, 1}, Dims{1, 0, 2}, Dims{0, 1, 2}}) {
        const Array input =
            dtype == DType::kBF16
                ? Array{dtype, shape, std::vector<double>(static_cast<std::size_t>(num_elements(shape)), 2)}
                : counted(dtype, shape);
        const Shape result = permuted(shape, perm);
        const Dims strides = permuted(contiguous_strides(shape), perm);
        std::vector<double> expected;
        for (std::int64_t a = 0; a < result[0]; ++a)
          for (std::int64_t b = 0; b < result[1]; ++b)
            for (std::int64_t c = 0; c < result[2]; ++c)
              expected.push_back(
                  input.values[static_cast<std::size_t>(a * strides[0] + b * strides[1] + c * strides[2])]);
        check(move(Op::kPermute, PermuteAttrs{perm}, {input}, result), expected);
      }
}

TEST_CASE("expand, repeat and tosa.tile") {
  check(move(Op::kExpand, ShapeAttrs{{2, 2, 2}}, {array(DType::kF32, {2, 1}, {1, 2})}, {2, 2, 2}),
        {1, 1, 2, 2, 1, 1, 2, 2});
  check(move(Op::kRepeat, ShapeAttrs{{2, 2}}, {array(DType::kI8, {2}, {1, 2})}, {2, 4}),
        {1, 2, 1, 2, 1, 2, 1, 2});
  check(move(Op::kTosaTile, ShapeAttrs{{2, 1}}, {kMatrix}, {4, 3}), {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
}

TEST_CASE("cat, stack, slice, select and flip") {
  const Array column = array(DType::kF32, {2, 1}, {8, 9});
  check(move(Op::kCat, AxisAttrs{1}, {kMatrix, column}, {2, 4}), {0, 1, 2, 8, 3, 4, 5, 9});
  check(move(Op::kCat, AxisAttrs{1}, {kMatrix, array(DType::kF32, {0}, {})}, {2, 3}), {0, 1, 2, 3, 4, 5});
  check(move(Op::kStack, AxisAttrs{1}, {column, column}, {2, 2, 1}), {8, 8, 9, 9});
  check(move(Op::kSlice, SliceAttrs{1, 0, 3, 2}, {kMatrix}, {2, 2}), {0, 2, 3, 5});
  check(move(Op::kTosaSlice, TosaSliceAttrs{{1, 1}, {1, 2}}, {kMatrix}, {1, 2}), {4, 5});
  check(move(Op::kSelect, SelectAttrs{1, 2}, {kMatrix}, {2}), {2, 5});
  check(move(Op::kFlip, AxesAttrs{{0, 1}}, {kMatrix}, {2, 3}), {5, 4, 3, 2, 1, 0});
  check(move(Op::kTosaReverse, AxisAttrs{0}, {kMatrix}, {2, 3}), {3, 4, 5, 0, 1, 2});
}

TEST_CASE("split and unbind fill every result") {
  const Attrs split = SplitAttrs{1, {1, 2}};
  const std::vector<Operand> operands{{DType::kF32, {2, 3}}};
  const std::vector<Operand> results{{DType::kF32, {2, 1}}, {DType::kF32, {2, 2}}};
  const std::vector<float> input{0, 1, 2, 3, 4, 5};
  std::vector<float> first(2);
  std::vector<float> second(4);
  const std::byte* from[] = {reinterpret_cast<const std::byte*>(input.data())};
  std::byte* to[] = {reinterpret_cast<std::byte*>(first.data()), reinterpret_cast<std::byte*>(second.data())};
  prepare({Op::kSplit, &split, operands, results, {}}).run({from, to, nullptr});
  CHECK(first == std::vector<float>{0, 3});
  CHECK(second == std::vector<float>{1, 2, 4, 5});
}

TEST_CASE("pad: a constant with crops, and the reflect, replicate and circular modes") {
  const auto pad = [](PadMode mode, Dims before, Dims after) {
    return PadAttrs{before, after, mode, Scalar{9.0}};
  };
  check(move(Op::kPad, pad(PadMode::kConstant, {0, -1}, {1, 2}), {kMatrix}, {3, 4}),
        {1, 2, 9, 9, 4, 5, 9, 9, 9, 9, 9, 9});
  const Array row = counted(DType::kF32, {1, 4});
  check(move(Op::kPad, pad(PadMode::kReflect, {0, 2}, {0, 3}), {row}, {1, 9}), {2, 1, 0, 1, 2, 3, 2, 1, 0});
  check(move(Op::kPad, pad(PadMode::kReplicate, {0, 2}, {0, 1}), {row}, {1, 7}), {0, 0, 0, 1, 2, 3, 3});
  check(move(Op::kPad, pad(PadMode::kCircular, {0, 2}, {0, 1}), {row}, {1, 7}), {2, 3, 0, 1, 2, 3, 0});
}

TEST_CASE("triangles") {
  const Array square = array(DType::kI32, {1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  check(move(Op::kTril, DiagonalAttrs{0}, {square}, {1, 3, 3}), {1, 0, 0, 4, 5, 0, 7, 8, 9});
  check(move(Op::kTril, DiagonalAttrs{-5}, {square}, {1, 3, 3}), std::vector<double>(9, 0));
  check(move(Op::kTriu, DiagonalAttrs{1}, {square}, {1, 3, 3}), {0, 2, 3, 0, 0, 6, 0, 0, 0});
}

TEST_CASE("gather, index_select, embedding") {
  check(move(Op::kGather, AxisAttrs{1}, {kMatrix, indices({2, 2}, {2, 0, 1, 1})}, {2, 2}), {2, 0, 4, 4});
  check(move(Op::kIndexSelect, AxisAttrs{1}, {kMatrix, indices({2}, {2, 0})}, {2, 2}), {2, 0, 5, 3});
  check(move(Op::kEmbedding, NoAttrs{}, {kMatrix, indices({1, 2}, {1, 1})}, {1, 2, 3}), {3, 4, 5, 3, 4, 5});
}

TEST_CASE("index replaces adjacent indexed axes in place, others in front") {
  const Array cube = counted(DType::kF32, {2, 3, 2});
  check(move(Op::kIndex, NoAttrs{}, {cube, kAbsent, indices({2}, {0, -1})}, {2, 2, 2}),
        {0, 1, 4, 5, 6, 7, 10, 11});
  check(move(Op::kIndex, NoAttrs{}, {cube, indices({1}, {1}), kAbsent, indices({2}, {0, 1})}, {2, 3}),
        {6, 8, 10, 7, 9, 11});
  check(
      move(Op::kIndex, NoAttrs{}, {cube, kAbsent, indices({2, 1}, {0, 2}), indices({2}, {0, 1})}, {2, 2, 2}),
      {0, 1, 4, 5, 6, 7, 10, 11});
}

TEST_CASE("tosa.gather of elements of one table equals the reference for any number of indices") {
  std::mt19937 random(23);
  const Array table = random_array(random, DType::kI32, {1, 100, 1});
  for (std::int64_t count = 1; count < 70; ++count) {
    Array indices{DType::kI32, {1, count}, {}};
    for (std::int64_t i = 0; i < count; ++i) indices.values.push_back(static_cast<double>(random() % 100));
    check_fast_paths({Op::kTosaGather, NoAttrs{}, {table, indices}, DType::kI32, {1, count, 1}}, {});
    for (const double wrong : {-1.0, 100.0, -2147483648.0}) {
      Array outside = indices;
      outside.values[random() % static_cast<std::size_t>(count)] = wrong;
      for (const Isa isa : usable_isas())
        CHECK_THROWS_WITH(
            run({Op::kTosaGather, NoAttrs{}, {table, outside}, DType::kI32, {1, count, 1}}, {.isa = isa}),
            "[tosa.gather] index out of range: expected an index in [0, 100), got " +
                std::to_string(static_cast<std::int64_t>(wrong)));
    }
  }
}

TEST_CASE("tosa.gather and tosa.scatter work batch by batch") {
  const Array values = counted(DType::kF32, {2, 3, 1});
  const Array picks = array(DType::kI32, {2, 2}, {2, 0, 1, 2});
  check(move(Op::kTosaGather, NoAttrs{}, {values, picks}, {2, 2, 1}), {2, 0, 4, 5});
  check(move(Op::kTosaScatter, NoAttrs{}, {values, picks, array(DType::kF32, {2, 2, 1}, {-1, -2, -3, -4})},
             {2, 3, 1}),
        {-2, 1, -1, 3, -3, -4});
}

TEST_CASE("an index out of range is refused with the index and the limit") {
  CHECK_THROWS_WITH(reference(move(Op::kEmbedding, NoAttrs{}, {kMatrix, indices({1}, {2})}, {1, 3})),
                    "[embedding] index out of range: expected an index in [0, 2), got 2");
  CHECK_THROWS_WITH(reference(move(Op::kGather, AxisAttrs{1}, {kMatrix, indices({1, 1}, {-1})}, {1, 1})),
                    "[gather] index out of range: expected an index in [0, 3), got -1");
  CHECK_THROWS_WITH(reference(move(Op::kIndex, NoAttrs{}, {kMatrix, indices({1}, {-3})}, {1, 3})),
                    "[index] index out of range: expected an index in [-2, 2), got -3");
  const Array values = counted(DType::kF32, {1, 3, 1});
  CHECK_THROWS_AS(
      reference(move(Op::kTosaScatter, NoAttrs{},
                     {values, array(DType::kI32, {1, 1}, {3}), array(DType::kF32, {1, 1, 1}, {0})},
                     {1, 3, 1})),
      InvalidGraph);
}

TEST_CASE("arange and full") {
  ArangeAttrs arange;
  arange.start = Scalar{std::int64_t{5}};
  arange.step = Scalar{std::int64_t{-2}};
  CHECK(reference({.op = Op::kArange, .attrs = arange, .operands = {}, .dtype = DType::kI32, .shape = {3}}) ==
        std::vector<double>{5, 3, 1});
  arange.step = Scalar{0.25};
  CHECK(reference({.op = Op::kArange, .attrs = arange, .operands = {}, .dtype = DType::kF32, .shape = {3}}) ==
        std::vector<double>{5, 5.25, 5.5});
  CHECK(reference({.op = Op::kFull,
                   .attrs = FullAttrs{{2}, Scalar{2.5}, DType::kF16},
                   .operands = {},
                   .dtype = DType::kF16,
                   .shape = {2}}) == std::vector<double>{2.5, 2.5});
}

}  // namespace
}  // namespace tosaic::kernels::testing
