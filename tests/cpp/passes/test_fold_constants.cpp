#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

std::size_t constant_bytes(const Graph& graph) {
  std::size_t bytes = 0;
  for (const Value& value : graph.values())
    if (value.constant) bytes += value.type.bytes();
  return bytes;
}

TEST_CASE("a value that depends on no input becomes a constant of the same name",
          "[passes][fold-constants]") {
  Case c;
  const ValueId ramp =
      c.add(Op::kArange, {}, ArangeAttrs{std::int64_t{0}, std::int64_t{4}, std::int64_t{1}, DType::kF32});
  const ValueId half = c.add(Op::kMul, {ramp, c.constant("half", {}, {0.5})}, "half_ramp");
  c.output(c.add(Op::kAdd, {c.input("x", {4}), half}));
  const Graph after = changed_by(fold_constants, c.graph);
  CHECK(ops_of(after) == "add");
  CHECK(after.value(after.operands(after.nodes()[0])[1]).name == "half_ramp");
}

TEST_CASE("a large broadcast is not folded if its user can broadcast", "[passes][fold-constants]") {
  Case c;
  const ValueId wide = c.add(Op::kExpand, {c.weights("row", {1, 512})}, ShapeAttrs{{256, 512}});
  c.output(c.add(Op::kAdd, {c.input("x", {256, 512}), wide}));
  CHECK_FALSE(fold_constants(c.graph).has_value());
}

TEST_CASE("a large full becomes a broadcast of one number", "[passes][fold-constants]") {
  Case c;
  const ValueId ones = c.add(Op::kFull, {}, FullAttrs{{256, 512}, 1.5, DType::kF32});
  c.output(c.add(Op::kMul, {ones, c.input("x", {256, 512})}));
  const Graph after = changed_by(fold_constants, c.graph);
  CHECK(ops_of(after) == "expand mul");
  CHECK(constant_bytes(after) == 4);
}

TEST_CASE("a large broadcast is computed for a node that is folded", "[passes][fold-constants]") {
  Case c;
  const ValueId ones = c.add(Op::kFull, {}, FullAttrs{{256, 512}, 1.0, DType::kF32});
  const ValueId mask = c.add(Op::kTril, {ones}, DiagonalAttrs{0});
  c.output(c.add(Op::kMul, {mask, c.input("x", {256, 512})}));
  CHECK(ops_of(changed_by(fold_constants, c.graph)) == "mul");
}

TEST_CASE("a large broadcast is folded if it determines the shape of its user, or is an output",
          "[passes][fold-constants]") {
  Case c;
  const ValueId wide = c.add(Op::kExpand, {c.weights("row", {1, 512})}, ShapeAttrs{{256, 512}});
  c.output(c.add(Op::kAdd, {wide, c.input("x", {256, 1})})).output(wide);
  CHECK(ops_of(changed_by(fold_constants, c.graph)) == "add");
}

TEST_CASE("operands without data are not folded", "[passes][fold-constants]") {
  Case c;
  auto unbound = std::make_shared<Constant>();
  unbound->name = "w";
  unbound->shape = {3};
  c.output(c.add(Op::kNeg, {c.graph.add_constant(unbound)}));
  CHECK_FALSE(fold_constants(c.graph).has_value());
}

TEST_CASE("a chain of 10,000 constant nodes folds to one constant", "[passes][fold-constants]") {
  Case c;
  ValueId x = c.constant("one", {1}, {1});
  for (int i = 0; i < 10000; ++i) x = c.add(Op::kNeg, {x});
  const Graph after = changed_by(fold_constants, c.output(x).graph);
  CHECK(after.nodes().empty());
  CHECK(after.values().size() == 1);
}

}  // namespace
}  // namespace tosaic::passes
