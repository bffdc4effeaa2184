// Checks profiles of runs: which steps have events, that times add up, what steps compute and move.
#include <catch2/catch.hpp>

#include "exec/chain.h"
#include "tosaic/exec/steps.h"

namespace tosaic::exec {
namespace {

ConstantRef constant(const std::string& name, const Shape& shape, std::vector<double> values) {
  return make_constant(name, DType::kF32, shape, values);
}

std::vector<std::string> names(const RunTimes& times) {
  std::vector<std::string> found;
  for (const StepEvent& event : times.events()) found.push_back(event.step->name);
  return found;
}

StepWork work_of(const Builder& b, const std::string& name) {
  const Prepared prepared = prepare(b.graph);  // owns the steps
  for (const StepPlace& place : profiled_steps(prepared))
    if (place.step->name == name) return place.work;
  FAIL("no step '" << name << "'");
  return {};
}

}  // namespace

TEST_CASE("a profiled run has an event for each step that does something, and its parts add up", "[exec]") {
  Builder b;
  const ValueId n = b.add(Op::kNeg, {b.input("x", f32({2}))}, "neg");
  const ValueId v = b.add(Op::kReshape, {n}, "view", ShapeAttrs{{1, 2}});
  b.output(b.add(Op::kRelu, {v}, "relu"));
  Session session(prepare(b.graph));
  const std::vector<float> data{1, -2};
  RunTimes times;
  RunOptions options;
  options.times = &times;
  const RunResult result = session.run(std::vector{view(data, {2})}, options);
  CHECK(doubles(result.outputs[0]) == std::vector<double>{0, 2});
  CHECK(names(times) == std::vector<std::string>{"neg", "relu"});
  std::int64_t last = times.events()[0].begin;
  CHECK(last >= 0);
  for (const StepEvent& event : times.events()) {
    CHECK(event.begin == last);
    CHECK(event.end >= event.begin);
    last = event.end;
  }
  CHECK(times.last() >= last);
}

TEST_CASE("a profiled step of control flow contains the steps of its regions", "[exec]") {
  Builder condition;
  const ValueId i0 = condition.input("i", f32({}));
  condition.input("limit", f32({}));
  condition.output(condition.add(Op::kLt, {i0, condition.graph->inputs()[1].value}, "lt"));
  Builder body;
  const ValueId i = body.input("i", f32({}));
  body.input("limit", f32({}));
  const ValueId one = body.graph->add_constant(constant("one", {}, {1}));
  body.output(body.add(Op::kAdd, {i, one}, "next"));
  Builder b;
  const ValueId start = b.input("start", f32({})), limit = b.input("limit", f32({}));
  const TensorType type = f32({});
  const NodeId loop =
      b.graph->add_node(Op::kWhileLoop, share(NoAttrs{}), std::vector{start, limit}, std::span(&type, 1),
                        leaf("loop"), "loop", {condition.graph, body.graph});
  b.output(b.add(Op::kNeg, {b.graph->result(b.graph->node(loop))}, "neg"));
  Session session(prepare(b.graph));

  const std::vector<StepPlace> places = profiled_steps(session.prepared());
  REQUIRE(places.size() == 4);
  CHECK(places[0].step->name == "loop");
  CHECK(places[1].step->name == "lt");
  CHECK(places[2].step->name == "next");
  CHECK((places[1].parent == 0 && places[2].parent == 0 && !places[3].parent));
  CHECK((places[1].region == 0 && places[2].region == 1));

  const std::vector<float> zero{0}, two{2};
  RunTimes times;
  RunOptions options;
  options.times = &times;
  const RunResult result = session.run(std::vector{view(zero, {}), view(two, {})}, options);
  CHECK(doubles(result.outputs[0]) == std::vector<double>{-2});
  CHECK(names(times) == std::vector<std::string>{"lt", "next", "lt", "next", "lt", "loop", "neg"});
  const StepEvent& whole = times.events()[5];
  CHECK(whole.begin == times.events()[0].begin);
  CHECK(whole.end >= times.events()[4].end);
}

TEST_CASE("a fused chain is one profiled step", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", tensor(DType::kI8, {1, 4, 4, 8}));
  const auto zeros = [&](const std::string& name, DType dtype, const Shape& shape) {
    const std::vector<double> values(static_cast<std::size_t>(num_elements(shape)), 0);
    return b.graph->add_constant(make_constant(name, dtype, shape, values));
  };
  TosaConvAttrs conv;
  conv.pad = {0, 0, 0, 0};
  conv.stride = conv.dilation = {1, 1};
  conv.acc_type = DType::kI32;
  const ValueId sums =
      b.add(Op::kTosaConv2d, {x, zeros("w", DType::kI8, {16, 1, 1, 8}), zeros("b", DType::kI32, {16})},
            "conv", conv);
  TosaRescaleAttrs rescale;
  rescale.dtype = DType::kI8;
  rescale.multiplier = {1 << 30};
  rescale.shift = {30};
  rescale.scale32 = true;
  b.output(b.add(Op::kTosaRescale, {sums}, "rescale", rescale));
  const Prepared prepared = prepare(b.graph);
  const std::vector<StepPlace> places = profiled_steps(prepared);
  REQUIRE(places.size() == 1);
  CHECK(places[0].nodes == std::vector{NodeId(0), NodeId(1)});
  CHECK(places[0].work.multiply_adds == 16 * 16 * 8);
  CHECK(places[0].work.bytes_read == 128 + 128 + 64);
  CHECK(places[0].work.bytes_written == 256);
  CHECK(places[0].kernel.starts_with("conv."));
  CHECK(places[0].factors.has_value());
}

TEST_CASE("the work of a step follows from shapes", "[exec]") {
  Builder b;
  const ValueId x = b.input("x", f32({2, 3, 8, 8})), w = b.input("w", f32({4, 3, 3, 3}));
  ConvAttrs conv;
  conv.stride = conv.dilation = {1, 1};
  conv.pad_before = conv.pad_after = {0, 0};
  b.output(b.add(Op::kConv, {x, w, ValueId()}, "conv", conv));
  ConvAttrs transposed = conv;
  transposed.transposed = true;
  transposed.output_padding = {0, 0};
  const ValueId v = b.input("v", f32({3, 4, 3, 3}));
  b.output(b.add(Op::kConv, {x, v, ValueId()}, "transposed", transposed));
  const ValueId a = b.input("a", f32({5, 6, 7})), c = b.input("c", f32({7, 2}));
  b.output(b.add(Op::kMatmul, {a, c}, "matmul"));
  const ValueId q = b.input("q", f32({2, 4, 8})), k = b.input("k", f32({2, 6, 8})),
                value = b.input("value", f32({2, 6, 3}));
  b.output(b.add(Op::kSdpa, {q, k, value, ValueId()}, "sdpa", SdpaAttrs{}));
  b.output(b.add(Op::kAdd, {a, a}, "add"));
  const ValueId table = b.input("table", f32({1000, 4}));
  const ValueId rows = b.input("rows", tensor(DType::kI64, {3}));
  b.output(b.add(Op::kEmbedding, {table, rows}, "embedding"));

  CHECK(work_of(b, "conv").multiply_adds == std::uint64_t{2 * 4 * 6 * 6} * 3 * 9);
  CHECK(work_of(b, "transposed").multiply_adds == std::uint64_t{2 * 3 * 8 * 8} * 4 * 9);
  CHECK(work_of(b, "matmul").multiply_adds == 5 * 6 * 7 * 2);
  CHECK(work_of(b, "sdpa").multiply_adds == 2 * 4 * 6 * (8 + 3));
  CHECK(work_of(b, "add").multiply_adds == 0);
  CHECK(work_of(b, "add").bytes_read == 5 * 6 * 7 * 4);
  CHECK(work_of(b, "add").bytes_written == 5 * 6 * 7 * 4);
  CHECK(work_of(b, "embedding").bytes_read == 3 * 4 * 4 + 3 * 8);
  CHECK(work_of(b, "embedding").bytes_written == 3 * 4 * 4);
}

}  // namespace tosaic::exec
