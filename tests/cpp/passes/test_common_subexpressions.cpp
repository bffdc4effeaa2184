#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

TEST_CASE("equal nodes with equal operands become one", "[passes][common-subexpressions]") {
  Case c;
  const ValueId x = c.input("x", {2});
  const ValueId a = c.add(Op::kNeg, {c.add(Op::kExp, {x})}), b = c.add(Op::kNeg, {c.add(Op::kExp, {x})});
  CHECK(ops_of(changed_by(common_subexpressions, c.output(c.add(Op::kAdd, {a, b})).graph)) == "exp neg add");
}

TEST_CASE("small constants with equal bits become one, others do not", "[passes][common-subexpressions]") {
  Case c;
  const ValueId x = c.input("x", {2});
  const ValueId a = c.add(Op::kMul, {x, c.constant("a", {}, {0.0})}),
                b = c.add(Op::kMul, {x, c.constant("b", {}, {0.0})});
  const ValueId z = c.add(Op::kMul, {x, c.constant("z", {}, {-0.0})});
  const Graph after = changed_by(common_subexpressions, c.output(a).output(b).output(z).graph);
  CHECK(ops_of(after) == "mul mul");
}

TEST_CASE("nodes with other attributes or dim orders are not merged", "[passes][common-subexpressions]") {
  Case c;
  const ValueId x = c.input("x", {1, 2, 3, 4});
  const ValueId a = c.add(Op::kSum, {x}, ReduceAttrs{{1}, true, {}}),
                b = c.add(Op::kSum, {x}, ReduceAttrs{{2}, true, {}});
  const ValueId e = c.add(Op::kExp, {x}), f = c.add(Op::kExp, {x});
  c.graph.set_order(f, DimOrder::channels_last(4));
  CHECK_FALSE(common_subexpressions(c.output(a).output(b).output(e).output(f).graph).has_value());
}

TEST_CASE("at stage integer, a value without qparams is one with a value that has them",
          "[passes][common-subexpressions]") {
  const auto qparams = [](double scale) {
    return std::make_shared<const QParams>(QParams{
        .storage = DType::kI8, .qmin = -128, .qmax = 127, .axis = {}, .scales = {scale}, .zero_points = {0}});
  };
  for (const bool first_has : {true, false}) {
    Case c;
    const ValueId x = c.input("x", testing::tensor(DType::kI8, {2}));
    const ValueId a = c.add(Op::kNeg, {x}), b = c.add(Op::kNeg, {x}), other = c.add(Op::kNeg, {x});
    c.graph.set_qparams(first_has ? a : b, qparams(0.5));
    c.graph.set_qparams(other, qparams(0.25));
    c.output(a).output(b).output(other);
    CHECK_FALSE(common_subexpressions(c.graph).has_value());  // at stage exported
    c.graph.stage = Stage::kInteger;
    const Graph after = changed_by(common_subexpressions, c.graph);
    CHECK(ops_of(after) == "neg neg");
    const QParamsRef& kept = after.type(after.outputs()[0].value).qparams;
    REQUIRE(kept != nullptr);
    CHECK(kept->scales == std::vector<double>{0.5});
    CHECK(after.outputs()[0].value == after.outputs()[1].value);
  }
}

TEST_CASE("opaque nodes are never merged", "[passes][common-subexpressions]") {
  Case c;
  const std::vector<ValueId> read{c.input("x", {2})};
  for (int i = 0; i < 2; ++i) {
    const TensorType type = f32({2});
    const NodeId id = c.graph.add_node(Op::kOpaque, share(OpaqueAttrs{"random", "[]"}), read,
                                       std::span(&type, 1), leaf("r"), "r");
    c.output(c.graph.result(c.graph.node(id)));
  }
  CHECK_FALSE(common_subexpressions(c.graph).has_value());
}

TEST_CASE("two equal chains of 10,000 nodes become one", "[passes][common-subexpressions]") {
  Case c;
  const ValueId x = c.input("x", {1});
  ValueId a = x, b = x;
  for (int i = 0; i < 10000; ++i) {
    a = c.add(Op::kNeg, {a});
    b = c.add(Op::kNeg, {b});
  }
  CHECK(changed_by(common_subexpressions, c.output(a).output(b).graph).nodes().size() == 10000);
}

}  // namespace
}  // namespace tosaic::passes
