#include "tosaic/target/integer_semantics.h"

#include <catch2/catch.hpp>

#include "tosaic/base/error.h"
#include "tosaic/passes/lower_to_integer/lower_to_integer.h"

namespace tosaic::target {

TEST_CASE("semantics are found by name") {
  CHECK(semantics_named("tosa") == IntegerSemantics{});
  CHECK(semantics_named("cmsis-nn") == cmsis_nn_semantics());
  CHECK_THROWS_AS(semantics_named("CMSIS-NN"), InvalidGraph);
}

TEST_CASE("the rounding of the semantics precedes the rounding of the target") {
  const TargetSpec once = parse_target("TOSA-1.0+INT"), twice = parse_target("TOSA-1.0+INT+doubleround");
  CHECK(passes::integer_rules(once).rounding_mode == RoundingMode::kSingleRound);
  CHECK(passes::integer_rules(twice).rounding_mode == RoundingMode::kDoubleRound);
  CHECK(passes::integer_rules(once, cmsis_nn_semantics()).rounding_mode == RoundingMode::kDoubleRound);
  CHECK(passes::integer_rules(twice, {.rounding = RoundingMode::kSingleRound}).rounding_mode ==
        RoundingMode::kSingleRound);
}

}  // namespace tosaic::target
