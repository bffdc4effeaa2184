
#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

TEST_CASE("chains of views become one view, chains of permutes one permute", "[passes][simplify]") {
  Case c;
  const ValueId x = c.input("x", {2, 3, 4});
  const ValueId view =
      c.add(Op::kReshape, {c.add(Op::kReshape, {x}, ShapeAttrs{{6, 4}})}, ShapeAttrs{{2, 12}});
  const ValueId turned =
      c.add(Op::kPermute, {c.add(Op::kPermute, {x}, PermuteAttrs{{1, 2, 0}})}, PermuteAttrs{{1, 0, 2}});
  const Graph after = changed_by(simplify, c.output(view).output(turned).graph);
  CHECK(ops_of(after) == "reshape permute");
}

TEST_CASE("identities are removed and their users read the operand", "[passes][simplify]") {
  Case c;
  ValueId x = c.add(Op::kExp, {c.input("x", {2, 3})});
  x = c.add(Op::kClone, {x});
  x = c.add(Op::kCast, {x}, CastAttrs{DType::kF32});
  x = c.add(Op::kMul, {x, c.constant("one", {}, {1})});
  x = c.add(Op::kDiv, {x, c.constant("one", {}, {1})}, DivAttrs{});
  x = c.add(Op::kSlice, {x}, SliceAttrs{1, 0, 3, 1});
  CHECK(ops_of(changed_by(simplify, c.output(c.add(Op::kNeg, {x})).graph)) == "exp neg");
}

TEST_CASE("a rounding division by one is not removed", "[passes][simplify]") {
  Case c;
  const ValueId x = c.input("x", {3});
  c.output(c.add(Op::kDiv, {x, c.constant("one", {}, {1})}, DivAttrs{DivRounding::kFloor}));
  CHECK_FALSE(simplify(c.graph).has_value());
}

TEST_CASE("an addition of zero to floats is not removed, since it changes the sign of -0",
          "[passes][simplify]") {
  Case c;
  c.output(c.add(Op::kAdd, {c.input("x", {3}), c.constant("zero", {}, {0})}));
  CHECK_FALSE(simplify(c.graph).has_value());
}

TEST_CASE("a broadcast is removed if its user broadcasts anyway", "[passes][simplify]") {
  Case c;
  const ValueId wide = c.add(Op::kExpand, {c.input("x", {1, 3})}, ShapeAttrs{{2, 3}});
  c.output(c.add(Op::kAdd, {wide, c.input("y", {2, 3})}));
  CHECK(ops_of(changed_by(simplify, c.graph)) == "add");
}

TEST_CASE("of two broadcasts, one remains to determine the shape", "[passes][simplify]") {
  Case c;
  const ValueId a = c.add(Op::kExpand, {c.input("x", {1, 3})}, ShapeAttrs{{2, 3}});
  const ValueId b = c.add(Op::kExpand, {c.input("y", {1, 3})}, ShapeAttrs{{2, 3}});
  CHECK(ops_of(changed_by(simplify, c.output(c.add(Op::kAdd, {a, b})).graph)) == "expand add");
}

TEST_CASE("an addition becomes the bias of the linear layer before it, with both origins",
          "[passes][simplify]") {
  Case c;
  const ValueId product = c.add(Op::kLinear, {c.input("x", {2, 3}), c.weights("w", {4, 3}), ValueId()});
  c.output(c.add(Op::kAdd, {product, c.weights("b", {4})}));
  const Graph after = changed_by(simplify, c.graph);
  CHECK(ops_of(after) == "linear");
  CHECK(leaves(after.nodes()[0].origin).size() == 2);
  CHECK(after.node_name(after.nodes()[0]) == "add");
}

TEST_CASE("a linear layer with another reader is not merged with the addition", "[passes][simplify]") {
  Case c;
  const ValueId product = c.add(Op::kLinear, {c.input("x", {2, 3}), c.weights("w", {4, 3}), ValueId()});
  c.output(c.add(Op::kAdd, {product, c.weights("b", {4})})).output(product);
  CHECK_FALSE(simplify(c.graph).has_value());
}

TEST_CASE("a slice of a concatenation reads the part that has its elements", "[passes][simplify]") {
  Case c;
  const ValueId x = c.input("x", {2, 3}), y = c.add(Op::kExp, {c.input("y", {2, 4})});
  const ValueId both = c.add(Op::kCat, {x, y}, AxisAttrs{1});
  c.output(c.add(Op::kSlice, {both}, SliceAttrs{1, 4, 7, 2}));
  c.output(c.add(Op::kSelect, {both}, SelectAttrs{1, 2}));
  const Graph after = changed_by(simplify, c.graph);
  CHECK(ops_of(after) == "exp slice select");
  const std::vector<Node> nodes(after.nodes().begin(), after.nodes().end());
  CHECK(Graph::attrs<SliceAttrs>(nodes[1]) == SliceAttrs{1, 1, 4, 2});
  CHECK(after.value(after.operands(nodes[2])[0]).name == "x");
}

TEST_CASE("an element of a stack is the operand that was stacked", "[passes][simplify]") {
  Case c;
  const ValueId x = c.input("x", {2, 3}), y = c.add(Op::kExp, {c.input("y", {2, 3})});
  const ValueId both = c.add(Op::kStack, {x, y}, AxisAttrs{1});
  c.output(c.add(Op::kSelect, {both}, SelectAttrs{1, 1}));
  c.output(c.add(Op::kSelect, {both}, SelectAttrs{0, 1}));
  const Graph after = changed_by(simplify, c.graph);
  CHECK(ops_of(after) == "exp stack select");
  CHECK(after.producer(after.outputs()[0].value)->op == Op::kExp);
}

TEST_CASE("a returned part of a concatenation that is constant becomes a constant, and nothing else",
          "[passes][fold_returned]") {
  Case c;
  const ValueId x = c.input("x", {2, 3});
  const ValueId both = c.add(Op::kCat, {x, c.constant("k", {2, 1}, {7, 8})}, AxisAttrs{1});
  c.output(c.add(Op::kSlice, {both}, SliceAttrs{1, 3, 4, 1}))
      .output(c.add(Op::kReshape, {both}, ShapeAttrs{{8}}));
  c.output(c.add(Op::kSlice, {both}, SliceAttrs{1, 0, 2, 1}));
  const Graph after = changed_by(fold_returned, c.graph);
  CHECK(ops_of(after) == "cat reshape slice");
  const ConstantRef known = after.value(after.outputs()[0].value).constant;
  REQUIRE(known != nullptr);
  CHECK(Elements(*known).as_double(1) == 8);
  CHECK_FALSE(fold_returned(after).has_value());
}

TEST_CASE("a slice of a concatenation that reads several parts stays", "[passes][simplify]") {
  Case c;
  const ValueId both = c.add(Op::kCat, {c.input("x", {2, 3}), c.input("y", {2, 4})}, AxisAttrs{1});
  c.output(c.add(Op::kSlice, {both}, SliceAttrs{1, 2, 4, 1}));
  c.output(c.add(Op::kSlice, {both}, SliceAttrs{0, 1, 2, 1}));
  CHECK_FALSE(simplify(c.graph).has_value());
}

TEST_CASE("a slice behind writes to other parts reads what was written to its own", "[passes][simplify]") {
  Case c;
  const ValueId x = c.input("x", {5, 2}), y = c.input("y", {2, 2});
  ValueId z = c.add(Op::kSliceScatter, {x, y}, SliceAttrs{0, 1, 3, 1}, "first");
  z = c.add(Op::kSliceScatter, {z, c.input("w", {1, 2})}, SliceAttrs{0, 4, 5, 1});
  c.output(c.add(Op::kSelect, {z}, SelectAttrs{0, 2}, "inside"));
  c.output(c.add(Op::kSlice, {z}, SliceAttrs{0, 3, 4, 1}, "outside"));
  c.output(c.add(Op::kSlice, {z}, SliceAttrs{0, 2, 4, 1}, "both"));
  const std::optional<Graph> after = simplify(c.graph);
  REQUIRE(after.has_value());
  const auto read_by = [&](const std::string& name) {
    const Node* node = after->producer(after->find_value(name));
    return after->value(after->operands(*node)[0]).name;
  };
  CHECK(read_by("inside") == "y");
  CHECK(read_by("outside") == "x");
  CHECK(read_by("both") == "first");
}

TEST_CASE("a comparison of integers with themselves is known, and one of floats is not",
          "[passes][simplify]") {
  Case c;
  const ValueId x = c.input("x", {2, 3});
  const ValueId whole = c.add(Op::kCast, {x}, CastAttrs{DType::kI32});
  for (const Op op : {Op::kEq, Op::kLt, Op::kNe}) c.output(c.add(op, {whole, whole}));
  c.output(c.add(Op::kNe, {x, x}));
  const std::optional<Graph> after = simplify(c.graph);
  REQUIRE(after.has_value());
  CHECK(ops_of(*after) == "ne");
  require_same(results_of(*after, {{1, 2, 3, 4, 5, 6}}),
               {{1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}});
}

TEST_CASE("a chain of 10,000 views becomes one node", "[passes][simplify]") {
  Case c;
  ValueId x = c.input("x", {2, 3});
  for (int i = 0; i < 10000; ++i)
    x = c.add(Op::kReshape, {x}, ShapeAttrs{i % 2 == 0 ? Shape{3, 2} : Shape{6}});
  CHECK(ops_of(changed_by(simplify, c.output(x).graph)) == "reshape");
}

}  // namespace
}  // namespace tosaic::passes
