// Checks models of nodes, and the graphs that run a part of another graph or stand in its place.
#include "tosaic/exec/stand_in.h"

#include <catch2/catch.hpp>

#include "exec/chain.h"
#include "tosaic/base/error.h"
#include "tosaic/ir/print.h"
#include "tosaic/pipeline/executable.h"

namespace tosaic::exec {
namespace {

ConstantRef constant(const std::string& name, const Shape& shape, std::vector<double> values) {
  return make_constant(name, DType::kF32, shape, values);
}

void fill(const NodeCall& call, float value) {
  for (std::int64_t i = 0; i < num_elements(call.results[0].shape); ++i)
    store_element(call.results[0].dtype, call.results[0].data + i * 4, value);
}

}  // namespace

TEST_CASE("a model precedes overrides and is found by the identity of its node", "[exec][models]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const ValueId n = b.add(Op::kNeg, {x}, "neg");
  b.output(b.add(Op::kNeg, {n}, "neg_1")).output(n);
  PrepareOptions options;
  options.overrides.ops["neg"] = [](const NodeCall& call) { fill(call, 3); };
  options.overrides.models[identity_of(*b.graph, b.graph->nodes()[0])] = [](const NodeCall& call) {
    CHECK(call.name == "neg");
    fill(call, 5);
  };
  const std::vector<float> data{1, 2};
  const auto found = run(b.graph, std::vector<ArrayView>{view(data, {2})}, options);
  CHECK(doubles(found[0]) == std::vector<double>{3, 3});
  CHECK(doubles(found[1]) == std::vector<double>{5, 5});
}

TEST_CASE("a node alone keeps constants that are not inputs", "[exec][models]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  const ValueId c = b.graph->add_constant(constant("c", {2}, {10, 20}));
  b.output(b.add(Op::kAdd, {x, c}, "add"));
  const Node& node = b.graph->nodes()[0];
  const std::vector<float> data{1, 2}, other{3, 4};
  const auto kept = std::make_shared<const Graph>(node_alone(*b.graph, node, {true, false}));
  CHECK(kept->inputs().size() == 1);
  CHECK(doubles(run(kept, std::vector<ArrayView>{view(data, {2})})[0]) == std::vector<double>{11, 22});
  const auto open = std::make_shared<const Graph>(node_alone(*b.graph, node, {true, true}));
  CHECK(doubles(run(open, std::vector<ArrayView>{view(data, {2}), view(other, {2})})[0]) ==
        std::vector<double>{4, 6});
}

TEST_CASE("a graph as one node has the inputs, outputs and states of the graph", "[exec][models]") {
  Builder b;
  const ValueId total = b.state("total", constant("total", {2}, {1, 2}));
  const ValueId x = b.input("x", f32({2}));
  const ValueId sum = b.add(Op::kAdd, {total, x}, "add");
  b.output(sum, "out").mutation(sum, "total", 0);
  const auto one = std::make_shared<const Graph>(as_one_node(*b.graph));
  REQUIRE(one->nodes().size() == 1);
  PrepareOptions options;
  options.overrides.models[identity_of(*one, one->nodes()[0])] = [](const NodeCall& call) {
    for (std::size_t r = 0; r < 2; ++r)
      for (std::size_t i = 0; i < 2; ++i) {
        const double value = load_element(DType::kF32, call.operands[0].data + 4 * i) + 100;
        store_element(DType::kF32, call.results[r].data + 4 * i, value);
      }
  };
  Session session(prepare(one, options));
  const std::vector<float> data{0, 0};
  const std::vector<ArrayView> inputs{view(data, {2})};
  CHECK(doubles(session.run(inputs).outputs[0]) == std::vector<double>{101, 102});
  CHECK(doubles(session.run(inputs).outputs[0]) == std::vector<double>{201, 202});
  const auto plain = std::make_shared<const Graph>(with_plain_boundary(*b.graph));
  CHECK(plain->inputs().size() == 2);
  CHECK(run(plain, std::vector<ArrayView>{view(data, {2}), view(data, {2})}).size() == 2);
}

TEST_CASE("a modelled composite is not expanded", "[exec][models]") {
  Builder b;
  const ValueId x = b.input("x", f32({2}));
  b.output(b.add(Op::kHypot, {x, x}, "hypot"));
  Overrides overrides;
  CHECK(pipeline::executable(b.graph, overrides)->nodes().size() > 1);
  overrides.models[identity_of(*b.graph, b.graph->nodes()[0])] = [](const NodeCall& call) { fill(call, 1); };
  CHECK(pipeline::executable(b.graph, overrides)->nodes().size() == 1);
}

}  // namespace tosaic::exec
