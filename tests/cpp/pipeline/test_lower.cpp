#include "passes/pass_case.h"
#include "tosaic/ir/parse.h"
#include "tosaic/ir/print.h"
#include "tosaic/pipeline/lower.h"

namespace tosaic::pipeline {
namespace {

using passes::Case;

std::shared_ptr<const Graph> shared(const Case& c) { return std::make_shared<const Graph>(c.graph); }

Pipeline pipeline_for(std::string_view target = "TOSA-1.0+FP") {
  return default_pipeline(target::parse_target(target));
}

Case convolution() {
  Case c;
  const ConvAttrs attrs{{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, 1, false};
  const ValueId y =
      c.add(Op::kConv, {c.input("x", {1, 2, 4, 5}), c.weights("w", {3, 2, 3, 3}), ValueId()}, attrs, "conv");
  c.output(c.add(Op::kSoftmax, {c.add(Op::kRelu, {y}, "relu")}, AxisDtypeAttrs{1, {}}, "shares"));
  return c;
}

TEST_CASE("the graph of every stage has the results of the exported graph", "[pipeline]") {
  const Case c = convolution();
  const Lowered lowered = lower(shared(c), pipeline_for());
  CHECK(lowered.exported->stage == Stage::kExported);
  CHECK(lowered.tosa->stage == Stage::kTosa);
  for (const std::shared_ptr<const Graph>& stage : {lowered.exported, lowered.canonical, lowered.tosa})
    passes::require_same(passes::results_of(c.graph), passes::results_of(*stage));
}

TEST_CASE("the values of the TOSA graph know the dim orders of the canonical values", "[pipeline]") {
  const Lowered lowered = lower(shared(convolution()), pipeline_for());
  const auto has = [&](const std::string& name, const DimOrder& order) {
    return std::ranges::any_of(lowered.tosa->values(), [&](const Value& value) {
      return value.name == name && value.canonical_order == order;
    });
  };
  CHECK(has("x", DimOrder()));
  CHECK(has("relu", DimOrder::channels_last(4)));
}

TEST_CASE("each pass is timed, and on_change is called only for passes that changed the graph",
          "[pipeline]") {
  std::vector<std::string> told, changed;
  LowerOptions options;
  options.on_change = [&](const Step& step, const Graph&) { told.push_back(step.pass.name); };
  for (const PassTiming& row : lower(shared(convolution()), pipeline_for(), options).timings)
    if (row.changed) changed.push_back(row.name);
  CHECK(told == changed);
  CHECK(std::count(told.begin(), told.end(), "legalize-tosa") == 1);
}

TEST_CASE("try_to_lower() returns as data what lower() throws, and the graph that lower() returns",
          "[pipeline]") {
  Case c;
  c.output(c.add(Op::kNeg, {c.input("x", passes::tensor(DType::kF64, {2}))}, "neg"));
  const Trial failed = try_to_lower(shared(c), pipeline_for());
  REQUIRE_FALSE(failed.problems.empty());
  CHECK(failed.tosa == nullptr);
  CHECK_THROWS_AS(lower(shared(c), pipeline_for()), UnsupportedOp);
  const Trial trial = try_to_lower(shared(convolution()), pipeline_for());
  CHECK(trial.problems.empty());
  REQUIRE(trial.tosa != nullptr);
  CHECK(print(*trial.tosa) == print(*lower(shared(convolution()), pipeline_for()).tosa));
}

TEST_CASE("a float program for an INT target: the advice to quantize comes first, then its operators",
          "[pipeline]") {
  Case c;
  const ValueId x = c.add(Op::kReshape, {c.input("x", {2, 3})}, ShapeAttrs{{6}}, "moved");
  c.output(c.add(Op::kTanh, {c.add(Op::kNeg, {x}, "neg")}, "tanh"));
  const Pipeline integers = pipeline_for("TOSA-1.0+INT");
  CHECK_THROWS_WITH(lower(shared(c), integers), Catch::Contains("TOSA-1.0+INT: quantize it first\n"));
  std::vector<std::string> nodes;
  for (const ErrorParts& parts : try_to_lower(shared(c), integers).problems) nodes.push_back(parts.node);
  CHECK(nodes == std::vector<std::string>{"", "neg", "tanh"});
}

TEST_CASE("an unknown pass is refused with the names of all passes", "[pipeline]") {
  CHECK_THROWS_WITH(run_pass("no-such-pass", convolution().graph), Catch::Contains("fold-constants"));
}

TEST_CASE("a pass that matches nothing returns no graph", "[pipeline]") {
  Case c;
  c.output(c.add(Op::kNeg, {c.input("x", {2})}));
  for (const passes::Pass& pass : passes::all_passes())
    if (pass.name != "legalize-tosa") CHECK(run_pass(pass, c.graph) == nullptr);
}

// The number of nodes that the passes read and make must grow linearly with the graph.
TEST_CASE("lowering 10,000 nodes visits four times as many nodes as lowering 2,500", "[pipeline]") {
  const auto made = [](int steps) {
    Case c;
    ValueId x = c.input("x", {2, 3});
    for (int i = 0; i < steps / 5; ++i) {
      x = c.add(Op::kReshape, {c.add(Op::kReshape, {x}, ShapeAttrs{{3, 2}})}, ShapeAttrs{{2, 3}});
      x = c.add(Op::kSilu, {c.add(Op::kAdd, {c.add(Op::kNeg, {x}), c.constant("b", {}, {1.0})})});
    }
    std::size_t nodes = 0;
    for (const PassTiming& row : lower(shared(c.output(x)), pipeline_for()).timings)
      nodes += row.nodes_before + row.nodes_after;
    return static_cast<double>(nodes);
  };
  CHECK(made(10000) / made(2500) == Approx(4.0).epsilon(0.02));
}

// The attributes of the tosa.custom that an operator over integers becomes, in channels-last order.
std::string lowered_arguments(const std::string& arguments) {
  const std::string scales = "qmin=-128, qmax=127, scales=[0.5], zero_points=[0]}\n";
  const auto graph = std::make_shared<const Graph>(
      parse("tosaic 1\ngraph @f stage=exported {\n  input %x: f32[1,4,2,2] path=\"x\"\n"
            "  %q: i8[1,4,2,2] = quantize(%x) {dtype=i8, " +
            scales + "  %d: f32[1,4,2,2] = dequantize(%q) {dtype=f32, " + scales +
            "  %o: f32[1,4,2,2] = opaque(%d) {target=\"a::b\", arguments=\"" + arguments +
            "\", domain=\"d\", name=\"n\", layout=channels_last, integers=true}\n" +
            "  %r: i8[1,4,2,2] = quantize(%o) {dtype=i8, " + scales +
            "  %e: f32[1,4,2,2] = dequantize(%r) {dtype=f32, " + scales + "  return %e path=\"y\"\n}\n"));
  const Lowered lowered = lower(graph, pipeline_for("TOSA-1.0+INT"));
  for (const Node& node : lowered.tosa->nodes())
    if (node.op == Op::kTosaCustom) return Graph::attrs<TosaCustomAttrs>(node).implementation_attrs;
  return "no tosa.custom";
}

TEST_CASE("qparams and dim orders are entries of the arguments of a foreign operator", "[pipeline]") {
  const std::string qparams = R"({"storage":"i8","qmin":-128,"qmax":127,"scales":[0.5],"zero_points":[0],)"
                              R"("axis":null})";
  const std::string entries = R"("qparams":{"operands":[)" + qparams + R"(],"results":[)" + qparams +
                              R"(]},"dim_orders":[[0,2,3,1],[0,2,3,1]]})";
  CHECK(lowered_arguments("") == "{" + entries);
  CHECK(lowered_arguments("{}") == "{" + entries);
  CHECK(lowered_arguments(R"({\"beta\":1.5})") == R"({"beta":1.5,)" + entries);
}

}  // namespace
}  // namespace tosaic::pipeline
