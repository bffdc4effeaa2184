#include <catch2/catch.hpp>
#include <memory>
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

}  // namespace
}  // namespace tosaic::claimant
