#include <catch2/catch.hpp>

#include "example_graphs.h"
#include "tosaic/ir/parse.h"
#include "tosaic/ir/verify.h"

namespace tosaic {
namespace {

using testing::add;
using testing::error_of;
using testing::f32;
using testing::tensor;

std::string error_in(const Graph& graph) {
  return error_of([&] { verify(graph); });
}

struct Body {
  std::string lines;
  std::string stage = "exported";
  std::string trailer = {};
};

std::string error_in(const Body& body) {
  return error_of([&] {
    static_cast<void>(parse("tosaic 1\ngraph @f stage=" + body.stage + " {\n  input %x: f32[2,3]\n" +
                            body.lines + "}\n" + body.trailer));
  });
}

// A graph with the input x: f32[2,3] and one node, which is added without any check. `operands` are value
// indices; 99 is an absent operand.
Graph with_node(Op op, Attrs attrs, std::vector<std::uint32_t> operands, const TensorType& type) {
  Graph graph;
  graph.add_input(InputKind::kUser, "x", f32({2, 3}), "");
  std::vector<ValueId> ids;
  for (const std::uint32_t operand : operands) ids.push_back(operand == 99 ? ValueId() : ValueId(operand));
  graph.add_node(op, share(std::move(attrs)), ids, std::span(&type, 1), testing::leaf("fx", "aten", 3), "n");
  return graph;
}

constexpr const char* kPlace = " (node 'fx', module 'layer1.0', my \"model\".py:3)";

TEST_CASE("valid graphs have no problems", "[ir][verify]") {
  CHECK(error_in(testing::small_graph()).empty());
  CHECK(error_in(testing::full_graph()).empty());
  CHECK(check(testing::conv_network(5)).empty());
  CHECK(error_in(Graph()).empty());
}

TEST_CASE("operand counts follow the table", "[ir][verify]") {
  CHECK(error_in(with_node(Op::kRelu, NoAttrs{}, {0, 0}, f32({2, 3}))) ==
        std::string("[verify] relu has the wrong number of operands: expected 1, got 2") + kPlace);
  CHECK(error_in(with_node(Op::kConv, ConvAttrs{}, {0}, f32({2, 3}))) ==
        std::string("[verify] conv has the wrong number of operands: expected 2 to 3, got 1") + kPlace);
  CHECK(error_in(with_node(Op::kCond, NoAttrs{}, {}, f32({2, 3}))) ==
        std::string("[verify] cond has the wrong number of operands: expected at least 1, got 0") + kPlace);
}

TEST_CASE("only optional operands may be absent", "[ir][verify]") {
  CHECK(error_in(with_node(Op::kMul, NoAttrs{}, {0, 99}, f32({2, 3}))) ==
        std::string("[verify] operand 1 (other) of mul is absent: expected a value, got none") + kPlace);
  CHECK(error_in(with_node(Op::kCat, AxisAttrs{}, {0, 99}, f32({2, 3}))) ==
        std::string("[verify] operand 1 (tensors) of cat is absent: expected a value, got none") + kPlace);
  CHECK(error_in(with_node(Op::kLayerNorm, NormAttrs{}, {0, 99, 99}, f32({2, 3}))).empty());
}

TEST_CASE("attributes have the struct of the operator", "[ir][verify]") {
  CHECK(error_in(with_node(Op::kSoftmax, AxisAttrs{1}, {0}, f32({2, 3}))) ==
        std::string("[verify] softmax has attributes of another operator: expected AxisDtypeAttrs {axis=0, "
                    "dtype=none}, got AxisAttrs {axis=1}") +
            kPlace);
}

TEST_CASE("result counts follow the table", "[ir][verify]") {
  CHECK(error_in(Body{"  () = relu(%x)\n"}) ==
        "[verify] relu has the wrong number of results: expected 1, got 0 (node 'relu')");
  CHECK(error_in(Body{"  %y: f32[3] = unbind(%x) {axis=0}\n"}) ==
        "[verify] unbind has the wrong number of results: expected 2, got 1 (node 'y')");
  CHECK(error_in(Body{"  %y: f32[1,3] = split(%x) {axis=0, sizes=[1,1]}\n"}) ==
        "[verify] split has the wrong number of results: expected 2, got 1 (node 'y')");
}

TEST_CASE("stored types equal the inferred ones", "[ir][verify]") {
  CHECK(error_in(with_node(Op::kRelu, NoAttrs{}, {0}, tensor(DType::kF16, {2, 3}))) ==
        std::string(
            "[verify] the stored type of result 'n' of relu is not the inferred one: expected f32[2,3], got "
            "f16[2,3]") +
            kPlace);
  const Graph graph = with_node(Op::kRelu, NoAttrs{}, {0}, tensor(DType::kF16, {2, 3}));
  CHECK(check(graph, {.types = false}).empty());
}

TEST_CASE("dim order and qparams are not compared with the inferred type", "[ir][verify]") {
  CHECK(error_in(Body{"  %y: f32[2,3] order(1,0) q(i8 -127..127 scale 0.5 zp 0) = relu(%x)\n"}).empty());
}

TEST_CASE("contradictory quantization parameters are found", "[ir][verify]") {
  const auto error = [](const std::string& q) {
    return error_in(Body{"  %y: f32[2,3] " + q + " = relu(%x)\n"});
  };
  const std::string start = "[verify] quantization parameters make no sense: expected ";
  CHECK(error("q(f32 0..1 scale 1.0 zp 0)") == start + "an integer storage dtype, got f32 (node 'y')");
  CHECK(error("q(i8 -128..128 scale 1.0 zp 0)") ==
        start + "a range within -128..127, got -128..128 (node 'y')");
  CHECK(error("q(i8 5..4 scale 1.0 zp 0)") == start + "a range within -128..127, got 5..4 (node 'y')");
  CHECK(error("q(i8 0..1 axis 2 scale 1.0 zp 0)") == start + "an axis of [2,3], got 2 (node 'y')");
  CHECK(error("q(i8 0..1 axis 1 scale 1.0 zp 0)") ==
        start + "3 scales and zero points, got 1 and 1 (node 'y')");
  CHECK(
      error("q(i8 0..1 axis 0 group 2 on 1 scale 1.0 zp 0)") ==
      start +
          "a group size that divides the extent of its axis, got groups of 2 on axis 1 of [2,3] (node 'y')");
  CHECK(error("q(i8 0..1 axis 0 group 3 on 1 scale 1.0 zp 0)") ==
        start + "2 scales and zero points, got 1 and 1 (node 'y')");
  CHECK(error("q(i8 0..1 scale 1.0 zp 0,0)") == start + "1 scales and zero points, got 1 and 2 (node 'y')");
  CHECK(error("q(i8 0..1 scale 0.0 zp 0)") == start + "positive finite scales, got 0.000000 (node 'y')");
  CHECK(error("q(i8 0..1 scale nan zp 0)") == start + "positive finite scales, got nan (node 'y')");
  CHECK(error("q(u8 0..255 scale 1.0 zp 300)") == start + "zero points that u8 holds, got 300 (node 'y')");
}

TEST_CASE("dim orders have the rank of their shape", "[ir][verify]") {
  CHECK(error_in(Body{"  %y: f32[2,3] order(0,2,1) = relu(%x)\n"}) ==
        "[verify] the dim order has another rank than the shape: expected rank 2, got [0,2,1] (node 'y')");
  CHECK(error_in(Body{"  input %z: f32[2] boundary(order(1,0))\n"}) ==
        "[verify] the dim order at the boundary has another rank than the shape: expected rank 1, got [1,0] "
        "(node 'z')");
  CHECK(error_in(Body{"  input %z: f32[2] boundary(range=5..1)\n"}) ==
        "[verify] the range at the boundary is empty: got 5..1 (node 'z')");
}

TEST_CASE("constants have the size of their type", "[ir][verify]") {
  auto short_one = std::make_shared<Constant>();
  short_one->name = "w";
  short_one->shape = {4};
  short_one->storage = Storage::allocate(15);
  Graph graph;
  graph.add_constant(short_one);
  CHECK(error_in(graph) == "[verify] constant 'w' has the wrong size: expected 16 bytes, got 15 (node 'w')");
}

TEST_CASE("state starts with a constant of its type", "[ir][verify]") {
  CHECK(error_in(Body{"  state %s: f32[2] initial=(buffer name=\"s\" f32[1] [0.0])\n"}) ==
        "[verify] constant 's' has another type than its value: expected f32[2], got f32[1] (node 's')");
  CHECK(error_in(Body{"  input %s: f32[1] initial=(buffer name=\"s\" f32[1] [0.0])\n"}) ==
        "[verify] only state has an initial value: got a user input (node 's')");
}

TEST_CASE("outputs and mutations refer to existing values and inputs", "[ir][verify]") {
  Graph graph = testing::small_graph();
  testing::returns(graph, ValueId(77));
  CHECK(error_in(graph) == "[verify] an output does not exist: got value 77");
  graph = testing::small_graph();
  graph.add_output({ValueId(2), OutputKind::kMutation, "b", 5, {}});
  CHECK(error_in(graph) ==
        "[verify] a mutation has no such input: expected an index below 1, got 5 (node 'relu')");
  CHECK(error_in(Body{"  %y: f32[2] = full() {shape=[2]}\n  return %y mutates=%x\n"}) ==
        "[verify] a mutation changes the type of 'x': expected f32[2,3], got f32[2] (node 'y')");
  CHECK(error_in(Body{"  return %x mutates=%x\n  return %x mutates=%x\n"}) ==
        "[verify] two outputs update the same input (node 'x')");
}

TEST_CASE("stage tosa has only tosa operators, and physical shapes", "[ir][verify]") {
  CHECK(error_in(Body{"  %y: f32[2,3] = relu(%x)\n", "tosa"}) ==
        "[verify] relu may not stand at stage tosa: expected a tosa.* operator, got relu (node 'y')");
  CHECK(error_in(Body{"  %y: f32[2,3] = tosa.tanh(%x)\n", "quantized"}) ==
        "[verify] tosa.tanh may not stand at stage quantized: expected a canonical operator, got tosa.tanh "
        "(node 'y')");
  CHECK(error_in(Body{"  %y: f32[2,3] order(1,0) = tosa.tanh(%x)\n", "tosa"}) ==
        "[verify] a value at stage tosa has a dim order: expected the identity: shapes are physical, got "
        "[1,0] (node "
        "'y')");
  CHECK(error_in(Body{"  input %z: f32[1,1,1,1,1,1,1]\n", "tosa"}) ==
        "[verify] a value at stage tosa has too many axes: expected at most 6, got f32[1,1,1,1,1,1,1] (node "
        "'z')");
  CHECK(error_in(Body{"  %y: f32[2,3] = tosa.tanh(%x)\n", "tosa"}).empty());
  const Graph foreign = with_node(Op::kTosaTanh, NoAttrs{}, {0}, f32({2, 3}));
  CHECK_THROWS_AS(verify(foreign), SpecViolation);
  CHECK(check(foreign, {.stage = false}).empty());
}

std::string region(const std::string& name, const std::string& lines, const std::string& stage = "exported") {
  return "graph @" + name + " stage=" + stage + " {\n" + lines + "}\n";
}

TEST_CASE("regions have the operands as inputs and the results as outputs", "[ir][verify]") {
  const std::string same = "input %a: f32[2,3]\nreturn %a\n";
  const auto cond = [](const std::string& first, const std::string& second) {
    return error_in(
        Body{"input %p: bool[]\n%y: f32[2,3] = cond(%p, %x) regions {\n" + first + second + "}\n"});
  };
  CHECK(cond(region("a", same), region("b", same)).empty());
  CHECK(cond(region("a", same), "") ==
        "[verify] cond has the wrong number of regions: expected 2, got 1 (node 'y')");
  CHECK(cond(region("a", same),
             region("b", "input %a: f32[2]\n%c: f32[2,3] = full() {shape=[2,3]}\nreturn %c\n")) ==
        "[verify] region 'b' takes another type as input 0: expected f32[2,3], got f32[2] (node 'y')");
  CHECK(cond(region("a", same), region("b", "input %a: f32[2,3]\n")) ==
        "[verify] region 'b' gives another number of outputs: expected 1, got 0 (node 'y')");
  CHECK(cond(region("a", "return %a\n"), region("b", same)).starts_with("[parse] unknown value"));
  CHECK(cond(region("a", same, "integer"), region("b", same)) ==
        "[verify] region 'a' stands at another stage: expected exported, got integer (node 'y')");
  CHECK(error_in(Body{"%y: f32[2,3] = cond(%x, %x) regions {\n" + region("a", same) + region("b", same) +
                      "}\n"}) ==
        "[verify] the predicate of cond is no single truth value: expected bool[], got f32[2,3] (node 'y')");
  CHECK(error_in(Body{"%y: f32[2,3] = relu(%x) regions {\n" + region("a", same) + "}\n"}) ==
        "[verify] relu has the wrong number of regions: expected 0, got 1 (node 'y')");
}

TEST_CASE("the values carried by a loop have the same types in each iteration", "[ir][verify]") {
  const std::string go_on =
      region("go_on", "input %a: f32[2,3]\n%t: bool[] = full() {value=true, dtype=bool}\nreturn %t\n");
  const std::string turn = region("turn", "input %a: f32[2,3]\nreturn %a\n");
  CHECK(error_in(Body{"%y: f32[2,3] = while_loop(%x) regions {\n" + go_on + turn + "}\n"}).empty());
  CHECK(error_in(Body{"%y: f32[2,3] = while_loop(%x) regions {\n" + turn + turn + "}\n"}) ==
        "[verify] the condition of while_loop is no single truth value: expected bool[], got f32[2,3] (node "
        "'y')");
  CHECK(error_in(Body{"%y: f32[2] = while_loop(%x) regions {\n" + go_on + turn + "}\n"}) ==
        "[verify] region 'turn' gives another type as output 0: expected f32[2], got f32[2,3] (node 'y')");
}

TEST_CASE("problems inside a region are found", "[ir][verify]") {
  const std::string bad = region("a", "input %a: f32[2,3]\n%b: f32[9] = relu(%a)\nreturn %a\n");
  CHECK(error_in(Body{"input %p: bool[]\n%y: f32[2,3] = cond(%p, %x) regions {\n" + bad + bad + "}\n"}) ==
        "[verify] the stored type of result 'b' of relu is not the inferred one: expected f32[2,3], got "
        "f32[9] (node "
        "'b')");
}

TEST_CASE("the parents of an origin are leaves", "[ir][verify]") {
  auto inner = std::make_shared<Origin>();
  inner->parents = {testing::leaf("a", "", 1), testing::leaf("b", "", 2)};
  auto outer = std::make_shared<Origin>();
  outer->parents = {inner, nullptr};
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "");
  const TensorType type = f32({2});
  graph.add_node(Op::kRelu, share(NoAttrs{}), std::span(&x, 1), std::span(&type, 1), outer, "y");
  CHECK(error_in(graph) == "[verify] the parents of an origin are not leaves (node 'y')");
}

TEST_CASE("check lists every problem in order", "[ir][verify]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "");
  const TensorType wrong = f32({3});
  graph.add_node(Op::kRelu, share(NoAttrs{}), std::span(&x, 1), std::span(&wrong, 1), nullptr, "a");
  graph.add_node(Op::kTosaTanh, share(NoAttrs{}), std::span(&x, 1), std::span(&wrong, 1), nullptr, "b");
  const std::vector<ErrorParts> problems = check(graph);
  REQUIRE(problems.size() == 3);
  CHECK(problems[0].node == "a");
  CHECK(problems[1].what == "tosa.tanh may not stand at stage exported");
  CHECK(problems[2].what == "the stored type of result 'b' of tosa.tanh is not the inferred one");
}

std::string error_of_opaque(const std::string& attributes) {
  return error_in(Body{"  %o: f32[2,3] = opaque(%x) {target=\"a::b\", " + attributes + "}\n  return %o\n"});
}

TEST_CASE("the arguments of a described foreign operator are a JSON object", "[ir][verify]") {
  const std::string named = R"(, domain="d", name="n")";
  for (const char* arguments : {R"("")", R"("{}")", R"("{\"args\":[{\"$\":0}],\"kwargs\":{}}")"})
    CHECK(error_of_opaque("arguments=" + std::string(arguments) + named).empty());
  for (const char* arguments : {R"("[]")", R"("alpha=3")", R"("{\"a\":1")"})
    CHECK_THAT(error_of_opaque("arguments=" + std::string(arguments) + named),
               Catch::Contains("the arguments of foreign operator 'a::b' are not a JSON object: expected an "
                               "object such as {\"args\":[{\"$\":0}],\"kwargs\":{}}, or nothing, got '"));
  CHECK(error_of_opaque(R"(arguments="[]")").empty());  // not described: the node cannot be lowered
}

TEST_CASE("the arguments of a described foreign operator lack the keys that tosaic writes", "[ir][verify]") {
  for (const std::string key : {"dim_orders", "qparams"})
    CHECK_THAT(error_of_opaque("arguments=\"{\\\"" + key + R"(\":[]}", domain="d", name="n")"),
               Catch::Contains("have a key that tosaic writes itself: expected other keys than 'dim_orders' "
                               "and 'qparams', got '" +
                               key + "'"));
}

TEST_CASE("a foreign operator has both a domain and a name, or neither", "[ir][verify]") {
  CHECK_THAT(
      error_of_opaque(R"(arguments="{}", name="n")"),
      Catch::Contains("foreign operator 'a::b' has a domain or a name alone: expected both, or neither, "
                      "got domain '' and name 'n'"));
  CHECK_THAT(error_of_opaque(R"(arguments="{}", domain="d")"), Catch::Contains("got domain 'd' and name ''"));
}

}  // namespace
}  // namespace tosaic
