#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "tosaic/base/error.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::quant {
namespace {

constexpr auto kSingle = RoundingMode::kSingleRound;
constexpr auto kDouble = RoundingMode::kDoubleRound;
constexpr auto k16 = MultiplierWidth::k16;
constexpr auto k32 = MultiplierWidth::k32;
constexpr double kInf = std::numeric_limits<double>::infinity();

// An upper bound, in units of the result, of |apply_scale(value) - value * scale| over all values in
// `values`.
//
// With m / 2^s = real_scale(by), |value * (m / 2^s - scale)| is at most |m / 2^s - scale| * max|value|.
// Double arithmetic computes the difference exactly, since m / 2^s is 0 or within a factor of two of the
// scale. The shift rounds by at most 1/2; double rounding adds 2^30 / 2^s if s > 31. The sum is rounded up.
// The bound does not include clipping to the result dtype.
double error_bound(double scale, Multiplier by, MultiplierWidth width, RoundingMode mode, ValueRange values) {
  const double largest = std::max(std::abs(static_cast<double>(values.low)),  //
                                  std::abs(static_cast<double>(values.high)));
  double bound = std::abs(real_scale(by) - scale) * largest + 0.5;
  if (mode == RoundingMode::kDoubleRound && width == MultiplierWidth::k32 && by.shift > 31)
    bound += std::ldexp(1.0, 30 - by.shift);
  return std::nextafter(bound * (1 + 4 * std::numeric_limits<double>::epsilon()),
                        std::numeric_limits<double>::infinity());
}

std::string refusal(double scale, MultiplierWidth width) {
  try {
    static_cast<void>(multiplier_of(scale, width));
  } catch (const QuantMismatch& error) {
    return error.what();
  }
  return "";
}

std::string plan_refusal(RescaleSide from, RescaleSide to, std::vector<double> scales,
                         RescaleOptions options = {}) {
  try {
    static_cast<void>(plan_rescale(from, to, scales, options));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("scales that are powers of two have a mantissa of one half", "[requantize]") {
  CHECK(multiplier_of(1.0, k32) == Multiplier{1 << 30, 30});
  CHECK(multiplier_of(0.5, k32) == Multiplier{1 << 30, 31});
  CHECK(multiplier_of(0.75, k32) == Multiplier{3 << 29, 31});
  CHECK(multiplier_of(1.0, k16) == Multiplier{1 << 14, 14});
  CHECK(multiplier_of(std::ldexp(1.0, 28), k32) == Multiplier{1 << 30, 2});
  CHECK(multiplier_of(std::ldexp(1.0, 12), k16) == Multiplier{1 << 14, 2});
}

TEST_CASE("multipliers are rounded half to even", "[requantize]") {
  const double unit = std::ldexp(1.0, -31);
  CHECK(multiplier_of(0.5 + 0.5 * unit, k32) == Multiplier{1 << 30, 31});
  CHECK(multiplier_of(0.5 + 0.75 * unit, k32) == Multiplier{(1 << 30) + 1, 31});
  CHECK(multiplier_of(0.5 + 1.5 * unit, k32) == Multiplier{(1 << 30) + 2, 31});
  CHECK(multiplier_of(0.5 + 2.5 * unit, k32) == Multiplier{(1 << 30) + 2, 31});
  CHECK(multiplier_of(0.5 + std::ldexp(0.5, -15), k16) == Multiplier{1 << 14, 15});
}

TEST_CASE("a mantissa that rounds to 1 is halved", "[requantize]") {
  CHECK(multiplier_of(std::nextafter(1.0, 0.0), k32) == Multiplier{1 << 30, 30});
  CHECK(multiplier_of(1.0 - std::ldexp(1.0, -32), k32) == Multiplier{1 << 30, 30});  // a tie: to even
  CHECK(multiplier_of(1.0 - std::ldexp(1.0, -31), k32) == Multiplier{0x7fffffff, 31});
  CHECK(multiplier_of(std::nextafter(1.0, 0.0), k16) == Multiplier{1 << 14, 14});
}

TEST_CASE("beyond shift 62 the multiplier is shifted down", "[requantize]") {
  CHECK(multiplier_of(std::ldexp(1.0, -32), k32) == Multiplier{1 << 30, 62});
  CHECK(multiplier_of(std::ldexp(1.0, -33), k32) == Multiplier{1 << 29, 62});
  CHECK(multiplier_of(std::ldexp(1.999, -62), k32) == Multiplier{1, 62});  // truncated
  CHECK(multiplier_of(std::ldexp(1.0, -63), k32) == Multiplier{0, 62});
  CHECK(multiplier_of(std::numeric_limits<double>::denorm_min(), k32) == Multiplier{0, 62});
  CHECK(multiplier_of(std::ldexp(1.0, -48), k16) == Multiplier{1 << 14, 62});
  CHECK(multiplier_of(std::ldexp(1.0, -50), k16) == Multiplier{1 << 12, 62});
}

TEST_CASE("a scale that is not positive, not finite or too large is refused by name", "[requantize]") {
  CHECK(refusal(0.0, k32) == "[quant] the scale: expected a positive finite number, got 0.0");
  CHECK(refusal(-0.25, k32) == "[quant] the scale: expected a positive finite number, got -0.25");
  CHECK(refusal(kInf, k16) == "[quant] the scale: expected a positive finite number, got inf");
  CHECK(refusal(std::nan(""), k32) == "[quant] the scale: expected a positive finite number, got nan");
  CHECK(refusal(std::ldexp(1.0, 29), k32) ==
        "[quant] the scale is too large for a multiplier and a shift: expected a number that rounds below "
        "2^29, "
        "got 536870912.0");
  CHECK(refusal(std::nextafter(std::ldexp(1.0, 29), 0.0), k32) != "");  // rounds up to 2^29
  CHECK(refusal(8192.0, k16) ==
        "[quant] the scale is too large for a multiplier and a shift: expected a number that rounds below "
        "2^13, "
        "got 8192.0");
}

TEST_CASE("a multiplier differs from the scale by at most half a unit in its last place", "[requantize]") {
  std::mt19937_64 random(21);
  std::uniform_real_distribution<double> exponents(-31.9, 28.9), narrow_exponents(-47.0, 12.9);
  for (int i = 0; i < 200'000; ++i) {
    const double scale = std::exp2(exponents(random));
    const Multiplier by = multiplier_of(scale, k32);
    REQUIRE(by.multiplier >= 1 << 30);
    REQUIRE(std::abs(real_scale(by) - scale) <= std::ldexp(0.5, -by.shift));
    const double narrow_scale = std::exp2(narrow_exponents(random));
    const Multiplier narrow = multiplier_of(narrow_scale, k16);
    REQUIRE((narrow.multiplier >= 1 << 14 && narrow.multiplier < 1 << 15));
    REQUIRE(std::abs(real_scale(narrow) - narrow_scale) <= std::ldexp(0.5, -narrow.shift));
  }
}

TEST_CASE("a narrowed multiplier is rounded half up and is never 2^15", "[requantize]") {
  CHECK(narrowed({1 << 30, 31}) == Multiplier{1 << 14, 15});
  CHECK(narrowed({(1 << 30) + (1 << 15), 31}) == Multiplier{(1 << 14) + 1, 15});
  CHECK(narrowed({(1 << 30) + (1 << 15) - 1, 31}) == Multiplier{1 << 14, 15});
  CHECK(narrowed({0x7fffffff, 40}) == Multiplier{32767, 24});
  CHECK_THROWS_AS(narrowed({1 << 30, 17}), QuantMismatch);
}

TEST_CASE("narrowing a 32-bit multiplier differs from rounding the scale for one scale in 1000",
          "[requantize]") {
  std::mt19937_64 random(22);
  std::uniform_real_distribution<double> exponents(-20.0, 0.0);
  constexpr int kCount = 400'000;
  int differing = 0;
  for (int i = 0; i < kCount; ++i) {
    const double scale = std::exp2(exponents(random));
    differing += narrowed(multiplier_of(scale, k32)) == multiplier_of(scale, k16) ? 0 : 1;
  }
  CHECK(differing / double{kCount} < 0.002);
  CHECK(differing > 0);
}

TEST_CASE("the error bound holds, and random values come close to it", "[requantize]") {
  std::mt19937_64 random(23);
  std::uniform_real_distribution<double> exponents(-44.0, -8.0);
  double nearest = 0;
  for (int i = 0; i < 3000; ++i) {
    const double scale = std::exp2(exponents(random));
    for (const MultiplierWidth width : {k32, k16})
      for (const RoundingMode mode : {kSingle, kDouble}) {
        if (width == k16 && mode == kDouble) continue;
        const Multiplier by = multiplier_of(scale, width);
        const ValueRange values = scalable_values(by, width);
        const double bound = error_bound(scale, by, width, mode, values);
        for (int k = 0; k < 64; ++k) {
          const std::int64_t span = values.high - values.low;
          const std::int64_t value =
              k == 0   ? values.low
              : k == 1 ? values.high
                       : values.low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(span));
          const long double real = static_cast<long double>(value) * static_cast<long double>(scale);
          const long double error =
              std::abs(static_cast<long double>(apply_scale(value, by, width, mode)) - real);
          REQUIRE(error <= static_cast<long double>(bound));
          nearest = std::max(nearest, static_cast<double>(error) / bound);
        }
      }
  }
  CHECK(nearest > 0.95);
}

TEST_CASE("the error bound is half a unit plus the error of the multiplier", "[requantize]") {
  CHECK(error_bound(0.5, {1 << 30, 31}, k32, kSingle, {-100, 100}) == Approx(0.5));
  CHECK(error_bound(0.25, {1 << 30, 32}, k32, kDouble, {-100, 100}) == Approx(0.75));
  const double off = std::ldexp(0.5, -31);  // half a unit of the multiplier
  CHECK(error_bound(0.5 + off, {1 << 30, 31}, k32, kSingle, {-1000, 10}) == Approx(0.5 + 1000 * off));
}

TEST_CASE("scales of accumulators and rescales are computed in double", "[requantize]") {
  const std::vector<double> sums = accumulator_scales(0.1, std::vector{0.3, 0.7});
  CHECK(sums == std::vector{0.1 * 0.3, 0.1 * 0.7});
  CHECK(rescale_scales(sums, 0.9) == std::vector{0.1 * 0.3 / 0.9, 0.1 * 0.7 / 0.9});
  CHECK_THROWS_AS(accumulator_scales(0.0, sums), QuantMismatch);
  CHECK_THROWS_AS(accumulator_scales(1.0, std::vector{-1.0}), QuantMismatch);
  CHECK_THROWS_AS(rescale_scales(sums, kInf), QuantMismatch);
}

TEST_CASE("plan_rescale returns the attributes of tosa.rescale", "[requantize]") {
  const TosaRescaleAttrs attrs =
      plan_rescale({DType::kI32, 0}, {DType::kI8, -128}, std::vector{0.5, 0.25, 0.75});
  CHECK(attrs.multiplier == std::vector<std::int64_t>{1 << 30, 1 << 30, 3 << 29});
  CHECK(attrs.shift == std::vector<std::int64_t>{31, 32, 31});
  CHECK(attrs.output_zp == -128);
  CHECK(attrs.dtype == DType::kI8);
  CHECK((attrs.per_channel && attrs.scale32));
  CHECK((!attrs.input_unsigned && !attrs.output_unsigned));
}

TEST_CASE("unsigned dtypes become flags, and i48 has a 16-bit multiplier", "[requantize]") {
  const TosaRescaleAttrs unsign = plan_rescale({DType::kU8, 128}, {DType::kI8, 0}, std::vector{1.0});
  CHECK((unsign.input_unsigned && !unsign.output_unsigned && !unsign.per_channel));
  const TosaRescaleAttrs sign = plan_rescale({DType::kI16, 0}, {DType::kU16, 32768}, std::vector{1.0});
  CHECK((sign.output_unsigned && sign.dtype == DType::kI16));
  // Just below a tie of the 16-bit multiplier. The 32-bit multiplier rounds it to the tie.
  const double scale = 0.5 + std::ldexp(0.5, -15) - std::ldexp(1.0, -40);
  const TosaRescaleAttrs wide = plan_rescale({DType::kI48, 0}, {DType::kI16, 0}, std::vector{scale});
  CHECK((!wide.scale32 && wide.multiplier.front() == 1 << 14));
  const TosaRescaleAttrs reduced = plan_rescale({DType::kI48, 0}, {DType::kI16, 0}, std::vector{scale},
                                                {.narrow = NarrowMultiplier::kFromWide});
  CHECK(reduced.multiplier.front() == (1 << 14) + 1);
}

TEST_CASE("rescales that RESCALE cannot express are refused", "[requantize]") {
  using enum DType;
  CHECK(plan_refusal({kI8, 0}, {kI8, 0}, {1.0, -1.0}) ==
        "[quant] the scale of channel 1: expected a positive finite number, got -1.0");
  CHECK(plan_refusal({kI16, 5}, {kI8, 0}, {1.0}).find("'input_zp' for i16: expected 0, got 5") !=
        std::string::npos);
  CHECK(plan_refusal({kI32, 0}, {kI32, 1}, {1.0}).find("'output_zp' for i32: expected 0, got 1") !=
        std::string::npos);
  CHECK(plan_refusal({kI8, 200}, {kI8, 0}, {1.0}).find("-128 to 127, got 200") != std::string::npos);
  CHECK(plan_refusal({kI16, 0}, {kU16, 5}, {1.0}).find("0 or 32768, got 5") != std::string::npos);
  CHECK(plan_refusal({kU8, 0}, {kI32, 0}, {1.0}) != "");
  CHECK(plan_refusal({kI32, 0}, {kU8, 0}, {1.0}) != "");
  CHECK(plan_refusal({kU8, 0}, {kU8, 0}, {1.0}).find("both unsigned") != std::string::npos);
  CHECK(plan_refusal({kI64, 0}, {kI8, 0}, {1.0}) != "");
  CHECK(plan_refusal({kI32, 0}, {kI48, 0}, {1.0}) != "");
  CHECK(plan_refusal({kI8, 0}, {kI8, 0}, {}) != "");
  CHECK(plan_refusal({kI48, 0}, {kI16, 0}, {0.5}, {.rounding_mode = kDouble})
            .find("expected single_round or inexact_round, got double_round") != std::string::npos);
}

TEST_CASE("the defined inputs of a rescale are shifted by the zero point", "[requantize]") {
  const TosaRescaleAttrs attrs =
      plan_rescale({DType::kI8, -3}, {DType::kI32, 0}, std::vector{67108864.0, 1048576.0});
  CHECK(defined_inputs(attrs, 0) == ValueRange{-8 - 3, 7 - 3});  // shift 4
  CHECK(defined_inputs(attrs, 1) == ValueRange{-512 - 3, 511 - 3});
}

}  // namespace
}  // namespace tosaic::quant
