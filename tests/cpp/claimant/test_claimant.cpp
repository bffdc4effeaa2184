#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/claimant/claimant.h"
#include "tosaic/claimant/verdicts.h"
#include "tosaic/ir/parse.h"

namespace tosaic::claimant {
namespace {

std::shared_ptr<const Graph> program() {
  return std::make_shared<const Graph>(parse(R"(tosaic 1
graph @g stage=quantized {
  input %x: i8[1,4,9,9] q(i8 -128..127 scale 0.5 zp 0) path="x"
  %pool: i8[1,4,4,4] q(i8 -128..127 scale 0.5 zp 0) = max_pool(%x) {kernel=[2,2], stride=[2,2], padding=[0,0], dilation=[1,1], ceil_mode=false, count_include_pad=true, divisor_override=none}
  %wide: i8[1,4,2,2] q(i8 -128..127 scale 0.5 zp 0) = max_pool(%x) {kernel=[3,3], stride=[5,5], padding=[0,0], dilation=[1,1], ceil_mode=false, count_include_pad=true, divisor_override=none}
  return %pool path="a"
  return %wide path="b"
}
)"));
}

std::vector<std::string> rules(const Verdict& verdict) {
  std::vector<std::string> out;
  for (const Reason& reason : verdict.reasons) out.push_back(reason.rule);
  return out;
}

TEST_CASE("a claimant takes the nodes that are within the limits of its device") {
  const std::vector<Verdict> found = verdicts(program(), claimant("ethos-u55-64"));
  CHECK(found[0].supported());
  CHECK(rules(found[1]) == std::vector<std::string>{"stride"});
  CHECK(found[1].reasons[0].parts.node == "wide");
  CHECK(found[1].reasons[0].parts.got == "5");
}

TEST_CASE("a claimant may have limits of the caller") {
  Claimant own = claimant("host");
  own.name = "own";
  own.limits = std::make_shared<const Limits>(Limits{{{{Op::kMaxPool}, {DType::kI8}, {}, {DType::kI8}}},
                                                     {{{Op::kMaxPool}, Quantity::kKernelHeight, 1, 2}}});
  const std::vector<Verdict> found = verdicts(program(), own);
  CHECK(found[0].supported());
  CHECK(rules(found[1]) == std::vector<std::string>{std::string(name_of(Quantity::kKernelHeight))});
}

TEST_CASE("the kernels of a CPU decide how large the buffer of a node is") {
  const std::shared_ptr<const Graph> graph = std::make_shared<const Graph>(parse(R"(tosaic 1
graph @g stage=quantized {
  input %x: i8[1,4,9,9] q(i8 -128..127 scale 0.5 zp 0) path="x"
  input %w: i8[4,1,5,5] q(i8 -128..127 scale 0.5 zp 0) path="w"
  %conv: i8[1,4,5,5] q(i8 -128..127 scale 0.5 zp 0) = conv(%x, %w) {stride=[1,1], pad_before=[0,0], pad_after=[0,0], dilation=[1,1], output_padding=[0,0], groups=4, transposed=false}
  return %conv path="a"
}
)"));
  const auto bytes = [&](const char* name) {
    return scratch_bytes(*graph, graph->nodes()[0], claimant(name).kernels.value());
  };
  CHECK(bytes("cortex-m0plus") == 0);
  CHECK(bytes("cortex-m33") == 2 * 4 * 25);
  CHECK(bytes("cortex-m85") == 4 * 124 * 25);
  CHECK_FALSE(claimant("neutron").kernels.has_value());
}

TEST_CASE("the most specific rule of the user decides") {
  const std::vector<Rule> own{
      {.match = Match::kOp, .value = "max_pool", .text = "too slow"},
      {.match = Match::kPredicate,
       .value = "strided",
       .predicate = [](const Graph&,
                       const Node& node) { return Graph::attrs<PoolAttrs>(node).stride[0] > 3; },
       .allow = true}};
  const std::vector<Verdict> found = verdicts(program(), claimant("ethos-u55-64"), own);
  CHECK(rules(found[0]) == std::vector<std::string>{"deny"});
  CHECK(found[1].supported());
}

TEST_CASE("a rule that matches no node is an error") {
  const std::vector<Rule> own{{.match = Match::kModule, .value = "head"}};
  CHECK_THROWS_WITH(verdicts(program(), claimant("host"), own),
                    Catch::Contains("rule deny(module='head') matches no node"));
}

TEST_CASE("a device of the caller is a claimant like tosaic's own devices") {
  const auto mine = std::make_shared<const Device>(
      Device{.name = "mine",
             .members = {{"mine-1"}, {"mine-2", CmsisNnKernels::kDsp}},
             .target = "tosa-1.0+int16+int",
             .limits = Limits{{{{Op::kTosaMaxPool2d}, {DType::kI8}, {}, {DType::kI8}}, {{Op::kTosaSlice}}},
                              {{{Op::kTosaMaxPool2d}, Quantity::kStride, 1, 2}}}});
  const Claimant found = claimant("mine-2", std::array{mine});
  CHECK(found.target == "TOSA-1.0+INT+int16");
  CHECK(found.kernels == CmsisNnKernels::kDsp);
  CHECK_FALSE(claimant_of(mine, "mine-1").kernels.has_value());
  const std::vector<Verdict> judged = verdicts(program(), found);
  CHECK(judged[0].supported());
  CHECK(rules(judged[1]) == std::vector<std::string>{"stride"});
  CHECK_THROWS_WITH(claimant_of(mine, "mine-3"), Catch::Contains("one of mine-1, mine-2, got 'mine-3'"));
  CHECK_THROWS_WITH(claimant("vgf", std::array{mine}), Catch::Contains("unknown claimant"));
}

// The operators that a record lists.
std::set<Op> listed(const Claimant& claimant) {
  std::set<Op> out;
  for (const OperatorRow& row : claimant.limits->operators) out.insert(row.ops.begin(), row.ops.end());
  return out;
}

TEST_CASE("a device takes no operator that its record does not list") {
  // No device takes these operators, as no device takes a new row of ops.def that is in no list yet.
  const std::set<Op> unlisted{Op::kTosaVariable, Op::kTosaVariableWrite, Op::kTosaVariableRead};
  std::set<Op> taken;
  for (const std::shared_ptr<const Device>& device : built_in_devices())
    if (!device->target.empty()) taken.merge(listed(claimant_of(device, device->members[0].name)));
  for (const OpInfo& row : all_ops())
    if (row.is_tosa) CHECK(taken.contains(row.op) != unlisted.contains(row.op));

  const auto graph = std::make_shared<const Graph>(parse(R"(tosaic 1
graph @g stage=tosa {
  input %x: i8[4] path="x"
  %y: i8[4] = tosa.identity(%x)
  %z: i8[4] = tosa.custom(%y) {operator_name="mine", domain_name="mine", implementation_attrs=""}
  return %z path="a"
}
)"));
  std::vector<Reason> found;
  const Claimant u85 = claimant("ethos-u85-128");
  judge(*graph, graph->nodes()[0], *u85.limits, u85.name, found);
  CHECK(found.empty());
  judge(*graph, graph->nodes()[1], *u85.limits, u85.name, found);
  REQUIRE(found.size() == 1);
  CHECK(found[0].parts.what == "ethos-u85-128 has no 'tosa.custom'");
}

}  // namespace
}  // namespace tosaic::claimant
