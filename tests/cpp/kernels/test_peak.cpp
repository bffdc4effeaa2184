// Checks that the peak of a machine is measured for the factors that its kernels multiply.
#include "tosaic/kernels/peak.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tosaic/kernels/options.h"

namespace tosaic::kernels {

TEST_CASE("each usable instruction set has a peak for the factors that it multiplies", "[kernels]") {
  for (const Isa isa : usable_isas()) {
    for (const DType factors : {DType::kF32, DType::kF64, DType::kI16}) {
      const std::optional<double> rate = peak_multiply_adds(isa, factors);
      REQUIRE(rate.has_value());
      CHECK(*rate > 0);
    }
    CHECK(peak_multiply_adds(isa, DType::kI8).has_value() == (isa != Isa::kBaseline && isa != Isa::kAvx512));
    CHECK_FALSE(peak_multiply_adds(isa, DType::kI64).has_value());
  }
}

bool runs(Isa isa) { return std::ranges::find(usable_isas(), isa) != usable_isas().end(); }

TEST_CASE("products of bytes need no wide vectors, but they are not chosen before wide ones", "[kernels]") {
  if (runs(Isa::kAvxVnni)) CHECK(runs(Isa::kAvx2));
  if (runs(Isa::kAvx512)) CHECK(best_isa() >= Isa::kAvx512);
  for (const Isa isa : usable_isas()) CHECK(parse_isa(to_string(isa)) == isa);
}

TEST_CASE("the peak of several threads is the peak of all together", "[kernels]") {
  CHECK(peak_multiply_adds(best_isa(), DType::kF32, 3).value_or(0) > 0);
  CHECK(peak_bandwidth(best_isa(), 2) > 0);
}

}  // namespace tosaic::kernels
