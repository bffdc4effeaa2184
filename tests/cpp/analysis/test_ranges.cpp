#include "tosaic/analysis/ranges/ranges.h"

#include "passes/pass_case.h"

namespace tosaic::analysis {
namespace {

using passes::Case;

const TensorType kI32{DType::kI32, {4}, {}, {}};

ValueRange range_of(const Case& c, ValueId id, ValueRange input) {
  std::vector<ValueRange> known = initial_integer_ranges(c.graph);
  known[c.graph.inputs()[0].value.index()] = input;
  return IntegerRanges(c.graph, std::move(known), {}).of(id);
}

TEST_CASE("ranges of integers follow from the ranges of the inputs", "[analysis]") {
  Case c;
  const ValueId x = c.input("x", kI32);
  const ValueId difference = c.add(Op::kSub, {x, c.add(Op::kMul, {x, x})});
  const ValueId size = c.add(Op::kAbs, {difference});
  c.output(size);
  CHECK(range_of(c, difference, {-3, 5}) == ValueRange{-28, 20});
  CHECK(range_of(c, size, {-3, 5}) == ValueRange{0, 28});
}

TEST_CASE("a result that may exceed its dtype has the range of the dtype, and may overflow", "[analysis]") {
  Case c;
  const ValueId x = c.input("x", kI32);
  const ValueId twice = c.add(Op::kAdd, {x, x});
  c.output(twice);
  const IntegerRanges ranges(c.graph, initial_integer_ranges(c.graph), {});
  CHECK(ranges.of(twice) == *integer_limits(DType::kI32));
  CHECK(ranges.computed(c.graph.nodes()[0]) ==
        ValueRange{-(std::int64_t{1} << 32), (std::int64_t{1} << 32) - 2});
  REQUIRE(ranges.overflowing().size() == 1);
  CHECK(ranges.overflowing()[0] == &c.graph.nodes()[0]);
}

TEST_CASE("an operand that is not negative bounds a conjunction, whatever the other one is", "[analysis]") {
  Case c;
  const ValueId x = c.input("x", kI32);
  const ValueId mask = c.add(Op::kAbs, {c.add(Op::kSign, {x})});
  const ValueId both = c.add(Op::kBitwiseAnd, {x, mask}), any = c.add(Op::kBitwiseOr, {x, mask}),
                odd = c.add(Op::kBitwiseXor, {x, mask}), other = c.add(Op::kBitwiseNot, {x});
  for (const ValueId each : {both, any, odd, other}) c.output(each);
  const ValueRange wide = *integer_limits(DType::kI32);
  CHECK(range_of(c, both, wide) == ValueRange{0, 1});
  CHECK(range_of(c, both, {-6, 9}) == ValueRange{0, 1});
  CHECK(range_of(c, any, {-6, 9}) == ValueRange{-6, 15});
  CHECK(range_of(c, any, {2, 9}) == ValueRange{2, 15});
  CHECK(range_of(c, any, {-6, -2}) == ValueRange{-6, -1});
  CHECK(range_of(c, odd, {2, 9}) == ValueRange{0, 15});
  CHECK(range_of(c, odd, {-6, -2}) == ValueRange{-8, -1});
  CHECK(range_of(c, odd, {-6, 9}) == ValueRange{-16, 15});
  CHECK(range_of(c, other, {-6, 9}) == ValueRange{-10, 5});
}

TEST_CASE("a remainder is no farther from 0 than its dividend", "[analysis]") {
  Case c;
  const ValueId x = c.input("x", kI32);
  const ValueId divisor = c.add(Op::kAdd, {c.add(Op::kAbs, {x}), c.add(Op::kAbs, {x})});
  const ValueId floored = c.add(Op::kRemainder, {x, divisor}), truncated = c.add(Op::kFmod, {x, divisor});
  c.output(floored);
  c.output(truncated);
  CHECK(range_of(c, floored, {2, 9}) == ValueRange{0, 9});
  CHECK(range_of(c, floored, {-9, 2}) == ValueRange{0, 17});
  CHECK(range_of(c, truncated, {-4, 9}) == ValueRange{-4, 9});
}

TEST_CASE("ranges of floats are wider than the rounding of their operators", "[analysis]") {
  Case c;
  const ValueId x = c.input("x", {4});
  const ValueId bounded = c.add(Op::kTanh, {x}), size = c.add(Op::kAbs, {bounded});
  c.output(size);
  const FloatRanges ranges(c.graph);
  CHECK(ranges.of(x).bounds == Interval<double>::all());
  CHECK(ranges.of(bounded).bounds.contains(Interval<double>{-1, 1}));
  CHECK(ranges.of(bounded).bounds.high < 1.001);
  CHECK(ranges.of(size).bounds.low == 0);
}

}  // namespace
}  // namespace tosaic::analysis
