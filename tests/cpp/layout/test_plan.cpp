#include "tosaic/layout/plan.h"

#include "passes/pass_case.h"
#include "tosaic/layout/explain.h"

namespace tosaic::layout {
namespace {

using passes::Case;

const DimOrder kLast = DimOrder::channels_last(4);

ValueId pooled(Case& c, ValueId x) {
  return c.add(Op::kMaxPool, {x}, PoolAttrs{{1, 1}, {1, 1}, {0, 0}, {1, 1}, false, true, {}});
}

DimOrder order_of(const Case& c, ValueId id) { return plan_layout(c.graph).order[id.index()]; }

TEST_CASE("values between channels-last operators are channels last", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5}), y = pooled(c, x);
  const ValueId scaled = c.add(Op::kMul, {c.weights("s", {3, 1, 1}), y});
  const ValueId joined = c.add(Op::kCat, {scaled, y}, AxisAttrs{1});
  const ValueId mean = c.add(Op::kSum, {joined}, ReduceAttrs{{2, 3}, true, {}});
  c.output(pooled(c, c.add(Op::kMul, {joined, mean})));
  CHECK(order_of(c, x).is_identity());
  CHECK(order_of(c, scaled) == kLast);
  CHECK(order_of(c, joined) == kLast);
  const LayoutPlan plan = plan_layout(c.graph);
  CHECK(plan.transposes.size() == 2);  // transposes of the graph input and output
  CHECK(plan.cost == proven_bound(plan.problem, plan.certificate));
}

TEST_CASE("a value that several nodes read in another order is transposed once", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  for (int i = 0; i < 3; ++i) c.output(c.add(Op::kAmax, {pooled(c, x)}, ReduceAttrs{{1, 2, 3}, false, {}}));
  const LayoutPlan plan = plan_layout(c.graph);
  REQUIRE(plan.transposes.size() == 1);
  CHECK(plan.transposes[0].value == x);
  CHECK(plan.bytes == 3 * 4 * 5 * 4);
}

TEST_CASE("the smaller side of an operator is transposed", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  const ValueId top = c.add(Op::kAmax, {pooled(c, x)}, ReduceAttrs{{2}, true, {}});
  c.output(c.add(Op::kAbs, {top}));
  const LayoutPlan plan = plan_layout(c.graph);
  REQUIRE(plan.transposes.size() == 2);
  CHECK(plan.transposes[1].bytes == 3 * 5 * 4);
}

TEST_CASE("a permute between the two orders needs no transpose", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 4, 5, 3});
  const ValueId image = c.add(Op::kPermute, {x}, PermuteAttrs{{0, 3, 1, 2}});
  c.output(c.add(Op::kPermute, {pooled(c, image)}, PermuteAttrs{{0, 2, 3, 1}}));
  CHECK(plan_layout(c.graph).transposes.empty());
}

TEST_CASE("both sides of a transpose are explained by the nodes that require their orders", "[layout]") {
  Case c;
  const ValueId y = pooled(c, c.input("x", {1, 3, 4, 5}));
  c.output(c.add(Op::kAbs, {y}));
  const LayoutPlan plan = plan_layout(c.graph);
  const std::vector<Remedy> remedies = remedies_of(c.graph, plan, Measure::kBytes, {{true}, {true}});
  const std::vector<Explanation> reasons = explain(c.graph, plan, remedies);
  REQUIRE(reasons.size() == 2);
  CHECK(reasons[0].made[0].rule == "the input comes row-major");
  CHECK(reasons[0].made[0].remedy == "Declare input 'x' channels_last: that leaves 1 transpose of 240 bytes");
  CHECK(reasons[0].read[0].rule == "max_pool wants channels last");
  CHECK(reasons[1].made[0].rule == "max_pool wants channels last");
  CHECK(reasons[1].read[0].rule == "the output goes row-major");
}

TEST_CASE("the plan with the fewest transposes may move more bytes", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 8, 4, 5});
  const ValueId half = c.add(Op::kSlice, {x}, SliceAttrs{1, 0, 2, 1});
  const ValueId rest = c.add(Op::kSlice, {x}, SliceAttrs{1, 2, 4, 1});
  c.output(c.add(Op::kAmax, {pooled(c, half)}, ReduceAttrs{{1, 2, 3}, false, {}}));
  c.output(c.add(Op::kAmax, {pooled(c, rest)}, ReduceAttrs{{1, 2, 3}, false, {}}));
  CHECK(plan_layout(c.graph).transposes.size() == 2);
  CHECK(plan_layout(c.graph, Measure::kCount).transposes.size() == 1);
}

TEST_CASE("a transpose is placed by the caller's cost function", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  const ValueId y = c.add(Op::kAbs, {x});
  c.output(c.add(Op::kAmax, {pooled(c, y)}, ReduceAttrs{{1, 2, 3}, false, {}}));
  for (const ValueId cheap : {x, y}) {
    const LayoutPlan plan =
        plan_layout(c.graph, TransposeCost([&](const Graph&, ValueId id) { return id == cheap ? 3 : 4; }));
    REQUIRE(plan.transposes.size() == 1);
    CHECK(plan.transposes[0].value == cheap);
    CHECK(plan.transposes[0].cost == 3);
    CHECK(plan.cost == proven_bound(plan.problem, plan.certificate));
  }
}

TEST_CASE("if all transposes are free, there are still as few as possible", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  c.output(c.add(Op::kAmax, {pooled(c, x)}, ReduceAttrs{{1, 2, 3}, false, {}}));
  CHECK(plan_layout(c.graph, TransposeCost([](const Graph&, ValueId) { return 0; })).transposes.size() == 1);
}

TEST_CASE("negative costs, and costs whose sum could overflow, are refused with the value", "[layout]") {
  Case c;
  c.output(c.add(Op::kAmax, {pooled(c, c.input("x", {1, 3, 4, 5}))}, ReduceAttrs{{1, 2, 3}, false, {}}));
  const auto text = [&](std::int64_t cost) {
    try {
      static_cast<void>(plan_layout(c.graph, TransposeCost([=](const Graph&, ValueId) { return cost; })));
    } catch (const InvalidGraph& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(text(-2) == "[layout] a transpose of it has a negative cost: expected 0 or more, got -2 (node 'x')");
  CHECK(text(std::int64_t{1} << 60) ==
        "[layout] the costs of transposes, of which this is the largest, add up to too much: expected a sum "
        "below "
        "2^60, each counted twice for each order of each reader, got 1152921504606846976 (node 'x')");
  CHECK(text(std::int64_t{1} << 54).empty());
}

TEST_CASE("the needs of the target decide what is transposed", "[layout]") {
  Case c;
  const ValueId x = c.input("x", {1, 3, 4, 5});
  c.output(c.add(Op::kAbs, {pooled(c, x)}));
  CHECK(plan_layout(c.graph).transposes.size() == 2);
  target::LayoutNeeds needs = target::tosa_layout_needs();
  needs.ops[static_cast<std::size_t>(Op::kMaxPool)] = {target::LayoutNeed::kRowMajor};
  CHECK(plan_layout(c.graph, Measure::kBytes, {}, needs).transposes.empty());
  needs.ops[static_cast<std::size_t>(Op::kAbs)] = {target::LayoutNeed::kChannelsLast};
  const LayoutPlan plan = plan_layout(c.graph, Measure::kBytes, {}, needs);
  REQUIRE(plan.transposes.size() == 2);
  CHECK(plan.transposes[0].bytes == 3 * 4 * 5 * 4);
  CHECK(explain(c.graph, plan)[0].read[0].rule == "abs wants channels last");
}

}  // namespace
}  // namespace tosaic::layout
