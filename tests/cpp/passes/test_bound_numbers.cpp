#include <limits>

#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

// Numbers between -12.8 and 12.7.
ValueId numbers(Case& c, std::string name = "x") {
  return c.add(Op::kDequantize, {c.input(name, tensor(DType::kI8, {2, 3}))},
               DequantizeAttrs{DType::kF32, std::nullopt, -128, 127, {0.1}, {0}}, name + ".numbers");
}
ValueId number(Case& c, double value) { return c.constant("number", {}, {value}); }
ValueId hidden(Case& c) { return c.input("hidden", tensor(DType::kBool, {2, 1})); }
ValueId quantized(Case& c, ValueId x, double scale = 0.05) {
  return c.add(Op::kQuantize, {x}, QuantizeAttrs{DType::kI8, std::nullopt, -128, 127, {scale}, {0}},
               "quantized");
}

Graph bounded(const Graph& graph) {
  verify(graph);
  const std::optional<Graph> after = bound_numbers(graph);
  REQUIRE(after.has_value());
  verify(*after);
  CHECK_FALSE(bound_numbers(*after).has_value());
  return *after;
}

double lowest(const Graph& graph) {
  double low = 0;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i)
    if (const ConstantRef& constant = graph.value(ValueId(i)).constant)
      for (std::size_t k = 0; k < Elements(*constant).size(); ++k)
        low = std::min(low, Elements(*constant).as_double(k));
  return low;
}

TEST_CASE("a constant becomes the least number that the quantize node behind an extremum represents",
          "[passes][bound-numbers]") {
  for (const double value : {-1e5, -1e9, -3.4028234663852886e38}) {
    Case c;
    const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, value), numbers(c)}, "masked");
    const ValueId top = c.add(Op::kAmax, {masked}, ReduceAttrs{{1}, false, std::nullopt}, "top");
    const Graph after = bounded(c.output(quantized(c, top)).graph);
    CHECK(ops_of(after) == "dequantize where amax quantize");
    CHECK(lowest(after) == Approx(-6.45).epsilon(1e-3));
  }
}

TEST_CASE("sums and factors move the bounds", "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, -1e9), numbers(c)}, "masked");
  const ValueId half = c.add(Op::kMul, {masked, number(c, 0.5)}, "half");
  const ValueId sum = c.add(Op::kAdd, {half, numbers(c, "y")}, "sum");
  const Graph after = bounded(c.output(quantized(c, sum)).graph);
  CHECK(lowest(after) == Approx(2 * (-6.45 - 12.7)).epsilon(1e-3));
}

TEST_CASE("a number that an output shows stays, and the other reader gets a node of its own",
          "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, -1e9), numbers(c)}, "masked");
  const Graph after = bounded(c.output(quantized(c, masked)).output(masked).graph);
  CHECK(ops_of(after) == "dequantize where where quantize");
  CHECK(lowest(after) == -1e9);
  const ValueId read = after.operands(*after.producer(after.outputs()[0].value))[0];
  CHECK(read != after.outputs()[1].value);
  const Constant& bound = *after.value(after.operands(*after.producer(read))[1]).constant;
  CHECK(Elements(bound).as_double(0) == Approx(-6.45).epsilon(1e-3));
}

TEST_CASE("a number that a mean reads stays", "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, -1e9), numbers(c)}, "masked");
  const ValueId mean = c.add(Op::kMean, {masked}, ReduceAttrs{{1}, false, std::nullopt}, "mean");
  CHECK_FALSE(bound_numbers(c.output(quantized(c, mean, 1e7)).graph).has_value());
}

TEST_CASE("numbers that are not far stay", "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, -100.0), numbers(c)}, "masked");
  CHECK_FALSE(bound_numbers(c.output(quantized(c, masked)).graph).has_value());
}

TEST_CASE("a computed operand of a wide range is clamped", "[passes][bound-numbers]") {
  Case c;
  const ValueId wide = c.add(Op::kDequantize, {c.input("wide", tensor(DType::kI8, {2, 3}))},
                             DequantizeAttrs{DType::kF32, std::nullopt, -128, 127, {1e7}, {0}}, "wide");
  const ValueId sum = c.add(Op::kAdd, {wide, numbers(c)}, "sum");
  const Graph after = bounded(c.output(quantized(c, sum)).graph);
  CHECK(ops_of(after) == "dequantize dequantize clamp add quantize");
}

TEST_CASE("a number in a softmax stays below all that is visible", "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, -1e9), numbers(c)}, "masked");
  const ValueId half = c.add(Op::kMul, {masked, number(c, 0.5)}, "half");
  const ValueId shares = c.add(Op::kSoftmax, {half}, AxisDtypeAttrs{1, std::nullopt}, "shares");
  const Graph after = bounded(c.output(quantized(c, shares, 0.004)).graph);
  CHECK(lowest(after) == Approx(2 * (-6.4 - 120)).epsilon(1e-3));
}

TEST_CASE("the number of a pad and the results of exp are bounded", "[passes][bound-numbers]") {
  Case c;
  const ValueId padded =
      c.add(Op::kPad, {numbers(c)}, PadAttrs{{0, 1}, {0, 1}, PadMode::kConstant, -1e9}, "padded");
  const Graph pads = bounded(c.output(quantized(c, padded)).graph);
  for (const Node& node : pads.nodes())
    if (node.op == Op::kPad)
      CHECK(as_double(Graph::attrs<PadAttrs>(node).value) == Approx(-6.45).epsilon(1e-3));
  Case e;
  const ValueId wide = e.add(Op::kMul, {numbers(e), number(e, 1000.0)}, "wide");
  const ValueId bound =
      e.add(Op::kClamp, {e.add(Op::kExp, {wide}, "exp")}, ClampAttrs{std::nullopt, 2.0}, "bound");
  CHECK(ops_of(bounded(e.output(quantized(e, bound)).graph)) == "dequantize mul clamp exp clamp quantize");
}

double highest(const Graph& graph) {
  double high = 0;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i)
    if (const ConstantRef& constant = graph.value(ValueId(i)).constant)
      for (std::size_t k = 0; k < Elements(*constant).size(); ++k)
        high = std::max(high, Elements(*constant).as_double(k));
  return high;
}

TEST_CASE("a number that wins a softmax is bounded above all others", "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, 1e9), numbers(c)}, "masked");
  const ValueId half = c.add(Op::kMul, {masked, number(c, 0.5)}, "half");
  const ValueId shares = c.add(Op::kSoftmax, {half}, AxisDtypeAttrs{1, std::nullopt}, "shares");
  const Graph after = bounded(c.output(quantized(c, shares)).graph);
  CHECK(highest(after) == Approx(2 * (6.35 + 120)).epsilon(1e-3));
}

TEST_CASE("two different numbers that win a softmax stay", "[passes][bound-numbers]") {
  Case c;
  const ValueId other = c.input("other", tensor(DType::kBool, {2, 1}));
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, 1e9), numbers(c)}, "masked");
  const ValueId twice = c.add(Op::kWhere, {other, c.constant("more", {}, {2e9}), masked}, "twice");
  const ValueId shares = c.add(Op::kSoftmax, {twice}, AxisDtypeAttrs{1, std::nullopt}, "shares");
  CHECK_FALSE(bound_numbers(c.output(quantized(c, shares)).graph).has_value());
}

TEST_CASE("an argmax keeps winners and losers beyond the others", "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, 1e9), numbers(c)}, "masked");
  const ValueId place = c.add(Op::kArgmax, {masked}, ArgAttrs{1, false}, "place");
  const double found = highest(bounded(c.output(place).graph));
  CHECK(found > 12.8);
  CHECK(found < 20);
}

TEST_CASE("the only share of a softmax is 1", "[passes][bound-numbers]") {
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, 1e9), numbers(c)}, "masked");
  const ValueId one = c.add(Op::kSlice, {masked}, SliceAttrs{1, 0, 1, 1}, "one");
  const ValueId share = c.add(Op::kSoftmax, {one}, AxisDtypeAttrs{1, std::nullopt}, "share");
  const Graph after = bounded(c.output(quantized(c, share)).graph);
  CHECK(ops_of(after) == "dequantize where slice clamp quantize");
  CHECK(highest(after) <= 1);
}

TEST_CASE("plus infinity becomes the nearest relevant number, however near it is",
          "[passes][bound-numbers]") {
  const double infinity = std::numeric_limits<double>::infinity();
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, infinity), numbers(c)}, "masked");
  const ValueId least = c.add(Op::kAmin, {masked}, ReduceAttrs{{1}, false, std::nullopt}, "least");
  CHECK(highest(bounded(c.output(quantized(c, least)).graph)) == Approx(6.4).epsilon(1e-3));
  Case p;
  const ValueId padded =
      p.add(Op::kPad, {numbers(p)}, PadAttrs{{0, 1}, {0, 1}, PadMode::kConstant, infinity}, "padded");
  const Graph pads = bounded(p.output(quantized(p, padded)).graph);
  for (const Node& node : pads.nodes())
    if (node.op == Op::kPad)
      CHECK(as_double(Graph::attrs<PadAttrs>(node).value) == Approx(6.4).epsilon(1e-3));
}

TEST_CASE("plus infinity that a softmax or an output reads stays", "[passes][bound-numbers]") {
  const double infinity = std::numeric_limits<double>::infinity();
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, infinity), numbers(c)}, "masked");
  const ValueId shares = c.add(Op::kSoftmax, {masked}, AxisDtypeAttrs{1, std::nullopt}, "shares");
  CHECK_FALSE(bound_numbers(c.output(quantized(c, shares)).output(masked).graph).has_value());
}

TEST_CASE("a negation moves to the operands of a where that selects plus infinity",
          "[passes][bound-numbers]") {
  const double infinity = std::numeric_limits<double>::infinity();
  Case c;
  const ValueId masked = c.add(Op::kWhere, {hidden(c), number(c, infinity), numbers(c)}, "masked");
  const ValueId negated = c.add(Op::kNeg, {masked}, "negated");
  const ValueId shares = c.add(Op::kSoftmax, {negated}, AxisDtypeAttrs{1, std::nullopt}, "shares");
  const Graph after = bounded(c.output(quantized(c, shares)).graph);
  CHECK(ops_of(after) == "dequantize neg where softmax quantize");
  CHECK(lowest(after) == -infinity);
}

TEST_CASE("deviations from which a variance saturates are bounded", "[passes][bound-numbers]") {
  Case c;
  const ValueId variance = c.add(Op::kVar, {numbers(c)}, VarAttrs{{1}, false, 0.0}, "variance");
  const Graph after = bounded(c.output(quantized(c, variance, 1e-6)).graph);
  CHECK(ops_of(after) == "dequantize mean sub clamp mul sum mul quantize");
}

}  // namespace
}  // namespace tosaic::passes
