// Checks the liveness of the values of a small graph.
#include <catch2/catch.hpp>

#include "exec/chain.h"
#include "tosaic/analysis/liveness.h"

namespace tosaic::analysis {
namespace {

// x -> relu -> neg -> add(neg, folded) -> output;  folded = mul(c, c);  dead = abs(x)
struct Example {
  exec::Builder b;
  ValueId x, c, relu, folded, dead, neg, sum;
  Example() {
    x = b.input("x", exec::f32({2}));
    c = b.graph->add_constant(make_constant("c", DType::kF32, {2}, std::vector<double>{1, 2}));
    relu = b.add(Op::kRelu, {x}, "relu");
    folded = b.add(Op::kMul, {c, c}, "folded");
    dead = b.add(Op::kAbs, {x}, "dead");
    neg = b.add(Op::kNeg, {relu}, "neg");
    sum = b.add(Op::kAdd, {neg, folded}, "sum");
    b.output(sum);
  }
};

}  // namespace

TEST_CASE("values live from their definition to their last use", "[analysis]") {
  const Example e;
  const auto live = liveness(*e.b.graph);
  CHECK(live[e.x.index()] == Lifetime{0, 2});
  CHECK(live[e.relu.index()] == Lifetime{0, 3});
  CHECK(live[e.folded.index()] == Lifetime{1, 4});
  CHECK(live[e.dead.index()] == Lifetime{2, 2});
  CHECK(live[e.sum.index()] == Lifetime{4, 5});
}

}  // namespace tosaic::analysis
