#include "tosaic/pipeline/pipeline.h"

#include <algorithm>

#include "passes/pass_case.h"
#include "tosaic/ir/checked_rewriter.h"
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
  CheckedRewriter rewriter(std::make_shared<const Graph>(graph));
  const Graph& source = *rewriter.source();
  for (std::uint32_t n = 0; n < source.nodes().size(); ++n) {
    const Node& node = source.node(NodeId(n));
    if (node.op != Op::kAdd || source.operands(node)[0] != source.operands(node)[1]) {
      rewriter.copy(NodeId(n));
      continue;
    }
    const ValueId two = rewriter.constant(NodeId(n), make_constant("two", DType::kF32, {}, std::vector{2.0}));
    const std::vector<ValueId> operands = {rewriter.map(source.operands(node)[0]), two};
    rewriter.replace(NodeId(n), rewriter.emit(NodeId(n), Op::kMul, default_attrs(Op::kMul), operands));
  }
  return rewriter.finish();
}

TEST_CASE("the default pipeline has section quantize only for targets with profile INT", "[pipeline]") {
  const std::vector<std::string> floats = ids(pipeline_for("TOSA-1.0+FP"));
  const std::vector<std::string> integers = ids(pipeline_for("TOSA-1.0+INT"));
  CHECK(std::ranges::find(floats, "quantize/fold-qdq") == floats.end());
  CHECK(std::ranges::find(integers, "quantize/lower-to-integer") != integers.end());
  CHECK(integers.size() == floats.size() + 4);
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

TEST_CASE("a pass that gives another stage than it claims, or a broken graph, is named", "[pipeline]") {
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

}  // namespace
}  // namespace tosaic::pipeline
