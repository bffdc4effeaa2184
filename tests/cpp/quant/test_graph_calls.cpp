// Checks which calls a graph is read as.
#include "tosaic/quant/graph_calls.h"

#include <catch2/catch.hpp>

#include "exec/chain.h"

namespace tosaic::quant {
namespace {

using exec::Builder;
using exec::f32;

OriginRef origin(const std::string& name, const std::string& module = "") {
  auto made = std::make_shared<Origin>();
  made->fx_name = name;
  made->target = "aten." + name;
  made->module_path = module;
  return made;
}

std::vector<std::string> names_of(const GraphCalls& calls) {
  std::vector<std::string> names;
  for (const CallNode& node : calls.calls->nodes()) names.push_back(node.name);
  return names;
}

}  // namespace

TEST_CASE("nodes that follow each other and come from one call of torch are one call", "[quant]") {
  Builder b;
  const ValueId x = b.input("x", f32({4}));
  const OriginRef call = origin("softsign");
  const ValueId a = b.graph->add(Op::kAbs, NoAttrs{}, std::vector{x}, call, "softsign.abs");
  const ValueId y = b.graph->add(Op::kAdd, AlphaAttrs{}, std::vector{x, a}, call, "softsign");
  b.output(b.graph->add(Op::kRelu, NoAttrs{}, std::vector{y}, origin("relu"), "relu"));
  const GraphCalls calls = graph_calls(*b.graph);
  CHECK(names_of(calls) == std::vector<std::string>{"x", "softsign", "relu", "output"});
  CHECK(calls.nodes[1].size() == 2);
  CHECK(calls.values[1] == y);
  CHECK(calls.calls->node(NodeIndex(1)).operands.size() == 2);
}

TEST_CASE("a call of several origins has the first name, and the others are aliases", "[quant]") {
  Builder b;
  const ValueId x = b.input("x", f32({4}));
  const OriginRef merged = merge({origin("conv2d", "c"), origin("batch_norm", "b")});
  b.output(b.graph->add(Op::kRelu, NoAttrs{}, std::vector{x}, merged, "batch_norm"));
  const GraphCalls calls = graph_calls(*b.graph, {{"c", "torch.nn.Conv2d"}});
  const CallNode& call = calls.calls->node(NodeIndex(1));
  CHECK(call.name == "conv2d");
  CHECK(call.aliases == std::vector<std::string>{"batch_norm"});
  CHECK(calls.calls->find("batch_norm") == NodeIndex(1));
  CHECK(call.modules.back().type == "torch.nn.Conv2d");
}

TEST_CASE("each result of a call that computes several is a call of its own", "[quant]") {
  Builder b;
  const ValueId x = b.input("x", f32({4}));
  const std::vector<TensorType> types{f32({2}), f32({2})};
  const NodeId split = b.graph->add_node(Op::kSplit, share(SplitAttrs{0, {2, 2}}), std::vector{x}, types,
                                         origin("chunk"), "chunk");
  b.output(b.graph->result(b.graph->node(split), 0)).output(b.graph->result(b.graph->node(split), 1));
  const GraphCalls calls = graph_calls(*b.graph);
  CHECK(names_of(calls) == std::vector<std::string>{"x", "chunk", "chunk.0", "chunk.1", "output"});
  CHECK(!calls.values[1].valid());
  CHECK(calls.values[2] == b.graph->result(b.graph->node(split), 0));
  CHECK(calls.calls->node(NodeIndex(3)).operands[0].producer == NodeIndex(1));
}

TEST_CASE("a node without an origin is a call of its own, and numbers are not operands", "[quant]") {
  Builder b;
  const ValueId x = b.input("x", f32({4}));
  const ValueId two = b.graph->add_constant(make_constant("two", DType::kF32, {}, std::vector<double>{2}));
  b.output(b.graph->add(Op::kMul, NoAttrs{}, std::vector{x, two}, nullptr, "twice"));
  const GraphCalls calls = graph_calls(*b.graph);
  CHECK(names_of(calls) == std::vector<std::string>{"x", "two", "twice", "output"});
  CHECK(calls.calls->node(NodeIndex(2)).operands.size() == 1);
}

}  // namespace tosaic::quant
