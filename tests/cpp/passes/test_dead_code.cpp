#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

TEST_CASE("nodes and constants that no output needs are removed, inputs are not", "[passes][dead-code]") {
  Case c;
  const ValueId x = c.input("x", {2}), unused = c.input("unused", {2});
  c.add(Op::kMul, {unused, c.weights("w", {2})});
  const Graph after = changed_by(dead_code, c.output(c.add(Op::kNeg, {x})).graph);
  CHECK(ops_of(after) == "neg");
  CHECK(after.inputs().size() == 2);
  CHECK(after.values().size() == 3);
}

TEST_CASE("the names of remaining nodes and constants do not change", "[passes][dead-code]") {
  Case c;
  const ValueId x = c.add(Op::kExp, {c.input("x", {2})}, "w");  // the constant below wants this name too
  c.add(Op::kNeg, {x});
  const ValueId w = c.weights("w", {2});
  const std::string name = c.graph.value(w).name;
  const Graph after = changed_by(dead_code, c.output(c.add(Op::kMul, {w, x}, "y")).graph);
  CHECK(after.node_name(after.nodes()[0]) == "w");
  CHECK(after.value(after.operands(after.nodes()[1])[0]).name == name);
}

TEST_CASE("opaque nodes without results are not removed, nor are their operands", "[passes][dead-code]") {
  Case c;
  const ValueId x = c.input("x", {2});
  c.add(Op::kNeg, {x});
  const std::vector<ValueId> read{c.add(Op::kExp, {x})};
  c.graph.add_node(Op::kOpaque, share(OpaqueAttrs{"print", "[]"}), read, {}, leaf("print"), "print");
  c.output(c.add(Op::kMul, {x, c.weights("w", {2})}));
  const std::optional<Graph> after = dead_code(c.graph);
  REQUIRE(after.has_value());
  verify(*after);
  CHECK(ops_of(*after) == "exp opaque mul");
}

}  // namespace
}  // namespace tosaic::passes
