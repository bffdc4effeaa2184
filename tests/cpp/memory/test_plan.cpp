// Checks which values of a graph share memory, and where outputs are stored.
#include <catch2/catch.hpp>
#include <set>

#include "exec/chain.h"
#include "tosaic/memory/plan.h"

namespace tosaic::memory {
namespace {

using exec::Builder;
using exec::f32;

std::vector<NodeNeeds> all_in_place(const Graph& graph) {
  std::vector<NodeNeeds> needs(graph.nodes().size());
  for (NodeNeeds& need : needs) need.in_place = 3;
  return needs;
}

}  // namespace

TEST_CASE("a chain of elementwise nodes is computed in the memory of the output", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({4, 4}));
  const ValueId r = b.add(Op::kRelu, {x}, "relu");
  const ValueId n = b.add(Op::kNeg, {r}, "neg");
  b.output(n);
  const MemoryPlan plan = plan_memory(*b.graph, all_in_place(*b.graph));
  CHECK(plan.values[x.index()] == Location{Area::kInput, 0, 0});
  CHECK(plan.values[r.index()] == Location{Area::kOutput, 0, 0});
  CHECK(plan.values[n.index()] == Location{Area::kOutput, 0, 0});
  CHECK(plan.alias[n.index()] == AliasKind::kInPlace);
  CHECK(plan.arena_bytes == 0);
}

TEST_CASE("an operand that is read later is not overwritten", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  const ValueId r = b.add(Op::kRelu, {x}, "relu");
  const ValueId n = b.add(Op::kNeg, {r}, "neg");
  const ValueId s = b.add(Op::kAdd, {n, r}, "add");
  b.output(s);
  const MemoryPlan plan = plan_memory(*b.graph, all_in_place(*b.graph));
  CHECK(plan.alias[n.index()] == AliasKind::kNone);
  CHECK(plan.alias[s.index()] == AliasKind::kInPlace);
}

TEST_CASE("a view extends the lifetime of its operand", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({4, 4}));
  const ValueId r = b.add(Op::kRelu, {x}, "relu");
  const ValueId v = b.add(Op::kReshape, {r}, "view", ShapeAttrs{{16}});
  const ValueId n = b.add(Op::kNeg, {r}, "neg");
  const ValueId w = b.add(Op::kReshape, {n}, "view_1", ShapeAttrs{{16}});
  b.output(b.add(Op::kAdd, {v, w}, "add"));
  const MemoryPlan plan = plan_memory(*b.graph, all_in_place(*b.graph));
  CHECK(plan.alias[v.index()] == AliasKind::kView);
  CHECK(plan.values[v.index()] == plan.values[r.index()]);
  CHECK(plan.alias[n.index()] == AliasKind::kNone);
}

TEST_CASE("an operand is not overwritten if another operand has the same memory", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  const ValueId r = b.add(Op::kRelu, {x}, "relu");
  const ValueId v = b.add(Op::kReshape, {r}, "view", ShapeAttrs{{16}});
  const ValueId s = b.add(Op::kAdd, {r, v}, "add");
  b.output(s);
  CHECK(plan_memory(*b.graph, all_in_place(*b.graph)).alias[s.index()] == AliasKind::kNone);
}

TEST_CASE("slices of the outermost extent are views where the alignment holds", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({1, 4, 16}));
  const ValueId r = b.add(Op::kRelu, {x}, "relu");
  const ValueId whole = b.add(Op::kSlice, {r}, "rows", SliceAttrs{1, 2, 4, 1});
  const ValueId part = b.add(Op::kSlice, {r}, "columns", SliceAttrs{2, 0, 8, 1});
  const ValueId odd = b.add(Op::kSlice, {r}, "every_other", SliceAttrs{1, 0, 4, 2});
  b.output(whole).output(part).output(odd);
  const MemoryPlan plan = plan_memory(*b.graph, {});
  CHECK(plan.alias[whole.index()] == AliasKind::kView);
  CHECK(plan.values[whole.index()].offset == plan.values[r.index()].offset + 128);
  CHECK(plan.alias[part.index()] == AliasKind::kNone);
  CHECK(plan.alias[odd.index()] == AliasKind::kNone);
}

TEST_CASE("without sharing every result has memory of its own", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  const ValueId r = b.add(Op::kRelu, {x}, "relu");
  const ValueId v = b.add(Op::kReshape, {r}, "view", ShapeAttrs{{4, 4}});
  b.output(b.add(Op::kNeg, {v}, "neg"));
  const MemoryPlan plan = plan_memory(*b.graph, all_in_place(*b.graph), {.share = false});
  CHECK(plan.arena_bytes == 128);
  CHECK(plan.unshared_bytes == 192);
}

TEST_CASE("inputs and outputs can be placed in the arena", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  b.output(b.add(Op::kNeg, {x}, "neg"));
  const MemoryPlan plan = plan_memory(*b.graph, {}, {.inputs_in_arena = true, .outputs_in_arena = true});
  CHECK(plan.arena_bytes == 128);
  CHECK(plan.lower_bound == 128);
}

TEST_CASE("hidden results have memory behind the arena", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  const ValueId first = b.add(Op::kRelu, {x}, "first");  // hidden
  const ValueId view = b.add(Op::kReshape, {first}, "view", ShapeAttrs{{4, 4}});
  const ValueId second = b.add(Op::kNeg, {view}, "second");  // hidden, in place of the first one
  const ValueId shown = b.add(Op::kPermute, {second}, "shown", PermuteAttrs{{1, 0}});
  const ValueId kept = b.add(Op::kRelu, {shown}, "kept");
  b.output(b.add(Op::kPermute, {kept}, "last", PermuteAttrs{{1, 0}}));
  std::vector<NodeNeeds> needs(b.graph->nodes().size());
  needs[2].in_place = 1;
  for (const std::size_t i : {0, 1, 2}) needs[i].is_hidden = true;
  const MemoryPlan plan = plan_memory(*b.graph, needs);
  CHECK(plan.arena_bytes == 128);  // `shown` and `kept`
  CHECK(plan.lower_bound == 128);
  CHECK(plan.hidden_bytes == 64);
  CHECK(plan.all_bytes() == 192);
  for (const ValueId value : {first, view, second})
    CHECK(plan.values[value.index()] == Location{Area::kArena, 0, 128});
  for (const ValueId value : {shown, kept}) CHECK(plan.values[value.index()].offset < 128);
}

TEST_CASE("a hidden result is in the arena if another result is computed in its memory", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({4, 4}));
  const ValueId hidden = b.add(Op::kRelu, {x}, "hidden");
  const ValueId shown = b.add(Op::kNeg, {hidden}, "shown");
  b.output(b.add(Op::kPermute, {shown}, "last", PermuteAttrs{{1, 0}}));
  std::vector<NodeNeeds> needs = all_in_place(*b.graph);
  needs[0].is_hidden = true;
  needs[2].in_place = 0;
  const MemoryPlan plan = plan_memory(*b.graph, needs);
  CHECK(plan.alias[shown.index()] == AliasKind::kInPlace);
  CHECK(plan.values[hidden.index()] == plan.values[shown.index()]);
  CHECK(plan.arena_bytes == 64);
  CHECK(plan.hidden_bytes == 0);
}

TEST_CASE("scratch occupies memory only during its own step", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  const ValueId r = b.add(Op::kRelu, {x}, "relu");
  b.output(b.add(Op::kNeg, {r}, "neg"));
  std::vector<NodeNeeds> needs(2);
  needs[0].scratch_bytes = 100;
  needs[1].scratch_bytes = 90;
  const MemoryPlan plan = plan_memory(*b.graph, needs);
  CHECK(plan.arena_bytes == 192);
  CHECK(plan.live_bytes == std::vector<std::size_t>{192, 192});
}

TEST_CASE("a result that an earlier step may write has memory of its own from that step on", "[memory]") {
  Builder b;
  const ValueId x = b.input("x", f32({16}));
  const ValueId early = b.add(Op::kNeg, {x}, "early");
  const ValueId first = b.add(Op::kAbs, {early}, "first");
  const ValueId last = b.add(Op::kRelu, {first}, "last");
  b.output(b.add(Op::kNeg, {last}, "neg"));
  const auto offsets = [&](const MemoryPlan& plan) {
    std::set<std::size_t> found;
    for (const ValueId value : {early, first, last}) found.insert(plan.values[value.index()].offset);
    return found.size();
  };
  std::vector<NodeNeeds> apart(4);
  CHECK(offsets(plan_memory(*b.graph, apart)) == 2);
  apart[2].writer = 1;
  apart[2].in_place = 1;
  const MemoryPlan plan = plan_memory(*b.graph, apart);
  CHECK(offsets(plan) == 3);
  CHECK(plan.alias[last.index()] == AliasKind::kNone);
  CHECK(plan.arena_bytes == 192);
}

}  // namespace tosaic::memory
