#include "tosaic/claimant/emitted.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tosaic/ir/parse.h"

namespace tosaic::claimant {
namespace {

// A pool with strides of 5 between transposes at the borders of the graph. The second one permutes i32.
const char* const kProgram = R"(tosaic 1
graph @g stage=tosa {
  input %x: i8[1,4,8,8] path="x"
  %nhwc: i8[1,8,8,4] = tosa.transpose(%x) {perm=[0,2,3,1]}
  %pool: i8[1,2,2,4] = tosa.max_pool2d(%nhwc) {kernel=[3,3], stride=[5,5], pad=[0,0,0,0]}
  %wide: i32[1,2,2,4] = tosa.cast(%pool) {dtype=i32}
  %y: i32[4,2,2,1] = tosa.transpose(%wide) {perm=[3,1,2,0]}
  return %y path="y"
}
)";

std::vector<std::string> found_in(const Graph& graph, const char* device, Borders borders) {
  std::vector<std::string> out;
  for (const EmittedReason& each : exceeded_limits(graph, claimant(device), borders))
    out.push_back(each.node + " " + each.reason.rule);
  return out;
}

TEST_CASE("operators of a lowered group are judged by the limits of the device") {
  const Graph graph = parse(kProgram);
  CHECK(found_in(graph, "ethos-u55-128", Borders::kPlanned) ==
        std::vector<std::string>{"pool stride", "y permutation"});
  CHECK(found_in(graph, "ethos-u85-256", Borders::kPlanned).empty());
}

TEST_CASE("transposes at borders are not judged before the dim orders of the borders are planned") {
  CHECK(found_in(parse(kProgram), "ethos-u55-128", Borders::kOpen) ==
        std::vector<std::string>{"pool stride"});
}

TEST_CASE("a target, and a claimant that is not lowered to TOSA, have no limits for a lowered group") {
  const Graph graph = parse(kProgram);
  for (const char* name : {"TOSA-1.0+INT", "host", "cortex-m55"})
    CHECK(exceeded_limits(graph, claimant(name)).empty());
}

}  // namespace
}  // namespace tosaic::claimant
