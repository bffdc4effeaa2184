#include <catch2/catch.hpp>

#include "example_graphs.h"
#include "tosaic/ir/print.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/ir/verify.h"

namespace tosaic {
namespace {

using testing::add;
using testing::error_of;
using testing::f32;

// Calls `rewrite` for every node for which `matches` returns true, and copies the others unchanged.
template <class Matches, class Rewrite>
std::optional<Graph> rewritten(const Graph& graph, Matches matches, Rewrite rewrite) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (matches(node))
      rewrite(rewriter, node);
    else
      rewriter.copy(node);
  }
  return std::move(rewriter).finish();
}

auto is(Op op) {
  return [op](const Node& node) { return node.op == op; };
}

// relu(x) -> maximum(x, 0)
void relu_by_maximum(Rewriter& rewriter, const Node& node) {
  const ValueId zero = rewriter.constant(node, testing::constant("zero", DType::kF32, {}, {0}));
  const ValueId x = rewriter.map(rewriter.source().operands(node)[0]);
  rewriter.replace(node, rewriter.emit(node, Op::kMaximum, NoAttrs{}, {x, zero}));
}

TEST_CASE("keeping every node returns no graph", "[ir][rewriter]") {
  const Graph graph = testing::conv_network(3);
  CHECK_FALSE(rewritten(graph, [](const Node&) { return false; }, relu_by_maximum).has_value());
}

TEST_CASE("a replacement gets the name and origin of the replaced node", "[ir][rewriter]") {
  const Graph graph = testing::conv_network(2);
  const std::optional<Graph> result = rewritten(graph, is(Op::kRelu), relu_by_maximum);
  REQUIRE(result.has_value());
  CHECK(check(*result).empty());
  const std::string text = print(*result);
  CAPTURE(text);
  CHECK(text.find("%layer0.relu: f32[1,4,8,8] = maximum(%layer0.conv, %zero) loc(") != std::string::npos);
  CHECK(text.find("%layer1.add: f32[1,4,8,8] = add(%layer0.add, %layer1.relu)") != std::string::npos);
  CHECK(result->nodes().size() == graph.nodes().size());
}

TEST_CASE("a rewritten graph is valid, whichever node is changed first", "[ir][rewriter]") {
  const Graph graph = testing::conv_network(4);
  for (std::uint32_t i = 0; i < graph.nodes().size(); ++i) {
    const std::optional<Graph> result = rewritten(
        graph, [&](const Node& node) { return graph.id(node).index() == i; },
        [](Rewriter& rewriter, const Node& node) {
          const std::vector<ValueId> operands = rewriter.map_operands(node);
          const ValueId same = rewriter.emit(node, node.op, *node.attrs, operands);
          rewriter.replace(node, rewriter.emit(node, Op::kClone, CloneAttrs{}, {same}));
        });
    CAPTURE(i);
    REQUIRE(result.has_value());
    CHECK(check(*result).empty());
    CHECK(result->nodes().size() == graph.nodes().size() + 1);
    CHECK(result->node_name(result->nodes()[i + 1]) == graph.node_name(graph.nodes()[i]));
  }
}

TEST_CASE("rewriting keeps inputs, outputs, regions and nodes without results", "[ir][rewriter]") {
  const Graph graph = testing::full_graph();
  for (std::uint32_t i = 0; i < graph.nodes().size(); ++i) {
    if (graph.nodes()[i].result_count != 1) continue;
    const std::optional<Graph> result = rewritten(
        graph, [&](const Node& node) { return graph.id(node).index() == i; },
        [&](Rewriter& rewriter, const Node& node) {
          const std::vector<ValueId> operands = rewriter.map_operands(node);
          const TensorType type = graph.type(graph.result(node));
          Graph& out = rewriter.begin_output(node);
          const NodeId copy = out.add_node(node.op, node.attrs, operands, std::span(&type, 1), node.origin,
                                           "copy", node.regions);
          rewriter.replace(node, out.result(out.node(copy)));
        });
    CAPTURE(i);
    REQUIRE(result.has_value());
    CHECK(check(*result).empty());
    CHECK(result->nodes().size() == graph.nodes().size());
    CHECK(result->inputs().size() == 3);
    CHECK(result->outputs()[1].mutated_input == 2);
  }
}

TEST_CASE("inputs and constants that follow the first change are in the new graph too", "[ir][rewriter]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "x");
  const ValueId relu = add(graph, Op::kRelu, NoAttrs{}, {x});
  const ValueId y = graph.add_input(InputKind::kUser, "y", f32({2}), "y");
  const ValueId one = graph.add_constant(testing::constant("one", DType::kF32, {}, {1}));
  const ValueId sum = add(graph, Op::kAdd, AlphaAttrs{}, {y, one});
  testing::returns(graph, add(graph, Op::kMul, NoAttrs{}, {relu, sum}));
  CHECK(check(graph).empty());
  const std::optional<Graph> result = rewritten(graph, is(Op::kRelu), relu_by_maximum);
  REQUIRE(result.has_value());
  CHECK(check(*result).empty());
}

TEST_CASE("a replacement of another type or number of results is an internal error", "[ir][rewriter]") {
  const Graph graph = testing::small_graph();
  Rewriter rewriter(graph);
  const Node& relu = graph.nodes()[0];
  const ValueId x = rewriter.map(graph.operands(relu)[0]);
  const ValueId flat = rewriter.emit(relu, Op::kReshape, ShapeAttrs{{6}}, {x});
  CHECK(error_of([&] { rewriter.replace(relu, flat); }) ==
        "[rewriter] replacement has another type: expected f32[2,3], got f32[6] (node 'relu')");
  CHECK(error_of([&] { rewriter.replace(relu, std::span<const ValueId>()); }) ==
        "[rewriter] replacement has another number of results: expected 1, got 0 (node 'relu')");
  CHECK(error_of([&] { static_cast<void>(rewriter.map(graph.result(graph.nodes()[1]))); }) ==
        "[rewriter] value 'mul' was not walked yet");
}

TEST_CASE("a graph without nodes can be rewritten", "[ir][rewriter]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "x");
  testing::returns(graph, x);
  Rewriter rewriter(graph);
  rewriter.start();
  const std::optional<Graph> result = std::move(rewriter).finish();
  REQUIRE(result.has_value());
  CHECK(print(*result) == print(graph));
}

TEST_CASE("a value that also replaces a second node has the first node's name", "[ir][rewriter]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "x");
  const ValueId a = add(graph, Op::kRelu, NoAttrs{}, {x}, "a", testing::leaf("a", "", 1));
  const ValueId b = add(graph, Op::kRelu, NoAttrs{}, {x}, "b", testing::leaf("b", "", 2));
  testing::returns(graph, add(graph, Op::kAdd, AlphaAttrs{}, {a, b}, "sum"));
  Rewriter rewriter(graph);
  rewriter.copy(graph.nodes()[0]);
  rewriter.replace(graph.nodes()[1], rewriter.map(a));
  rewriter.copy(graph.nodes()[2]);
  const std::optional<Graph> result = std::move(rewriter).finish();
  REQUIRE(result.has_value());
  CHECK(check(*result).empty());
  CHECK(print(*result, {.origins = false}).find("%sum: f32[2] = add(%a, %a) {alpha=1}") != std::string::npos);
}

TEST_CASE("a replacement gets the name only if it was made for the node, whatever it is called",
          "[ir][rewriter]") {
  Graph graph;
  const ValueId x = graph.add_input(InputKind::kUser, "x", f32({2}), "x");
  const ValueId before = add(graph, Op::kNeg, NoAttrs{}, {x}, "y.neg");  // as if it were emitted for y
  const ValueId y = add(graph, Op::kClone, CloneAttrs{}, {before}, "y");
  const ValueId z = add(graph, Op::kRelu, NoAttrs{}, {y}, "z");
  graph.set_source(y, ValueId(7));
  graph.set_source(z, ValueId(8));
  graph.set_canonical_order(z, DimOrder());
  testing::returns(graph, z);
  Rewriter rewriter(graph);
  rewriter.copy(graph.nodes()[0]);
  rewriter.replace(graph.nodes()[1], rewriter.map(before));
  const Node& relu = graph.nodes()[2];
  rewriter.replace(relu, add(rewriter.begin_output(relu), Op::kAbs, NoAttrs{}, {rewriter.map(y)}, "another"));
  const std::optional<Graph> result = std::move(rewriter).finish();
  REQUIRE(result.has_value());
  CHECK(result->value(result->result(result->nodes()[0])).name == "y.neg");
  CHECK_FALSE(result->value(result->result(result->nodes()[0])).source.valid());
  const Value& last = result->value(result->outputs()[0].value);
  CHECK(last.name == "z");
  CHECK(last.source == ValueId(8));
  CHECK(last.canonical_order == DimOrder());
}

}  // namespace
}  // namespace tosaic
