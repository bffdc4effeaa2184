#include <limits>

#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Legalizes with the dim orders of the layout plan.
Graph legalized(Case& c, const std::vector<std::vector<double>>& elements = {}) {
  const std::optional<Graph> ordered = assign_dim_order(c.graph);
  return changed_by([](const Graph& graph) { return legalize_tosa(graph); }, ordered ? *ordered : c.graph,
                    elements);
}

std::int64_t range_max(const Graph& graph, std::size_t input) {
  return graph.inputs()[input].boundary.range_max;
}

TEST_CASE("padding and input are cut to what the last window reads", "[passes][legalize-tosa]") {
  Case c;
  const ConvAttrs attrs{{2, 3}, {1, 0}, {1, 0}, {1, 1}, {0, 0}, 1, false};
  c.output(c.add(Op::kConv, {c.input("x", {1, 2, 6, 7}), c.weights("w", {4, 2, 3, 2}), ValueId()}, attrs));
  const Graph after = legalized(c);
  for (const Node& node : after.nodes())
    if (node.op == Op::kTosaConv2d) CHECK(Graph::attrs<TosaConvAttrs>(node).pad == Dims{1, 0, 0, 0});
  CHECK(ops_of(after).find("tosa.slice") != std::string::npos);
}

TEST_CASE("legalizing grouped, depthwise and transposed convolutions does not change results",
          "[passes][legalize-tosa]") {
  for (const bool transposed : {false, true})
    for (const std::int64_t groups : {1, 2, 4}) {
      Case c;
      const Shape weight = transposed ? Shape{4, 8 / groups, 3, 2} : Shape{8, 4 / groups, 3, 2};
      const ConvAttrs attrs{{2, 1}, {2, 1}, {2, 1}, {1, 2}, {transposed ? 1 : 0, 0}, groups, transposed};
      c.output(
          c.add(Op::kConv, {c.input("x", {2, 4, 6, 7}), c.weights("w", weight), c.weights("b", {8})}, attrs));
      legalized(c);
    }
}

// The graph with one convolution of x (2, 3, 13, 11), legalized, which has no stride above 3.
Graph without_large_strides(const Shape& weight, const ConvAttrs& attrs, DType dtype) {
  Case c;
  const Shape shape{2, 3, 13, 11};
  if (dtype == DType::kF32) {
    c.output(c.add(Op::kConv, {c.input("x", shape), c.weights("w", weight), ValueId()}, attrs));
  } else {
    std::vector<double> values;
    for (std::int64_t i = 0; i < num_elements(weight); ++i) values.push_back(static_cast<double>(i % 23) - 9);
    c.output(c.add(Op::kIntegerConv,
                   {c.input("x", tensor(dtype, shape)), c.constant("w", weight, values, dtype), ValueId()},
                   IntegerConvAttrs{attrs, 3, -2}));
    c.graph.stage = Stage::kInteger;
  }
  Graph after = legalized(c);
  for (const Node& node : after.nodes()) {
    if (node.op != Op::kTosaConv2d) continue;
    for (const std::int64_t stride : Graph::attrs<TosaConvAttrs>(node).stride) CHECK(stride <= 3);
  }
  return after;
}

TEST_CASE("strides above 3 become channels, and results stay", "[passes][legalize-tosa]") {
  for (const DType dtype : {DType::kF32, DType::kI8})
    for (const Dims& stride : {Dims{4, 4}, Dims{5, 1}, Dims{2, 4}, Dims{6, 5}})
      for (const std::int64_t factor : {1, 2})
        for (const std::int64_t pad : {0, 1}) {
          const Shape weight{4, 3, factor * stride[0], stride[1]};
          CAPTURE(stride[0], stride[1], factor, pad);
          without_large_strides(weight, {stride, {pad, 0}, {pad, pad}, {1, 1}, {0, 0}, 1, false}, dtype);
        }
  // Windows that skip elements, and kernels that are no multiples of the stride: integers only.
  for (const std::int64_t kernel : {1, 3, 5, 7})
    without_large_strides({4, 3, kernel, kernel}, {{4, 4}, {1, 1}, {1, 0}, {1, 1}, {0, 0}, 1, false},
                          DType::kI8);
}

TEST_CASE("average pools count padding as torch does", "[passes][legalize-tosa]") {
  for (const bool ceil_mode : {false, true})
    for (const bool counted : {false, true})
      for (const std::optional<std::int64_t> divisor :
           {std::optional<std::int64_t>(), std::optional<std::int64_t>(5)}) {
        Case c;
        c.output(c.add(Op::kAvgPool, {c.input("x", {1, 2, 6, 7})},
                       PoolAttrs{{3, 2}, {2, 2}, {1, 1}, {1, 1}, ceil_mode, counted, divisor}));
        legalized(c);
      }
}

TEST_CASE("powers of negative bases, zero and infinity are as in torch", "[passes][legalize-tosa]") {
  Case c;
  const std::vector<double> a{-2, -2, -2, 0, 0, 0, kInf, -3, 1, 2}, b{2, 3, 0.5, 0, -1, 2, -1, -1, kInf, 0.5};
  c.output(c.add(Op::kPow, {c.input("a", {10}), c.input("b", {10})}));
  legalized(c, {a, b});
}

TEST_CASE("rounded divisions are exact although the reciprocal is not", "[passes][legalize-tosa]") {
  for (const DivRounding rounding : {DivRounding::kFloor, DivRounding::kTrunc}) {
    Case c;
    c.output(c.add(Op::kDiv, {c.input("a", {4}), c.input("b", {4})}, DivAttrs{rounding}));
    legalized(c, {{49, -49, 7, 5}, {49, 49, -2, 0}});
  }
}

TEST_CASE("the range of each integer input follows from the operators that depend on it",
          "[passes][legalize-tosa]") {
  Case c;
  const ValueId free = c.input("free", tensor(DType::kI64, {3})),
                bound = c.input("bound", tensor(DType::kI64, {3}));
  c.output(free).output(c.add(Op::kMul, {bound, c.constant("k", {}, {1000}, DType::kI64)}));
  const Graph after = legalized(c);
  CHECK(range_max(after, 0) == (std::int64_t{1} << 31) - 1);
  CHECK(range_max(after, 1) == 2147483);  // 2147484 * 1000 does not fit i32
}

TEST_CASE("sums of i32, which must not wrap in TOSA, narrow the ranges of their inputs too",
          "[passes][legalize-tosa]") {
  Case c;
  const ValueId a = c.input("a", tensor(DType::kI32, {3})), b = c.input("b", tensor(DType::kI32, {3}));
  c.output(c.add(Op::kAdd, {a, a})).output(c.add(Op::kMul, {b, b}));
  const Graph after = legalized(c);
  CHECK(range_max(after, 0) == (std::int64_t{1} << 30) - 1);
  CHECK_FALSE(after.inputs()[1].boundary.source_dtype.has_value());
}

TEST_CASE("all problems are reported at once, without the nodes that depend on them",
          "[passes][legalize-tosa]") {
  Case c;
  const ValueId x = c.input("x", {1, 2, 8, 8});
  const PoolAttrs dilated{{2, 2}, {1, 1}, {0, 0}, {2, 2}, false, true, {}};
  const ValueId y = c.add(Op::kMaxPool, {x}, dilated, "first");
  c.output(c.add(Op::kNeg, {y}, "behind")).output(c.add(Op::kMaxPool, {x}, dilated, "second"));
  try {
    static_cast<void>(legalize_tosa(c.graph));
    FAIL("nothing was refused");
  } catch (const UnsupportedOp& error) {
    const std::string text = error.what();
    CHECK(text.find("'first'") != std::string::npos);
    CHECK(text.find("'second'") != std::string::npos);
    CHECK(text.find("'behind'") == std::string::npos);
  }
}

TEST_CASE("a chain of 10,000 nodes becomes 10,000 nodes", "[passes][legalize-tosa]") {
  Case c;
  ValueId x = c.input("x", {2});
  for (int i = 0; i < 10000; ++i) x = c.add(Op::kNeg, {x});
  c.output(x);
  CHECK(legalized(c).nodes().size() == 10000);
}

}  // namespace
}  // namespace tosaic::passes
