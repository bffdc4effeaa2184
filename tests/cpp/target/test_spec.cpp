#include <catch2/catch.hpp>

#include "tosaic/base/error.h"
#include "tosaic/target/spec.h"

namespace tosaic::target {

TEST_CASE("targets are parsed into profiles, extensions and a level") {
  const TargetSpec spec = parse_target("TOSA-1.0+INT+int16+8k");
  CHECK(spec.has(Profile::kInt));
  CHECK_FALSE(spec.has(Profile::kFp));
  CHECK(spec.has(Extension::kInt16));
  CHECK_FALSE(spec.has(Extension::kInt4));
  CHECK(spec.level == Level::k8K);
  CHECK(parse_target("TOSA-1.0+FP").level == Level::k8K);
  CHECK(parse_target("tosa-1.0+fp+NONE").level == Level::kNone);
  CHECK(parse_target("TOSA-1.0+INT+FP").features == (bit(Profile::kInt) | bit(Profile::kFp)));
}

TEST_CASE("the text of a target is canonical") {
  CHECK(to_string(parse_target("TOSA-1.0+8K+bf16+FP+int4+INT")) == "TOSA-1.0+INT+FP+int4+bf16");
  CHECK(to_string(parse_target("tosa-1.0+fp+controlflow+none")) == "TOSA-1.0+FP+cf+none");
  const char* const all =
      "TOSA-1.0+INT+FP+int16+int4+bf16+fp8e4m3+fp8e5m2+fft+variable+cf+dynamic+doubleround+inexactround";
  CHECK(to_string(parse_target(all)) == all);
}

TEST_CASE("errors in a target list the known parts") {
  CHECK_THROWS_WITH(parse_target("TOSA-0.80+INT"),
                    "[target] unknown target: expected TOSA-1.0 and a profile, such as 'TOSA-1.0+INT', got "
                    "'TOSA-0.80+INT'");
  CHECK_THROWS_WITH(
      parse_target("TOSA-1.0+INT+u55"),
      "[target] unknown part of a target: expected one of INT, FP, int16, int4, bf16, fp8e4m3, fp8e5m2, "
      "fft, variable, cf, dynamic, doubleround, inexactround, 8k, none, got 'u55'");
  CHECK_THROWS_WITH(
      parse_target("TOSA-1.0"),
      "[target] the target has no profile: expected +INT, +FP or both, got 'TOSA-1.0'. For example "
      "'TOSA-1.0+INT'.");
  CHECK_THROWS_WITH(
      parse_target("TOSA-1.0+FP+int16"),
      "[target] the extension int16 needs its profile: expected PRO-INT, got 'TOSA-1.0+FP+int16'");
  CHECK_THROWS_WITH(
      parse_target("TOSA-1.0+INT+INT"),
      "[target] a part of the target is given twice: expected each part, and one level, once, got 'INT'");
  CHECK_THROWS_AS(parse_target(""), InvalidGraph);
  CHECK_THROWS_AS(parse_target("TOSA-1.0+"), InvalidGraph);
}

}  // namespace tosaic::target
