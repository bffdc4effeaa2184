#include "tosaic/pipeline/plan_calls.h"

#include "passes/pass_case.h"

namespace tosaic::pipeline {
namespace {

using passes::Case;

const DimOrder kLast = DimOrder::channels_last(4);

std::shared_ptr<const Graph> shared(const Case& c) { return std::make_shared<const Graph>(c.graph); }

ValueId pooled(Case& c, ValueId x) {
  return c.add(Op::kMaxPool, {x}, PoolAttrs{{1, 1}, {1, 1}, {0, 0}, {1, 1}, false, true, {}});
}

TEST_CASE("a composite is planned by its parts and reported by its own value", "[pipeline]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  const ValueId shares = c.add(Op::kSoftmax, {pooled(c, x)}, AxisDtypeAttrs{1, {}}, "shares");
  c.output(pooled(c, shares));
  const CallPlan plan = plan_calls(shared(c), {}, layout::Measure::kBytes);
  CHECK(plan.graph->nodes().size() > c.graph.nodes().size());
  REQUIRE(plan.orders[shares.index()]);
  CHECK(*plan.orders[shares.index()] == kLast);
  CHECK(plan.orders[x.index()]->is_identity());
  CHECK(plan.plan.transposes.size() == 2);  // transposes of the graph input and output
}

TEST_CASE("dim orders of inputs and outputs in the options are respected", "[pipeline]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  c.output(pooled(c, x));
  const std::vector<std::optional<BoundaryOrder>> declared = {BoundaryOrder{kLast, false}};
  const CallPlan plan = plan_calls(shared(c), {declared, declared}, layout::Measure::kBytes);
  CHECK(plan.plan.transposes.empty());
  CHECK(*plan.orders[x.index()] == kLast);
  CHECK(plan.outputs.front() == kLast);
}

TEST_CASE("a call reads its operand in the order of its layout option", "[pipeline]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  c.output(pooled(c, x));
  c.output(c.add(Op::kReshape, {x}, ShapeAttrs{{1, 60}}));
  const std::vector<CallRead> reads = plan_calls(shared(c), {}, layout::Measure::kBytes).reads;
  REQUIRE(reads.size() == 2);
  for (const CallRead& read : reads)
    CHECK(read.order == (read.call.find("pool") == std::string::npos ? DimOrder() : kLast));
}

TEST_CASE("every result of a call with several results is reported", "[pipeline]") {
  Case c;
  const ValueId y = pooled(c, c.input("x", {1, 4, 4, 5}));
  const std::vector<TensorType> types = {passes::f32({1, 1, 4, 5}), passes::f32({1, 3, 4, 5})};
  const NodeId split = c.graph.add_node(Op::kSplit, share(SplitAttrs{1, {1, 3}}), std::vector{y}, types,
                                        passes::leaf("split"), "split");
  const std::vector<ValueId> parts = {c.graph.result(c.graph.node(split), 0),
                                      c.graph.result(c.graph.node(split), 1)};
  for (const ValueId part : parts) c.output(pooled(c, part));
  const CallPlan plan = plan_calls(shared(c), {}, layout::Measure::kBytes);
  for (const ValueId part : parts) {
    REQUIRE(plan.orders[part.index()]);
    CHECK(*plan.orders[part.index()] == kLast);
  }
}

TEST_CASE("the image of a grid sampler is channels last, its grid is not", "[pipeline]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5}), grid = c.input("grid", {1, 6, 7, 2});
  const ValueId moved = c.add(Op::kNeg, {grid});
  c.output(c.add(Op::kGridSample, {c.add(Op::kAbs, {x}), moved}, GridSampleAttrs{}, "sampled"));
  CHECK(carries_grid(c.graph) == std::vector<bool>{false, true});
  const CallPlan plan = plan_calls(shared(c), {}, layout::Measure::kBytes);
  CHECK(plan.orders[moved.index()]->is_identity());
  CHECK(plan.orders[grid.index()]->is_identity());
  CHECK(*plan.orders[c.graph.result(c.graph.nodes().back()).index()] == kLast);
}

}  // namespace
}  // namespace tosaic::pipeline
