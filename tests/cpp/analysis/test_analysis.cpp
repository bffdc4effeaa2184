// Liveness, reachability and topology of small graphs.
#include <catch2/catch.hpp>

#include "exec/chain.h"
#include "tosaic/analysis/liveness.h"
#include "tosaic/analysis/reachability.h"
#include "tosaic/analysis/topology.h"

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

TEST_CASE("depends_on_input finds the values that depend on no input", "[analysis]") {
  const Example e;
  const auto depends = depends_on_input(*e.b.graph);
  CHECK(depends[e.sum.index()]);
  CHECK_FALSE(depends[e.folded.index()]);
  CHECK_FALSE(depends[e.c.index()]);
}

TEST_CASE("nodes that reach no output are dead", "[analysis]") {
  const Example e;
  CHECK(reaches_output(*e.b.graph) == std::vector<bool>{true, true, false, true, true});
}

TEST_CASE("edges, depths and topological order follow the data flow", "[analysis]") {
  const Example e;
  const Adjacency edges = adjacency(*e.b.graph);
  CHECK(edges.predecessors[4] == std::vector<std::uint32_t>{1, 3});
  CHECK(edges.successors[0] == std::vector<std::uint32_t>{3});
  CHECK(depths(*e.b.graph) == std::vector<std::uint32_t>{0, 0, 0, 1, 2});
  CHECK(topological_order(edges) == std::vector<std::uint32_t>{0, 1, 2, 3, 4});
}

TEST_CASE("nodes of a cycle are not in the topological order", "[analysis]") {
  Adjacency edges;
  edges.predecessors = {{}, {0, 2}, {1}, {}};
  edges.successors = {{1}, {2}, {1}, {}};
  CHECK(topological_order(edges) == std::vector<std::uint32_t>{0, 3});
}

}  // namespace tosaic::analysis
