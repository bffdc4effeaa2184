#include "passes/pass_case.h"
#include "tosaic/passes/pattern.h"

namespace tosaic::passes {
namespace {

const ReduceAttrs kRows{{1}, true, std::nullopt};

ValueId number(Case& c, double value) { return c.constant("number", {}, {value}); }

// x / sqrt(mean(x^2) + eps) of the rows of x.
ValueId norm(Case& c, ValueId x, const ReduceAttrs& rows = kRows, std::int64_t alpha = 1) {
  const ValueId power = c.add(Op::kMean, {c.add(Op::kMul, {x, x}, "square")}, rows, "power");
  const ValueId sum = c.add(Op::kAdd, {power, number(c, 0.5)}, AlphaAttrs{alpha}, "sum");
  return c.add(Op::kMul, {x, c.add(Op::kRsqrt, {sum}, "rsqrt")}, "norm");
}

TEST_CASE("a norm has the name of its last node and the origins of all", "[passes][fuse-composites]") {
  Case c;
  const ValueId y = norm(c, c.input("x", {3, 4}));
  const Graph after = changed_by(fuse_composites, c.output(y).graph);
  CHECK(ops_of(after) == "rms_norm");
  CHECK(after.node_name(after.nodes()[0]) == "norm");
  CHECK(leaves(after.nodes()[0].origin).size() == 5);
  CHECK(Graph::attrs<NormAttrs>(after.nodes()[0]).eps == 0.5);
}

TEST_CASE("attributes that change the expression prevent it", "[passes][fuse-composites]") {
  Case alpha, dropped;
  CHECK_FALSE(
      fuse_composites(alpha.output(norm(alpha, alpha.input("x", {3, 4}), kRows, 2)).graph).has_value());
  const ValueId y = norm(dropped, dropped.input("x", {4, 4}), {{1}, false, std::nullopt});
  CHECK_FALSE(fuse_composites(dropped.output(y).graph).has_value());
}

TEST_CASE("a variance with a correction scales a layer norm", "[passes][fuse-composites]") {
  for (const double correction : {0.0, 1.0}) {
    Case c;
    const ValueId x = c.input("x", {3, 4});
    const ValueId centred = c.add(Op::kSub, {x, c.add(Op::kMean, {x}, kRows, "mean")}, "centred");
    const ValueId var = c.add(Op::kVar, {x}, VarAttrs{{1}, true, correction}, "var");
    const ValueId root = c.add(Op::kSqrt, {c.add(Op::kAdd, {var, number(c, 0.5)}, "sum")}, "root");
    const Graph after = changed_by(fuse_composites, c.output(c.add(Op::kDiv, {centred, root}, "norm")).graph);
    CHECK(ops_of(after) == "layer_norm");
    const Node& norm = after.nodes()[0];
    CHECK(Graph::attrs<NormAttrs>(norm).eps == Approx(correction == 0.0 ? 0.5 : 0.375));
    CHECK(after.operands(norm)[1].valid() == (correction == 1.0));
  }
}

TEST_CASE("a variance of as many elements as its correction is not a norm", "[passes][fuse-composites]") {
  Case c;
  const ValueId x = c.input("x", {3, 1});
  const ValueId centred = c.add(Op::kSub, {x, c.add(Op::kMean, {x}, kRows, "mean")}, "centred");
  const ValueId std = c.add(Op::kStd, {x}, VarAttrs{{1}, true, 1.0}, "std");
  CHECK_FALSE(fuse_composites(c.output(c.add(Op::kDiv, {centred, std}, "norm")).graph).has_value());
}

// x / max(length of x, eps), where the quotient may read an expanded length
TEST_CASE("a quotient by a length is a norm with another weight", "[passes][fuse-composites]") {
  for (const double eps : {1e-12, 0.1}) {
    Case c;
    const ValueId x = c.input("x", {3, 4});
    const ValueId length = c.add(Op::kVectorNorm, {x}, VectorNormAttrs{2, {1}, true, std::nullopt}, "length");
    const ValueId bounded = c.add(Op::kClamp, {length}, ClampAttrs{eps, std::nullopt}, "bounded");
    const ValueId expanded = c.add(Op::kExpand, {bounded}, ShapeAttrs{{3, 4}}, "expanded");
    const Graph& graph = c.output(c.add(Op::kDiv, {x, expanded}, "norm")).graph;
    if (eps == 0.1) {
      CHECK_FALSE(fuse_composites(graph).has_value());
      continue;
    }
    const Graph after = fuse_composites(graph).value();
    verify(after);
    CHECK(ops_of(after) == "rms_norm");
    CHECK(Elements(*after.value(after.operands(after.nodes()[0])[1]).constant).as_double(3) == 0.5);
  }
}

ValueId length_of(Case& c, ValueId x, std::int64_t axis) {
  const ValueId squares = c.add(Op::kMul, {x, x}, "squares");
  return c.add(Op::kSqrt, {c.add(Op::kSum, {squares}, ReduceAttrs{{axis}, true, std::nullopt}, "sum")},
               "length");
}

// x / length of expanded x, where the axis is another one in the expanded shape
TEST_CASE("a norm of an expanded row reduces the row itself", "[passes][fuse-composites]") {
  for (const std::int64_t axis : {1, 2}) {
    Case c;
    const ValueId x = c.input("x", {1, 4});
    const ValueId expanded = c.add(Op::kExpand, {x}, ShapeAttrs{{3, 4, 4}}, "expanded");
    const ValueId length = length_of(c, expanded, axis);
    const Graph& graph = c.output(c.add(Op::kDiv, {x, length}, "norm")).graph;
    if (axis == 1) {  // x repeats along it
      CHECK_FALSE(fuse_composites(graph).has_value());
      continue;
    }
    CHECK(ops_of(changed_by(fuse_composites, graph)) == "rms_norm expand");
  }
}

TEST_CASE("a norm that broadcasts against its row is expanded", "[passes][fuse-composites]") {
  Case c;
  const ValueId x = c.input("x", {5, 5});
  const ValueId length = length_of(c, x, 1);
  const ValueId expanded = c.add(Op::kExpand, {length}, ShapeAttrs{{2, 5, 1}}, "expanded");
  const Graph& graph = c.output(c.add(Op::kDiv, {x, expanded}, "norm")).graph;
  CHECK(ops_of(changed_by(fuse_composites, graph)) == "rms_norm expand");
}

TEST_CASE("a centred row with another reader leaves a norm of what is centred", "[passes][fuse-composites]") {
  Case c;
  const ValueId x = c.input("x", {3, 4});
  const ValueId centred = c.add(Op::kSub, {x, c.add(Op::kMean, {x}, kRows, "mean")}, "centred");
  const Graph after = changed_by(fuse_composites, c.output(norm(c, centred)).output(centred).graph);
  CHECK(ops_of(after) == "mean sub rms_norm");
}

TEST_CASE("a weight of another shape than the rows stays a product", "[passes][fuse-composites]") {
  Case c;
  const ValueId y = norm(c, c.input("x", {3, 4}));
  const ValueId weighted = c.add(Op::kMul, {y, c.weights("w", {3, 1})}, "weighted");
  CHECK(ops_of(changed_by(fuse_composites, c.output(weighted).graph)) == "rms_norm mul");
}

TEST_CASE("a factor that is spread over products and quotients is one factor", "[passes][pattern]") {
  Case c;
  const ValueId x = c.input("x", {3});
  const ValueId quarter = c.add(Op::kDiv, {x, number(c, 4.0)}, "quarter");
  const ValueId three = c.add(Op::kMul, {number(c, 12.0), quarter}, "three");
  const Graph& graph = c.output(three).graph;
  const std::optional<Match> found = match(graph, scaled(3.0, value(0)), three);
  REQUIRE(found.has_value());
  CHECK(found->values[0] == x);
  CHECK(found->nodes.size() == 2);
  CHECK_FALSE(match(graph, scaled(2.0, value(0)), three).has_value());
}

TEST_CASE("a slot that occurs twice is one value", "[passes][pattern]") {
  Case c;
  const ValueId x = c.input("x", {3}), y = c.input("y", {3});
  const ValueId square = c.add(Op::kMul, {x, x}, "square"), product = c.add(Op::kMul, {x, y}, "product");
  const Graph& graph = c.output(square).output(product).graph;
  const Pattern pattern = node(Op::kMul, {value(0), value(0)});
  CHECK(match(graph, pattern, square).has_value());
  CHECK_FALSE(match(graph, pattern, product).has_value());
}

}  // namespace
}  // namespace tosaic::passes
