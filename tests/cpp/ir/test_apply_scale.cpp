#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "tosaic/ir/apply_scale.h"

namespace tosaic {
namespace {

__extension__ using Wide = __int128;
using std::int64_t;

constexpr auto kSingle = RoundingMode::kSingleRound;
constexpr auto kDouble = RoundingMode::kDoubleRound;
constexpr auto k16 = MultiplierWidth::k16;
constexpr auto k32 = MultiplierWidth::k32;

// The formula of the specification in 128 bits. The shift is written as a division by 2^shift, rounded down.
Wide exact(int64_t value, Multiplier by, RoundingMode mode) {
  const Wide unit = Wide{1} << by.shift;
  Wide sum = Wide{value} * by.multiplier + unit / 2;
  if (mode == kDouble && by.shift > 31) sum += value >= 0 ? Wide{1} << 30 : -(Wide{1} << 30);
  const Wide quotient = sum / unit;
  return sum % unit < 0 ? quotient - 1 : quotient;
}

std::vector<int64_t> near(int64_t centre, int64_t reach) {
  std::vector<int64_t> out;
  for (int64_t v = centre - reach; v <= centre + reach; ++v) out.push_back(v);
  return out;
}

TEST_CASE("apply_scale can be evaluated at compile time", "[apply_scale]") {
  constexpr Multiplier half{1 << 30, 31};
  static_assert(apply_scale(3, half, k32, kSingle) == 2);    // 1.5: rounded half up
  static_assert(apply_scale(-3, half, k32, kSingle) == -1);  // -1.5: rounded half up
  static_assert(apply_scale(-1, half, k32, kDouble) == 0);   // -0.5: shift 31 is rounded once, half up
  constexpr Multiplier quarter{1 << 30, 32};
  static_assert(apply_scale(2, quarter, k32, kDouble) == 1);    // 0.5: away from zero
  static_assert(apply_scale(-2, quarter, k32, kSingle) == 0);   // -0.5: up
  static_assert(apply_scale(-2, quarter, k32, kDouble) == -1);  // -0.5: away from zero
  static_assert(apply_scale(1, quarter, k32, kDouble) == 1);    // 0.25: first rounded to 0.5, then to 1
  static_assert(apply_scale(1, quarter, k32, kSingle) == 0);
  static_assert(apply_scale(-2, {1 << 14, 16}, k16, kSingle) == 0);
  SUCCEED();
}

TEST_CASE("every value from -2048 to 2048 with every shift equals the formula in 128 bits, ties included",
          "[apply_scale]") {
  std::int64_t differing = 0, cases = 0;
  for (const std::int32_t multiplier : {0, 1, 3, 1 << 14, 32767, 1 << 30, (1 << 30) + 1, 0x7fffffff})
    for (std::int32_t shift = kMinShift; shift <= kMaxShift; ++shift)
      for (const int64_t value : near(0, 2048))
        for (const RoundingMode mode : {kSingle, kDouble}) {
          const Multiplier by{multiplier, shift};
          differing += apply_scale(value, by, k32, mode) == exact(value, by, mode) ? 0 : 1;
          ++cases;
        }
  CHECK(differing == 0);
  CHECK(cases == 8 * 61 * 4097 * 2);
}

TEST_CASE("random and extreme values equal the formula in 128 bits", "[apply_scale]") {
  std::mt19937_64 random(11);
  std::int64_t differing = 0;
  for (int i = 0; i < 2'000'000; ++i) {
    const auto shift = static_cast<std::int32_t>(kMinShift + random() % 61);
    const Multiplier wide{static_cast<std::int32_t>(random() % 0x80000000), shift};
    const Multiplier narrow{static_cast<std::int32_t>(random() % 0x8000), shift};
    const auto value = static_cast<int64_t>(random());
    const int64_t of_32 = i % 16 == 0 ? kInt32Values.low : value >> 32;
    const int64_t of_48 = i % 16 == 0 ? kInt48Values.low : value >> 16;
    for (const RoundingMode mode : {kSingle, kDouble})
      differing += apply_scale(of_32, wide, k32, mode) == exact(of_32, wide, mode) ? 0 : 1;
    differing += apply_scale(of_48, narrow, k16, kSingle) == exact(of_48, narrow, kSingle) ? 0 : 1;
  }
  CHECK(differing == 0);
}

TEST_CASE("32-bit multipliers are defined for values of shift - 1 bits and a sign", "[apply_scale]") {
  CHECK(scalable_values({1 << 30, 2}, k32) == ValueRange{-2, 1});
  CHECK(scalable_values({1 << 30, 31}, k32) == ValueRange{-(int64_t{1} << 30), (int64_t{1} << 30) - 1});
  CHECK(scalable_values({1 << 30, 32}, k32) == kInt32Values);
  CHECK(scalable_values({1 << 30, 62}, k32) == kInt32Values);
}

TEST_CASE("results of 32-bit multipliers are within 2^30 over their defined values", "[apply_scale]") {
  for (std::int32_t shift = kMinShift; shift <= kMaxShift; ++shift) {
    const Multiplier by{0x7fffffff, shift};
    const ValueRange range = scalable_values(by, k32);
    for (const RoundingMode mode : {kSingle, kDouble}) {
      CHECK(apply_scale(range.low, by, k32, mode) >= -(int64_t{1} << 30));
      CHECK(apply_scale(range.high, by, k32, mode) <= int64_t{1} << 30);
    }
  }
}

TEST_CASE("16-bit multipliers are defined for exactly the values whose results fit 32 bits",
          "[apply_scale]") {
  for (const std::int32_t multiplier : {0, 1, 2, 5, 16384, 24575, 32767})
    for (std::int32_t shift = kMinShift; shift <= kMaxShift; ++shift)
      for (const int64_t offset : {0, -128, 127, 32768}) {
        const Multiplier by{multiplier, shift};
        const ValueRange range = scalable_values(by, k16, offset);
        const auto fits = [&](int64_t value) {
          const Wide result = exact(value, by, kSingle);
          return result >= kInt32Values.low && result <= kInt32Values.high &&
                 result + offset >= kInt32Values.low && result + offset <= kInt32Values.high;
        };
        INFO(multiplier << " >> " << shift << " + " << offset);
        CHECK(kInt48Values.contains(range.low));
        CHECK(kInt48Values.contains(range.high));
        CHECK(fits(range.low));
        CHECK(fits(range.high));
        CHECK((range.low == kInt48Values.low || !fits(range.low - 1)));
        CHECK((range.high == kInt48Values.high || !fits(range.high + 1)));
      }
}

// CMSIS-NN's default, which works in two steps. It takes the high half of the doubled product, rounded half
// up. Then it divides by a power of two, rounded half away from zero.
int64_t in_two_steps(int64_t value, Multiplier by) {
  const int64_t product = value * by.multiplier;
  const int64_t high = (product + (int64_t{1} << 30)) >> 31;
  const int right = by.shift - 31;
  if (right == 0) return high;
  const int64_t mask = (int64_t{1} << right) - 1;
  const int64_t threshold = (mask >> 1) + (high < 0 ? 1 : 0);
  return (high >> right) + ((high & mask) > threshold ? 1 : 0);
}

TEST_CASE("double rounding equals rounding half up at 31 bits, then half away from zero", "[apply_scale]") {
  std::mt19937_64 random(12);
  std::int64_t differing = 0;
  for (int i = 0; i < 2'000'000; ++i) {
    const Multiplier by{static_cast<std::int32_t>((1 << 30) + random() % (1 << 30)),
                        static_cast<std::int32_t>(32 + random() % 30)};
    const int64_t value = static_cast<int64_t>(random()) >> (32 + random() % 24);
    differing += apply_scale(value, by, k32, kDouble) == in_two_steps(value, by) ? 0 : 1;
  }
  CHECK(differing == 0);
}

double rate_of_difference(std::int32_t shift) {
  std::mt19937_64 random(13);
  constexpr int kCount = 1 << 20;
  int differing = 0;
  for (int i = 0; i < kCount; ++i) {
    const Multiplier by{static_cast<std::int32_t>((1 << 30) + random() % (1 << 30)), shift};
    const int64_t value = static_cast<int64_t>(random()) >> 40;
    differing += apply_scale(value, by, k32, kSingle) != apply_scale(value, by, k32, kDouble) ? 1 : 0;
  }
  return static_cast<double>(differing) / kCount;
}

TEST_CASE("single and double rounding differ at a rate of 2^(30 - shift)", "[apply_scale]") {
  CHECK(rate_of_difference(34) == Approx(1.0 / 16).epsilon(0.05));
  CHECK(rate_of_difference(36) == Approx(1.0 / 64).epsilon(0.05));
  CHECK(rate_of_difference(39) == Approx(1.0 / 512).epsilon(0.1));
}

}  // namespace
}  // namespace tosaic
