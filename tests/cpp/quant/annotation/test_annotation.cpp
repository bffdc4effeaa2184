#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "tosaic/base/error.h"
#include "tosaic/quant/annotation/annotation.h"

namespace tosaic::quant {
namespace {

using Catch::Contains;

const ObservedSpec kInt8{.dtype = "i8", .qmin = -128, .qmax = 127};
const FixedSpec kFixed{.dtype = "i8", .scale = 1.0 / 127, .zero_point = 0, .qmin = -127, .qmax = 127};

// x -> conv (with weight w) -> pool -> output
std::shared_ptr<const CallGraph> chain() {
  const NodeIndex x(0), w(1), conv(2), pool(3);
  std::vector<CallNode> nodes = {
      {.name = "x", .kind = CallKind::kPlaceholder, .dtype = "f32"},
      {.name = "w", .kind = CallKind::kGetAttr, .dtype = "f32"},
      {.name = "conv",
       .target = "aten.conv2d.default",
       .operands = {{"args[0]", x, "input"}, {"args[1]", w, "weight"}},
       .modules = {{"", "Net"}, {"layer1.conv", "torch.nn.Conv2d"}},
       .dtype = "f32"},
      {.name = "pool",
       .target = "aten.max_pool2d.default",
       .operands = {{"args[0]", conv, "self"}},
       .dtype = "f32"},
      {.name = "output", .kind = CallKind::kOutput, .operands = {{"args[0][0]", pool}}},
  };
  return std::make_shared<const CallGraph>(std::move(nodes), std::vector<GraphPort>{{"x", x}},
                                           std::vector<GraphPort>{{"out", pool}});
}

struct Annotated {
  AnnotationPlan plan{chain()};
  NodeIndex x{0}, w{1}, conv{2}, pool{3};
  RuleId quantizer = plan.add_rule("quantizer");

  Annotated() {
    plan.set(Slot::edge(x, conv), kInt8, quantizer);
    plan.set(Slot::output(conv), kInt8, quantizer);
    plan.set(Slot::edge(conv, pool), kInt8, quantizer);
    plan.set(Slot::output(pool), SharedSpec{Slot::edge(conv, pool)}, quantizer);
  }
  RuleId run(const Rule& rule) {
    const RuleId id = plan.add_rule("rule");
    apply(rule, plan, id);
    return id;
  }
};

}  // namespace

TEST_CASE("sharing compares all numbers of specs and no observers", "[annotation]") {
  ObservedSpec other = kInt8;
  other.observer = ObjectId(3);
  CHECK(sharing_key(kInt8) == sharing_key(other));
  other.axis = 0;
  CHECK(sharing_key(kInt8) != sharing_key(other));
  FixedSpec coarse = kFixed;
  coarse.scale = 0.5;
  CHECK(sharing_key(kFixed) != sharing_key(coarse));
  CHECK(sharing_key(DerivedSpec{.dtype = "i8", .qmin = -128, .qmax = 127, .scheme = "per_tensor_affine"}) ==
        sharing_key(kInt8));
  CHECK(sharing_key(FloatSpec{}).empty());
}

TEST_CASE("the key of a foreign spec equals that of a known one with equal fields", "[annotation]") {
  const ForeignSpec foreign{.object = {},
                            .fields = {{"axis", field_text(std::optional<std::int64_t>())},
                                       {"dtype", "i8"},
                                       {"dynamic", field_text(false)},
                                       {"qmax", field_text(std::optional<std::int64_t>(127))},
                                       {"qmin", field_text(std::optional<std::int64_t>(-128))},
                                       {"scheme", "per_tensor_affine"}}};
  CHECK(sharing_key(foreign) == sharing_key(kInt8));
  CHECK_FALSE(sharing_key(ForeignSpec{}).empty());
}

TEST_CASE("a call graph derives the users of each node", "[annotation]") {
  const auto graph = chain();
  CHECK(graph->node(NodeIndex(2)).users == std::vector{NodeIndex(3)});
  CHECK(graph->contains(Slot::edge(NodeIndex(0), NodeIndex(2))));
  CHECK_FALSE(graph->contains(Slot::edge(NodeIndex(0), NodeIndex(3))));
  CHECK(graph->text(Slot::edge(NodeIndex(0), NodeIndex(2))) == "x -> conv");
  CHECK_THROWS_WITH(graph->at("cnov", "test"), "[test] the graph has no node 'cnov'. Did you mean 'conv'.");
}

TEST_CASE("the short name of a target has neither namespace nor overload", "[annotation]") {
  CHECK(short_target("aten.conv2d.default") == "conv2d");
  CHECK(short_target("aten.conv2d") == "conv2d");
  CHECK(short_target("conv2d") == "conv2d");
  CHECK(short_target("a.b.c.d") == "b.c");
}

TEST_CASE("a plan has an entry for each slot and a history of what was replaced", "[annotation]") {
  Annotated made;
  CHECK(made.plan.size() == 4);
  CHECK(made.plan.edits() == 4);
  const RuleId me = made.plan.add_rule("me");
  made.plan.set(Slot::output(made.conv), kInt8, me);  // equal: nothing changes
  CHECK(made.plan.history().empty());
  CHECK(made.plan.find(Slot::output(made.conv))->rule == made.quantizer);
  made.plan.set(Slot::output(made.conv), kFixed, me);
  CHECK(made.plan.erase(Slot::edge(made.x, made.conv), me));
  CHECK_FALSE(made.plan.erase(Slot::edge(made.x, made.conv), me));
  REQUIRE(made.plan.history().size() == 2);
  CHECK(made.plan.history()[0].set_by == made.quantizer);
  CHECK(made.plan.history()[0].after == QSpec(kFixed));
  CHECK(made.plan.size() == 3);
  made.plan.clear(made.pool, me);
  CHECK(made.plan.size() == 1);
  CHECK_FALSE(made.plan.has_annotation(made.pool));
}

TEST_CASE("slots share explicitly, and implicitly where specs of one tensor are equal", "[annotation]") {
  Annotated made;
  const SharingGroups sharing(made.plan);
  REQUIRE(sharing.groups().size() == 2);
  CHECK(sharing.groups()[1].members.size() == 3);
  CHECK(sharing.groups()[1].spec == Slot::output(made.conv));
  CHECK(sharing.conflicts().empty());
  made.plan.set_allow_implicit_sharing(made.pool, false);
  CHECK(SharingGroups(made.plan).groups().size() == 3);
}

TEST_CASE("a reference to a later slot is a conflict until the two exchange their specs", "[annotation]") {
  Annotated made;
  made.plan.set(Slot::output(made.x), SharedSpec{Slot::edge(made.x, made.conv)}, made.quantizer);
  const SharingConflict later{ConflictKind::kLaterReference, Slot::output(made.x),
                              Slot::edge(made.x, made.conv)};
  CHECK(SharingGroups(made.plan).conflicts() == std::vector{later});
  refer_to_first(made.plan, {}, made.quantizer);
  CHECK(SharingGroups(made.plan).conflicts().empty());
  CHECK(made.plan.output(made.x)->spec == QSpec(kInt8));
}

TEST_CASE("a rule sets all slots of a tensor, and what shares with them", "[annotation]") {
  Annotated made;
  made.run(InputsRule{{{std::int64_t{0}, kFixed}}});
  CHECK(made.plan.find(Slot::edge(made.x, made.conv))->spec == QSpec(SharedSpec{Slot::output(made.x)}));
  const RuleId fix = made.run(AroundRule{.where = {.op = "max_pool2d"}, .result = kFixed});
  const SharingGroups sharing(made.plan);
  CHECK(made.plan.find(*sharing.groups()[*sharing.group_of(Slot::output(made.conv))].spec)->spec ==
        QSpec(kFixed));
  CHECK(made.plan.rule(fix).matches == 1);
}

TEST_CASE("a rule about a node that does not exist names near ones", "[annotation]") {
  Annotated made;
  CHECK_THROWS_WITH(made.run(ClearRule{{.op = "conv3d"}}),
                    Contains("no node has op='conv3d'. Did you mean 'aten.conv2d.default'"));
  const RuleId id = made.plan.add_rule("allowed");
  apply(ClearRule{{.op = "conv3d"}}, made.plan, id, true);
  CHECK(made.plan.rule(id).matches == 0);
}

TEST_CASE("a resolution tells what is left float and what is quantized twice", "[annotation]") {
  Annotated made;
  made.plan.set(Slot::edge(made.conv, made.pool), kFixed, made.quantizer);
  Resolution found = resolve(made.plan);
  REQUIRE(found.requantized.size() == 1);
  CHECK(found.requantized[0].edge == Slot::edge(made.conv, made.pool));
  CHECK(found.left_float.empty());
  made.run(InputsRule{{{"x", FloatSpec{}}}});
  const RuleId clear = made.run(ClearRule{{.nodes = std::vector<std::string>{"conv", "pool"}}});
  found = resolve(made.plan);
  REQUIRE(found.left_float.size() == 3);
  CHECK(found.left_float[1].reason == FloatReason::kRemoved);
  CHECK(found.left_float[1].rule == clear);
}

TEST_CASE("a path of a module does not select modules that only begin alike", "[annotation]") {
  const auto graph = chain();
  CHECK(select(*graph, {.module = "layer"}).empty());
  CHECK(select(*graph, {.module = "layer1"}) == std::vector{NodeIndex(2)});
  CHECK(select(*graph, {.module = "layer1.*"}) == std::vector{NodeIndex(2)});
  CHECK(select(*graph, {.module = "*.conv", .type = "Conv2d"}) == std::vector{NodeIndex(2)});
}

}  // namespace tosaic::quant
