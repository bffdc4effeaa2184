#include "tosaic/passes/legalize_tosa/join_axes.h"

#include "passes/pass_case.h"

namespace tosaic::passes {
namespace {

const Shape kEight = {2, 3, 1, 2, 2, 2, 1, 2};

// A graph at stage tosa. Its input of 96 elements becomes a value of 8 axes.
struct TosaCase : Case {
  ValueId x;
  TosaCase() {
    graph.stage = Stage::kTosa;
    x = add(Op::kTosaReshape, {input("x", {96})}, ShapeAttrs{kEight}, "x.reshape");
  }
  TosaCase& flat(ValueId value) {
    const Shape shape = {num_elements(graph.type(value).shape)};
    output(add(Op::kTosaReshape, {value}, ShapeAttrs{shape}));
    return *this;
  }
};

// As changed_by(), but the graph before it is not valid: it has values of 8 axes.
Graph joined(const Graph& graph, const char* target = "TOSA-1.0+INT+FP") {
  const std::optional<Graph> after = join_axes(graph, target::parse_target(target));
  REQUIRE(after);
  verify(*after);
  for (const Value& value : after->values()) CHECK(value.type.rank() <= 6);
  CHECK_FALSE(join_axes(*after, target::parse_target(target)));
  require_same(results_of(graph), results_of(*after));
  return *after;
}

TEST_CASE("elementwise operators compute over axes with the same broadcasts", "[passes][join-axes]") {
  TosaCase c;
  const ValueId b = c.weights("b", {1, 1, 1, 2, 2, 1, 1, 1});
  c.flat(c.add(Op::kTosaAdd, {c.x, b}));
  const Graph after = joined(c.graph);
  CHECK(ops_of(after) == "tosa.reshape tosa.reshape tosa.reshape tosa.add tosa.reshape");
  CHECK(after.type(after.find_value("tosa.add")).shape == Shape{6, 4, 4});
}

TEST_CASE("an operand that broadcasts along too many axes is repeated", "[passes][join-axes]") {
  TosaCase c;
  const ValueId a = c.add(Op::kTosaReshape, {c.x}, ShapeAttrs{{2, 3, 2, 2, 2, 2}}, "a");
  const ValueId all = c.add(Op::kTosaReshape, {a}, ShapeAttrs{{2, 3, 2, 2, 2, 2, 1}}, "all");
  c.flat(c.add(Op::kTosaMul, {all, c.weights("b", {1, 3, 1, 2, 1, 2, 3})}));
  CHECK(ops_of(joined(c.graph)).find("tosa.tile") != std::string::npos);
}

TEST_CASE("reductions have one axis in front of theirs and one behind", "[passes][join-axes]") {
  TosaCase c;
  c.flat(c.add(Op::kTosaReduceMax, {c.x}, TosaAxisNanAttrs{3, NanMode::kPropagate}));
  const Graph after = joined(c.graph);
  CHECK(after.type(after.find_value("tosa.reduce_max")).shape == Shape{6, 1, 8});
}

TEST_CASE("slices and pads of all axes are two operators", "[passes][join-axes]") {
  TosaCase c;
  const Dims ones = Dims::filled(8, 1);
  const ValueId padded = c.add(Op::kTosaPad, {c.x}, TosaPadAttrs{ones, ones, Scalar(7.0)});
  c.flat(c.add(Op::kTosaSlice, {padded}, TosaSliceAttrs{ones, Dims::filled(8, 2)}));
  const std::string ops = ops_of(joined(c.graph));
  CHECK(ops.find("tosa.pad tosa.reshape tosa.pad") != std::string::npos);
  CHECK(ops.find("tosa.slice tosa.reshape tosa.slice") != std::string::npos);
}

TEST_CASE("integers move in halves on a target without integers", "[passes][join-axes]") {
  TosaCase c;
  const ValueId whole = c.add(Op::kTosaCast, {c.x}, CastAttrs{DType::kI32});
  const ValueId wide =
      c.add(Op::kTosaMul, {whole, c.constant("k", Dims::filled(8, 1), {20000001}, DType::kI32)});
  const ValueId reduced = c.add(Op::kTosaReduceMax, {wide}, TosaAxisNanAttrs{1, NanMode::kPropagate});
  c.flat(c.add(Op::kTosaCast, {reduced}, CastAttrs{DType::kF32}));
  const Graph after = joined(c.graph, "TOSA-1.0+FP");
  for (const Node& node : after.nodes())
    if (node.op == Op::kTosaReshape) CHECK(after.type(after.result(node)).dtype == DType::kF32);
}

TEST_CASE("values of branches have fewer axes, too", "[passes][join-axes]") {
  TosaCase c;
  const auto branch = [](Op op) {
    Case inner;
    inner.graph.stage = Stage::kTosa;
    inner.output(inner.add(op, {inner.input("y", kEight)}));
    return std::make_shared<const Graph>(inner.graph);
  };
  const ValueId yes = c.input("yes", tensor(DType::kBool, {}));
  const ValueId operands[] = {yes, c.x};
  const TensorType type = c.graph.type(c.x);
  const NodeId node = c.graph.add_node(Op::kTosaCondIf, share(NoAttrs{}), operands, std::span(&type, 1),
                                       leaf("cond"), "cond", {branch(Op::kTosaAbs), branch(Op::kTosaCeil)});
  c.flat(c.graph.result(c.graph.node(node)));
  joined(c.graph);
}

TEST_CASE("a foreign operator of more axes is refused", "[passes][join-axes]") {
  TosaCase c;
  const TensorType type = c.graph.type(c.x);
  const NodeId node = c.graph.add_node(Op::kTosaCustom, share(TosaCustomAttrs{"op", "domain", ""}),
                                       std::span(&c.x, 1), std::span(&type, 1), leaf("op"), "op");
  c.flat(c.graph.result(c.graph.node(node)));
  CHECK_THROWS_WITH(join_axes(c.graph, target::parse_target("TOSA-1.0+FP")),
                    Catch::Contains("operator 'tosa.custom' has too many axes: expected at most 6"));
}

}  // namespace
}  // namespace tosaic::passes
