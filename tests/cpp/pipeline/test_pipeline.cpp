#include "tosaic/pipeline/pipeline.h"

#include <algorithm>
#include <stdexcept>

#include "passes/pass_case.h"
#include "tosaic/ir/checked_rewriter.h"
#include "tosaic/ir/verify.h"
#include "tosaic/pipeline/lower.h"

namespace tosaic::pipeline {
namespace {

using passes::Case;
using passes::Pass;
using passes::StageSet;

Pipeline pipeline_for(std::string_view target) { return default_pipeline(target::parse_target(target)); }

std::vector<std::string> ids(const Pipeline& pipeline) {
  std::vector<std::string> out;
  for (const Step& step : pipeline.steps()) out.push_back(step.id());
  return out;
}

// Takes every graph, changes none, and counts how often it runs.
Pass counting(const std::string& name, int& runs) {
  return {name, "Counts.", StageSet::all(), {}, [&runs](const Graph&, const passes::PassOptions&) {
            ++runs;
            return std::optional<Graph>();
          }};
}

std::shared_ptr<const Graph> sum_of_two() {
  Case c;
  const ValueId x = c.input("x", {2, 3});
  c.output(c.add(Op::kAdd, {x, x}, "sum"));
  return std::make_shared<const Graph>(c.graph);
}

// add(x, x) -> mul(x, 2), by a rewriter that checks its use.
std::optional<Graph> doubled(const Graph& graph, const passes::PassOptions& /*options*/) {
  CheckedRewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const NodeId at = graph.id(node);
    if (node.op != Op::kAdd || graph.operands(node)[0] != graph.operands(node)[1]) {
      rewriter.copy(at);
      continue;
    }
    const ValueId two = rewriter.constant(at, make_constant("two", DType::kF32, {}, std::vector{2.0}));
    const std::vector<ValueId> operands = {rewriter.map(graph.operands(node)[0]), two};
    rewriter.replace(at, rewriter.emit(at, Op::kMul, default_attrs(Op::kMul), operands));
  }
  return rewriter.finish();
}

TEST_CASE("the default pipeline has section quantize only for targets with profile INT", "[pipeline]") {
  const std::vector<std::string> floats = ids(pipeline_for("TOSA-1.0+FP"));
  const std::vector<std::string> integers = ids(pipeline_for("TOSA-1.0+INT"));
  const auto in_quantize = [](const std::string& id) { return id.starts_with("quantize/"); };
  CHECK(std::ranges::none_of(floats, in_quantize));
  CHECK(std::ranges::find(integers, "quantize/fold-qdq") != integers.end());
  CHECK(std::ranges::find(integers, "quantize/lower-to-integer") != integers.end());
  std::vector<std::string> others = integers;
  std::erase_if(others, in_quantize);
  CHECK(others == floats);
  CHECK_NOTHROW(pipeline_for("TOSA-1.0+FP").check());
  CHECK_NOTHROW(pipeline_for("TOSA-1.0+INT").check());
}

TEST_CASE("passes are inserted, replaced and removed by name, or by section and name", "[pipeline]") {
  int runs = 0;
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  pipeline.insert_before("decompose", counting("first", runs));
  pipeline.insert_after("legalize/simplify", counting("second", runs));
  CHECK(pipeline.at("first").section == Section::kDecompose);
  CHECK(pipeline.at("second").id() == "legalize/second");
  pipeline.replace("first", counting("third", runs));
  pipeline.remove("second");
  const std::vector<std::string> now = ids(pipeline);
  CHECK(std::ranges::find(now, "decompose/third") != now.end());
  CHECK(now.size() == pipeline_for("TOSA-1.0+FP").steps().size() + 1);
  static_cast<void>(lower(sum_of_two(), pipeline));
  CHECK(runs == 1);
}

TEST_CASE("an anchor that is unknown or has several meanings is refused with the choices", "[pipeline]") {
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  CHECK_THROWS_WITH(pipeline.remove("unroll"), Catch::StartsWith("[pipeline] the pipeline has no such pass"));
  CHECK_THROWS_WITH(
      pipeline.remove("simplify"),
      "[pipeline] several passes of the pipeline have this name: expected one of simplify/simplify, "
      "decompose/simplify, legalize/simplify, got 'simplify'");
  int runs = 0;
  CHECK_THROWS_WITH(pipeline.insert_after("legalize-tosa", counting("simplify", runs)),
                    Catch::Contains("the section has a pass of this name"));
  CHECK_THROWS_AS(pipeline.insert_after("legalize-tosa", counting("a/b", runs)), InvalidGraph);
}

TEST_CASE("a pass that is missing is named with the pass that needs it", "[pipeline]") {
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  pipeline.remove("assign-dim-order");
  CHECK_THROWS_WITH(
      lower(sum_of_two(), pipeline),
      "[pipeline] pass 'legalize/legalize-tosa' needs pass 'assign-dim-order' before it: expected "
      "'assign-dim-order' or a pass that serves as it, got the pipeline has none");
  Pipeline without_end = pipeline_for("TOSA-1.0+FP");
  without_end.remove("legalize-tosa");
  CHECK_THROWS_WITH(without_end.check(), Catch::Contains("no pass makes a graph at stage tosa"));
  Pipeline unfolded = pipeline_for("TOSA-1.0+INT");
  unfolded.remove("fold-qdq");
  CHECK_THROWS_WITH(unfolded.check(), Catch::Contains("needs pass 'fold-qdq'"));
}

TEST_CASE("a pass that replaces another serves as it", "[pipeline]") {
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  Pass own = pipeline.at("decompose").pass;
  own.name = "my-decompose";
  pipeline.replace("decompose", own);
  CHECK_NOTHROW(lower(sum_of_two(), pipeline));
}

TEST_CASE("a pass at a place that no graph reaches at its stages is refused", "[pipeline]") {
  int runs = 0;
  Pass late = counting("late", runs);
  late.takes = {Stage::kExported};
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  pipeline.insert_after("legalize-tosa", late);
  CHECK_THROWS_WITH(pipeline.check(), Catch::Contains("pass 'legalize/late' takes graphs at stage exported"));
}

TEST_CASE("a pass of one's own changes what is lowered", "[pipeline]") {
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  pipeline.insert_before("decompose", {"double", "", {Stage::kExported}, {}, doubled});
  const Lowered lowered = lower(sum_of_two(), pipeline);
  CHECK(passes::ops_of(*lowered.decomposed) == "mul");
  CHECK(passes::ops_of(*lowered.tosa).find("tosa.mul") != std::string::npos);
  passes::require_same(passes::results_of(*sum_of_two()), passes::results_of(*lowered.tosa));
}

TEST_CASE("a pass that makes another stage than it claims, or a broken graph, is named", "[pipeline]") {
  Pass liar{"liar", "", {Stage::kExported}, {}, [](const Graph& graph, const passes::PassOptions&) {
              Graph out = graph;
              out.stage = Stage::kInteger;
              return std::optional(std::move(out));
            }};
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  pipeline.insert_before("decompose", liar);
  CHECK_THROWS_WITH(
      lower(sum_of_two(), pipeline),
      "[pipeline] pass 'liar' returns a graph at another stage than it claims: expected exported, "
      "got integer");
  Pass breaker{"breaker", "", {Stage::kExported}, {}, [](const Graph& graph, const passes::PassOptions&) {
                 Graph out = graph;
                 const std::vector<ValueId> operands = {out.inputs()[0].value};
                 const std::vector<TensorType> wrong = {passes::f32({7})};
                 out.add_node(Op::kNeg, share(default_attrs(Op::kNeg)), operands, wrong, nullptr, "wrong");
                 return std::optional(std::move(out));
               }};
  Pipeline broken = pipeline_for("TOSA-1.0+FP");
  broken.insert_before("decompose", breaker);
  CHECK_THROWS_WITH(lower(sum_of_two(), broken), Catch::Contains("pass 'breaker' returns a broken graph"));
}

// The text of the error of a lowering with this pass after the anchor.
std::string error_with(Pass pass, std::string_view anchor) {
  Pipeline pipeline = pipeline_for("TOSA-1.0+FP");
  pipeline.insert_after(anchor, std::move(pass));
  try {
    static_cast<void>(lower(sum_of_two(), pipeline));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A pass whose rewriter replaces each node by this operator over its first operand.
Pass emitting(Op op, const Attrs& attrs, Stage stage) {
  return {"mine", "", {stage}, {}, [=](const Graph& graph, const passes::PassOptions&) {
            Rewriter rewriter(graph);
            for (const Node& node : graph.nodes())
              rewriter.replace(node, rewriter.emit(node, op, attrs, {rewriter.map(graph.operands(node)[0])}));
            return std::move(rewriter).finish();
          }};
}

TEST_CASE("an error in a pass, and of the graph that it returns, names the pass", "[pipeline]") {
  CHECK_THAT(
      error_with(emitting(Op::kClamp, NoAttrs{}, Stage::kExported), "fold-batch-norm"),
      Catch::StartsWith("[infer] pass 'mine' failed: clamp: an operator has the attributes of another: "
                        "expected ClampAttrs, got NoAttrs"));
  CHECK_THAT(
      error_with(emitting(Op::kRelu, NoAttrs{}, Stage::kTosa), "legalize-tosa"),
      Catch::StartsWith("[verify] pass 'mine' returns a broken graph: relu may not stand at stage tosa"));
  Pass checked{"checked", "", {Stage::kExported}, {}, [](const Graph& graph, const passes::PassOptions&) {
                 return CheckedRewriter(graph).finish();
               }};
  CHECK_THAT(error_with(checked, "fold-batch-norm"),
             Catch::StartsWith("[rewriter] pass 'checked' failed: not all nodes were visited"));
}

TEST_CASE("an error in a pass retains its class", "[pipeline]") {
  Pass pass = emitting(Op::kClamp, NoAttrs{}, Stage::kExported);
  CHECK_THROWS_AS(run_pass(pass, *sum_of_two()), InvalidGraph);
  pass.run = [](const Graph&, const passes::PassOptions&) -> std::optional<Graph> {
    throw UnsupportedOp("mine", "operators are too large", {{.what = "one"}, {.what = "two"}});
  };
  CHECK_THROWS_AS(run_pass(pass, *sum_of_two()), UnsupportedOp);
  CHECK_THROWS_WITH(
      run_pass(pass, *sum_of_two()),
      "[pipeline] 2 faults in pass 'mine'\n  pass 'mine' failed: one\n  pass 'mine' failed: two");
}

TEST_CASE("an exception of a pass names the pass", "[pipeline]") {
  Pass pass{"mine", "", {Stage::kExported}, {}, {}};
  pass.run = [](const Graph&, const passes::PassOptions&) -> std::optional<Graph> {
    throw std::out_of_range("no such layer");
  };
  CHECK(error_with(pass, "fold-batch-norm") ==
        "[pipeline] pass 'mine' threw an exception: got 'no such layer'");
}

TEST_CASE("a pass without a function or without a stage is refused by name", "[pipeline]") {
  CHECK(
      error_with({"mine", "", {Stage::kExported}, {}, {}}, "fold-batch-norm") ==
      "[pipeline] pass 'simplify/mine' has no function: expected Pass::run, a function of the graph, got an "
      "empty function");
  CHECK_THROWS_WITH(run_pass({"mine", "", {Stage::kExported}, {}, {}}, *sum_of_two()),
                    Catch::StartsWith("[pipeline] pass 'mine' has no function"));
  int runs = 0;
  Pass never = counting("never", runs);
  never.takes = {};
  CHECK(error_with(never, "fold-batch-norm") ==
        "[pipeline] pass 'simplify/never' takes no stage: expected Pass::takes, one stage or more, got an "
        "empty set");
  CHECK_THROWS_WITH(require_stage_taken(never, Stage::kExported),
                    Catch::StartsWith("[pipeline] pass 'never' takes no stage"));
}

TEST_CASE("a rewriter refuses nodes out of turn, other types and an early end", "[ir][rewriter]") {
  Case c;
  const ValueId x = c.input("x", {2, 3});
  const ValueId neg = c.add(Op::kNeg, {x}, "neg");
  c.output(c.add(Op::kReshape, {c.add(Op::kAbs, {neg}, "abs")}, ShapeAttrs{{6}}, "flat"));
  const auto graph = std::make_shared<const Graph>(c.graph);
  CheckedRewriter rewriter(graph);
  CHECK_THROWS_WITH(
      rewriter.copy(NodeId(1)),
      "[rewriter] nodes are visited in order, and each is copied or replaced once: expected 'neg', got "
      "'abs'");
  CHECK_THROWS_WITH(static_cast<void>(rewriter.map(neg)), Catch::Contains("read before its node is visited"));
  rewriter.copy(NodeId(0));
  rewriter.copy(NodeId(1));
  CHECK_THROWS_WITH(rewriter.replace(NodeId(2), std::vector{rewriter.map(x)}),
                    Catch::Contains("another type: expected f32[6], got f32[2,3]"));
  CHECK_THROWS_WITH(
      static_cast<void>(rewriter.finish()),
      "[rewriter] not all nodes were visited: expected copy or replace for 'flat', got finish()");
  CHECK_THROWS_AS(rewriter.emit(NodeId(2), Op::kTosaAbs, default_attrs(Op::kTosaAbs), std::vector{x}),
                  InvalidGraph);
  rewriter.copy(NodeId(2));
  CHECK_FALSE(rewriter.finish());
  CHECK_THROWS_WITH(static_cast<void>(rewriter.finish()), Catch::Contains("used after finish()"));
}

QParamsRef grid(double scale, std::int64_t zero_point) {
  return std::make_shared<const QParams>(QParams{DType::kI8, -128, 127, {}, {scale}, {zero_point}});
}

// A graph at stage quantized: neg and abs of an i8 with qparams.
std::shared_ptr<const Graph> quantized_graph() {
  Case c;
  c.graph.stage = Stage::kQuantized;
  TensorType type = passes::tensor(DType::kI8, {2, 3});
  type.qparams = grid(0.5, 3);
  const ValueId x = c.input("x", type);
  TensorType result = type;
  result.qparams = grid(0.25, 0);
  const NodeId abs = c.graph.add_node(Op::kAbs, share(default_attrs(Op::kAbs)), std::span(&x, 1),
                                      std::span(&result, 1), nullptr, "abs");
  c.output(c.graph.result(c.graph.node(abs)));
  verify(c.graph);
  return std::make_shared<const Graph>(c.graph);
}

TEST_CASE("an operator over quantized values is emitted with the qparams of its result", "[ir][rewriter]") {
  const std::shared_ptr<const Graph> graph = quantized_graph();
  CheckedRewriter rewriter(graph);
  const std::vector<ValueId> x = {rewriter.map(graph->inputs()[0].value)};
  const QParamsRef own[] = {graph->type(graph->result(graph->node(NodeId(0)))).qparams};
  const QParamsRef other[] = {grid(0.125, 0)};
  CHECK_THROWS_WITH(rewriter.emit(NodeId(0), Op::kRelu, default_attrs(Op::kRelu), x),
                    Catch::Contains("'relu' computes over quantized values, so its result needs qparams") &&
                        Catch::Contains("qparams=node.results[0].qparams"));
  const ValueId wrong = rewriter.emit(NodeId(0), Op::kRelu, default_attrs(Op::kRelu), x, other).front();
  CHECK_THROWS_WITH(rewriter.replace(NodeId(0), std::vector{wrong}),
                    Catch::Contains("other qparams: expected i8[2,3] q(i8 -128..127 scale 0.25 zp 0), got "
                                    "i8[2,3] q(i8 -128..127 scale 0.125 zp 0)"));
  rewriter.replace(NodeId(0), rewriter.emit(NodeId(0), Op::kRelu, default_attrs(Op::kRelu), x, own));
  const std::optional<Graph> made = rewriter.finish();
  REQUIRE(made);
  CHECK_NOTHROW(verify(*made));
  CHECK(made->type(made->outputs()[0].value).dtype == DType::kI8);
}

TEST_CASE("a replacement at stage integer gets the label of what it replaces", "[ir][rewriter]") {
  Case c;
  c.graph.stage = Stage::kInteger;
  const ValueId x = c.input("x", passes::tensor(DType::kI32, {2}));
  const ValueId abs = c.add(Op::kAbs, {x}, "abs");
  c.graph.set_qparams(abs, std::make_shared<const QParams>(QParams{DType::kI32, -100, 100, {}, {0.5}, {0}}));
  c.output(abs);
  const auto graph = std::make_shared<const Graph>(c.graph);
  CheckedRewriter rewriter(graph);
  const std::vector<ValueId> operands = {rewriter.map(x)};
  rewriter.replace(NodeId(0), rewriter.emit(NodeId(0), Op::kNeg, default_attrs(Op::kNeg), operands));
  const std::optional<Graph> made = rewriter.finish();
  REQUIRE(made);
  CHECK(made->type(made->outputs()[0].value).qparams == graph->type(abs).qparams);
}

TEST_CASE("the place of a pass for which no graph is at its stage is named", "[pipeline]") {
  int runs = 0;
  Pass own = counting("own", runs);
  own.takes = {Stage::kQuantized};
  Pipeline late = pipeline_for("TOSA-1.0+INT");
  late.insert_after("legalize-tosa", own);
  CHECK_THROWS_WITH(late.check(), Catch::Contains("expected a place before 'legalize/legalize-tosa'") ||
                                      Catch::Contains("expected a place before 'quantize/"));
  Pipeline early = pipeline_for("TOSA-1.0+INT");
  early.insert_before("fold-qdq", own);
  CHECK_THROWS_WITH(early.check(), Catch::Contains("expected a place after 'quantize/fold-qdq'"));
}

TEST_CASE("a pass alone is refused a graph at another stage, with the passes to run before", "[pipeline]") {
  const Pipeline pipeline = pipeline_for("TOSA-1.0+INT");
  const Pass& lower_to_integer = pipeline.at("lower-to-integer").pass;
  CHECK_NOTHROW(require_stage_taken(lower_to_integer, Stage::kQuantized));
  CHECK_THROWS_WITH(require_stage_taken(lower_to_integer, Stage::kExported),
                    "[pipeline] pass 'lower-to-integer' takes graphs at stage quantized: expected a graph at "
                    "stage quantized, got a graph at stage exported. Run 'fold-qdq' before it.");
}

TEST_CASE("a pipeline lacks the passes whose work none of its passes does", "[pipeline]") {
  Pipeline pipeline = pipeline_for("TOSA-1.0+INT");
  CHECK(absent_passes(pipeline, Section::kQuantize).empty());
  Pass own = pipeline.at("quantize-boundary").pass;
  own.name = "own";
  pipeline.replace("quantize-boundary", own);
  CHECK(absent_passes(pipeline, Section::kQuantize).empty());
  pipeline.remove("own");
  CHECK(absent_passes(pipeline, Section::kQuantize) == std::vector<std::string>{"quantize-boundary"});
}

}  // namespace
}  // namespace tosaic::pipeline
