// Checks where quantize and dequantize nodes are inserted.
#include "tosaic/quant/calibrate/insert.h"

#include <catch2/catch.hpp>

#include "exec/chain.h"
#include "tosaic/base/error.h"
#include "tosaic/ir/print.h"
#include "tosaic/ir/verify.h"

namespace tosaic::quant {
namespace {

using exec::Builder;
using exec::f32;

QParamsRef grid(double scale) {
  return std::make_shared<const QParams>(QParams{.axis = {}, .scales = {scale}, .zero_points = {0}});
}

// x -> relu -> (neg, abs), all three returned
struct Net {
  Builder b;
  ValueId x, relu, neg, abs;
  Net() {
    x = b.input("x", f32({4}));
    relu = b.add(Op::kRelu, {x}, "relu");
    neg = b.add(Op::kNeg, {relu}, "neg");
    abs = b.add(Op::kAbs, {relu}, "abs");
    b.output(neg).output(abs).output(relu);
  }
  [[nodiscard]] NodeId node(ValueId value) const { return b.graph->value(value).producer; }
  [[nodiscard]] Graph with(const std::vector<Placement>& placements) const {
    Graph made = insert_quantization(*b.graph, placements).graph;
    verify(made);
    return made;
  }
};

std::size_t count(const Graph& graph, Op op) {
  return static_cast<std::size_t>(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                                                [op](const Node& node) { return node.op == op; }));
}

std::string operand_of(const Graph& graph, const std::string& name) {
  const Node& node = *graph.producer(graph.find_value(name));
  return graph.value(graph.operands(node)[0]).name;
}

}  // namespace

TEST_CASE("a tensor that is quantized for all readers is read dequantized, by outputs too", "[quant]") {
  const Net net;
  const Graph made = net.with({{.value = net.relu, .qparams = grid(0.5), .for_all = true}});
  CHECK(count(made, Op::kQuantize) == 1);
  CHECK(operand_of(made, "neg") == "relu.dequantize");
  CHECK(operand_of(made, "abs") == "relu.dequantize");
  CHECK(made.value(made.outputs()[2].value).name == "relu.dequantize");
}

TEST_CASE("a tensor may be quantized for some readers only", "[quant]") {
  const Net net;
  const Graph made = net.with({{.value = net.relu, .qparams = grid(0.5), .users = {net.node(net.neg)}}});
  CHECK(operand_of(made, "neg") == "relu.dequantize");
  CHECK(operand_of(made, "abs") == "relu");
  CHECK(made.value(made.outputs()[2].value).name == "relu");
}

TEST_CASE("readers with equal qparams share their nodes", "[quant]") {
  const Net net;
  const Graph made = net.with({{.value = net.relu, .qparams = grid(0.5), .users = {net.node(net.neg)}},
                               {.value = net.relu, .qparams = grid(0.5), .users = {net.node(net.abs)}}});
  CHECK(count(made, Op::kQuantize) == 1);
}

TEST_CASE("a second quantization follows the first", "[quant]") {
  const Net net;
  const Graph made = net.with({{.value = net.relu, .qparams = grid(0.5), .for_all = true},
                               {.value = net.relu, .qparams = grid(0.25), .users = {net.node(net.neg)}}});
  CHECK(count(made, Op::kQuantize) == 2);
  CHECK(operand_of(made, "neg") == "relu.dequantize_1");
  CHECK(operand_of(made, "relu.quantize_1") == "relu.dequantize");
  CHECK(operand_of(made, "abs") == "relu.dequantize");
}

TEST_CASE("a second quantization with equal qparams adds nothing", "[quant]") {
  const Net net;
  const Graph made = net.with({{.value = net.relu, .qparams = grid(0.5), .for_all = true},
                               {.value = net.relu, .qparams = grid(0.5), .users = {net.node(net.neg)}}});
  CHECK(count(made, Op::kQuantize) == 1);
}

TEST_CASE("a quantized constant becomes integers, and saturation is reported", "[quant]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const ValueId c =
      b.graph->add_constant(make_constant("c", DType::kF32, {2}, std::vector<double>{1.25, 1e6}));
  b.output(b.add(Op::kAdd, {x, c}, "sum"));
  const InsertedQuantization made = insert_quantization(
      *b.graph, std::vector<Placement>{{.value = c, .qparams = grid(0.5), .for_all = true}});
  verify(made.graph);
  CHECK(count(made.graph, Op::kQuantize) == 0);
  const ValueId integers = made.graph.find_value("c");
  CHECK(made.graph.type(integers).dtype == DType::kI8);
  const Elements elements(*made.graph.value(integers).constant);
  CHECK(elements.as_int(0) == 2);
  CHECK(elements.as_int(1) == 127);
  REQUIRE(made.saturated.size() == 1);
  CHECK(made.saturated[0].constant == "c");
  CHECK(made.saturated[0].counts.saturated == 1);
}

TEST_CASE("qparams that do not fit the tensor are refused", "[quant]") {
  const Net net;
  const auto wrong =
      std::make_shared<const QParams>(QParams{.axis = 0, .scales = {1, 2}, .zero_points = {0, 0}});
  CHECK_THROWS_AS(net.with({{.value = net.relu, .qparams = wrong, .for_all = true}}), QuantMismatch);
}

}  // namespace tosaic::quant
