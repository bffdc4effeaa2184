#include <limits>

#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::size_t count(const Graph& graph, Op op) {
  std::size_t n = 0;
  for (const Node& node : graph.nodes()) n += node.op == op ? 1u : 0u;
  return n;
}

TEST_CASE("softmax is shifted by its maximum, and the last node has its name", "[passes][decompose]") {
  Case c;
  c.output(c.add(Op::kSoftmax, {c.input("x", {2, 3})}, AxisDtypeAttrs{1, {}}, "shares"));
  const Graph after = changed_by(decompose, c.graph, {{1e4, 1e4, -1e4, -kInf, 0, 3}});
  CHECK(ops_of(after) == "amax sub exp sum reciprocal mul");
  CHECK(after.node_name(after.nodes().back()) == "shares");
  for (const Node& node : after.nodes()) CHECK(leaves(node.origin).size() == 1);
}

TEST_CASE("leaky_relu of slope 0 is correct for infinity", "[passes][decompose]") {
  Case c;
  c.output(c.add(Op::kLeakyRelu, {c.input("x", {3})}, SlopeAttrs{0.0}));
  CHECK(count(changed_by(decompose, c.graph, {{kInf, 2, -1}}), Op::kMaximum) == 0);
}

TEST_CASE("norms of f16 are computed in f32, in which squares do not overflow", "[passes][decompose]") {
  Case c;
  const ValueId x = c.input("x", tensor(DType::kF16, {1, 4}));
  c.output(c.add(Op::kLayerNorm, {x, ValueId(), ValueId()}, NormAttrs{1, 1e-5}));
  const std::vector<std::vector<double>> elements{{1000, -2000, 500, 4000}};
  const std::optional<Graph> after = decompose(c.graph);
  REQUIRE(after.has_value());
  require_same(results_of(c.graph, elements), results_of(*after, elements), 2e-3);
}

TEST_CASE("sdpa drops a mask that hides nothing and handles one that hides a whole row",
          "[passes][decompose]") {
  for (const bool hides : {false, true}) {
    Case c;
    const ValueId q = c.input("q", {1, 2, 4}), k = c.input("k", {1, 3, 4}), v = c.input("v", {1, 3, 4});
    const double keep = hides ? 0.0 : 1.0;
    const ValueId mask = c.constant("mask", {2, 3}, {keep, keep, keep, 1, 1, 1}, DType::kBool);
    const Graph after = changed_by(decompose, c.output(c.add(Op::kSdpa, {q, k, v, mask})).graph);
    CHECK(count(after, Op::kAdd) == (hides ? 1 : 0));
    CHECK(count(after, Op::kWhere) == (hides ? 1 : 0));
  }
}

TEST_CASE("a resize that RESIZE can express is not expanded, others become index_selects",
          "[passes][decompose]") {
  Case c;
  const ValueId x = c.input("x", {1, 1, 5, 64});
  c.output(c.add(Op::kResize, {x}, ResizeAttrs{ResizeMode::kBilinear, {10, 32}, false, {}}));
  CHECK_FALSE(decompose(c.graph).has_value());
  const ValueId wide =
      c.add(Op::kResize, {x}, ResizeAttrs{ResizeMode::kBilinear, {7, 64}, false, {1.5, 1.0}});
  const ValueId small = c.add(Op::kResize, {x}, ResizeAttrs{ResizeMode::kNearest, {5, 3}, false, {}});
  const Graph after = changed_by(decompose, c.output(wide).output(small).graph);
  CHECK(count(after, Op::kResize) == 1);  // the first resize
  // `wide` has one for the lower and one for the upper neighbours of its rows; `small` has one for each axis.
  CHECK(count(after, Op::kIndexSelect) == 4);
}

TEST_CASE("expansions do not change results", "[passes][decompose]") {
  Case c;
  const ValueId x = c.input("x", {2, 4, 6}), i = c.constant("i", {2}, {1, -1}, DType::kI64);
  for (const Op op : {Op::kElu, Op::kGelu, Op::kSilu, Op::kHardsigmoid, Op::kHardswish})
    c.output(c.add(op, {x}));
  c.output(c.add(Op::kMean, {x}, ReduceAttrs{{0, 2}, false, {}}))
      .output(c.add(Op::kVar, {x}, VarAttrs{{1}, true, 1}));
  c.output(c.add(Op::kCumsum, {x}, AxisDtypeAttrs{2, {}}))
      .output(c.add(Op::kDiff, {x, ValueId(), ValueId()}, DiffAttrs{2, 1}));
  c.output(c.add(Op::kArgsort, {x}, SortAttrs{1, false}))
      .output(c.add(Op::kArgsort, {x}, SortAttrs{2, true}))
      .output(c.add(Op::kArgsort, {x}, SortAttrs{2, true, 4}));
  c.output(c.add(Op::kCumargmax, {x}, AxisAttrs{2})).output(c.add(Op::kCumargmin, {x}, AxisAttrs{1}));
  c.output(c.add(Op::kErfc, {x}));
  const ValueId places = c.constant("places", {1, 3, 2}, {3, 0, 3, 1, 0, 3}, DType::kI64);
  const ValueId values = c.weights("values", {1, 3, 2});
  for (const ScatterReduction how :
       {ScatterReduction::kProd, ScatterReduction::kAmax, ScatterReduction::kAmin})
    for (const bool own : {true, false})
      c.output(c.add(Op::kScatterReduce, {x, places, values}, ScatterReduceAttrs{1, how, own}));
  c.output(c.add(Op::kLogSoftmax, {x}, AxisDtypeAttrs{1, {}}))
      .output(c.add(Op::kArgmin, {x}, ArgAttrs{1, false}));
  c.output(c.add(Op::kGroupNorm, {x, c.weights("g", {4}), c.weights("h", {4})}, GroupNormAttrs{2, 1e-5}));
  c.output(c.add(Op::kRmsNorm, {x, c.weights("r", {6})}, NormAttrs{1, {}}));
  c.output(c.add(Op::kTril, {x}, DiagonalAttrs{1})).output(c.add(Op::kSelect, {x}, SelectAttrs{1, 2}));
  c.output(c.add(Op::kStack, {x, x}, AxisAttrs{1}))
      .output(c.add(Op::kIndex, {x, ValueId(), i, i}, NoAttrs{}));
  c.output(c.add(Op::kAdaptiveAvgPool, {x}, ShapeAttrs{{4}}))
      .output(c.add(Op::kAdaptiveAvgPool, {x}, ShapeAttrs{{3}}));
  changed_by(decompose, c.graph);
}

TEST_CASE("writes to parts of one axis become one concatenation of what is left", "[passes][decompose]") {
  Case c;
  ValueId x = c.input("x", {2, 5});
  x = c.add(Op::kSliceScatter, {x, c.input("a", {2, 1})}, SliceAttrs{1, 1, 2, 1});
  x = c.add(Op::kSliceScatter, {x, c.input("b", {2, 2})}, SliceAttrs{1, 2, 4, 1});
  x = c.add(Op::kSliceScatter, {x, c.input("d", {2, 1})}, SliceAttrs{1, 1, 2, 1});
  const std::optional<Graph> after = decompose(c.output(x).graph);
  REQUIRE(after.has_value());
  const std::span<const ValueId> parts = after->operands(after->nodes().back());
  CHECK(parts.size() == 4);
  CHECK(after->value(parts[1]).name == "d");
  CHECK(after->value(parts[2]).name == "b");
  const std::vector<std::vector<double>> given{
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {10, 20}, {11, 12, 13, 14}, {30, 40}};
  require_same(results_of(*after, given), {{0, 30, 11, 12, 4, 5, 40, 13, 14, 9}});
}

TEST_CASE("parts of one tensor that are written beside each other are read at once", "[passes][decompose]") {
  Case c;
  const ValueId x = c.input("x", {6}), y = c.input("y", {6});
  ValueId z =
      c.add(Op::kSliceScatter, {x, c.add(Op::kSlice, {y}, SliceAttrs{0, 2, 4, 1})}, SliceAttrs{0, 2, 4, 1});
  z = c.add(Op::kSliceScatter, {z, c.add(Op::kSlice, {y}, SliceAttrs{0, 4, 6, 1})}, SliceAttrs{0, 4, 6, 1});
  const std::optional<Graph> after = decompose(c.output(z).graph);
  REQUIRE(after.has_value());
  CHECK(after->operands(after->nodes().back()).size() == 2);
  require_same(results_of(*after, {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}}), {{0, 1, 8, 9, 10, 11}});
}

}  // namespace
}  // namespace tosaic::passes
