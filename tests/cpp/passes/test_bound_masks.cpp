#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

const AxisDtypeAttrs kRows{1, std::nullopt};

// Scores between -12.8 and 12.7, so that bound-masks hides with -2 * 12.8 - 200 or less.
ValueId scores(Case& c) {
  return c.add(Op::kDequantize, {c.input("x", tensor(DType::kI8, {2, 3}))},
               DequantizeAttrs{DType::kF32, std::nullopt, -128, 127, {0.1}, {0}}, "scores");
}
ValueId number(Case& c, double value) { return c.constant("number", {}, {value}); }
ValueId softmax(Case& c, ValueId x) { return c.add(Op::kSoftmax, {x}, kRows, "softmax"); }

// Runs the pass, which must change the graph, and must not change it again.
Graph bounded(const Graph& graph) {
  verify(graph);
  const std::optional<Graph> after = bound_masks(graph);
  REQUIRE(after.has_value());
  verify(*after);
  CHECK_FALSE(bound_masks(*after).has_value());
  return *after;
}

// The least number of the constants.
double lowest(const Graph& graph) {
  double low = 0;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i)
    if (graph.value(ValueId(i)).kind == ValueKind::kConstant) {
      const Elements elements(*graph.value(ValueId(i)).constant);
      for (std::size_t k = 0; k < elements.size(); ++k) low = std::min(low, elements.as_double(k));
    }
  return low;
}

TEST_CASE("a constant mask becomes as small as the scores allow", "[passes][bound-masks]") {
  Case c;
  const ValueId mask = c.constant("mask", {2, 3}, {0, -1e9, -1e9, 0, 0, -1e9});
  const Graph after = bounded(c.output(softmax(c, c.add(Op::kAdd, {scores(c), mask}, "masked"))).graph);
  CHECK(ops_of(after) == "dequantize add softmax");
  CHECK(lowest(after) == Approx(-225.6));
}

TEST_CASE("a mask of which a row is hidden as a whole is not changed", "[passes][bound-masks]") {
  Case c;
  const ValueId mask = c.constant("mask", {2, 3}, {0, -1e9, 0, -1e9, -1e9, -1e9});
  CHECK_FALSE(
      bound_masks(c.output(softmax(c, c.add(Op::kAdd, {scores(c), mask}, "masked"))).graph).has_value());
}

TEST_CASE("a mask that is computed from integers selects", "[passes][bound-masks]") {
  for (const bool is_inverted : {false, true}) {
    Case c;
    const ValueId ids = c.input("ids", tensor(DType::kBool, {2, 3}));
    ValueId truth = c.add(Op::kCast, {ids}, CastAttrs{DType::kF32}, "truth");
    if (is_inverted) truth = c.add(Op::kSub, {number(c, 1.0), truth}, "inverted");
    const ValueId mask = c.add(Op::kMul, {truth, number(c, -1e9)}, "mask");
    const ValueId masked = c.add(Op::kAdd, {scores(c), mask}, "masked");
    const Graph after = bounded(c.output(softmax(c, masked)).graph);
    CHECK(ops_of(after) == "dequantize where softmax");
  }
}

TEST_CASE("large numbers of which a sum retains parts of scores are not changed", "[passes][bound-masks]") {
  Case c;
  const ValueId ids = c.input("ids", tensor(DType::kBool, {2, 3}));
  const ValueId truth = c.add(Op::kCast, {ids}, CastAttrs{DType::kF32}, "truth");
  const ValueId masked =
      c.add(Op::kAdd, {scores(c), c.add(Op::kMul, {truth, number(c, -1e5)}, "mask")}, "masked");
  CHECK_FALSE(bound_masks(c.output(softmax(c, masked)).graph).has_value());
}

TEST_CASE("a mask of zeros and minus infinity selects, also behind a view", "[passes][bound-masks]") {
  for (const bool is_viewed : {false, true}) {
    Case c;
    const ValueId hidden = c.input("hidden", tensor(DType::kBool, {is_viewed ? 3 : 2, is_viewed ? 2 : 3}));
    ValueId mask = c.add(
        Op::kWhere, {hidden, number(c, -std::numeric_limits<double>::infinity()), number(c, 0.0)}, "mask");
    if (is_viewed) mask = c.add(Op::kPermute, {mask}, PermuteAttrs{{1, 0}}, "turned");
    const ValueId masked = c.add(Op::kAdd, {scores(c), mask}, "masked");
    const Graph after = bounded(c.output(softmax(c, masked)).graph);
    CHECK(ops_of(after) == (is_viewed ? "dequantize permute where softmax" : "dequantize where softmax"));
  }
}

TEST_CASE("the bound of a product of matrices is the bound of its terms", "[passes][bound-masks]") {
  Case c;
  const ValueId mask = c.constant("mask", {2, 2}, {0, -1e9, 0, 0});
  const ValueId a = scores(c), b = c.add(Op::kPermute, {a}, PermuteAttrs{{1, 0}}, "turned");
  const ValueId masked = c.add(Op::kAddmm, {mask, a, b}, AddmmAttrs{Scalar(1.0), Scalar(0.5)}, "masked");
  const Graph after = bounded(c.output(softmax(c, masked)).graph);
  CHECK(ops_of(after) == "dequantize permute matmul mul add softmax");
  CHECK(lowest(after) == Approx(-200 - 2 * 0.5 * 3 * 12.8 * 12.8));
}

TEST_CASE("scores of unknown magnitude are not changed", "[passes][bound-masks]") {
  Case c;
  const ValueId mask = c.constant("mask", {2, 3}, {0, -1e9, -1e9, 0, 0, -1e9});
  const ValueId masked = c.add(Op::kAdd, {c.input("x", {2, 3}), mask}, "masked");
  CHECK_FALSE(bound_masks(c.output(softmax(c, masked)).graph).has_value());
}

}  // namespace
}  // namespace tosaic::passes
