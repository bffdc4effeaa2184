#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "tosaic/kernels/word_scaling.h"

namespace tosaic::kernels {
namespace {

using Index = std::int64_t;

// The band for columns of weights with the given magnitude, and the greatest sum of magnitudes in a band.
std::pair<Index, Index> band_and_sum(Index depth, Index cols, int most, std::mt19937& random) {
  std::vector<std::int16_t> weights(static_cast<std::size_t>(depth * cols));
  for (std::int16_t& weight : weights)
    weight = static_cast<std::int16_t>(std::uniform_int_distribution<int>(-most, most)(random));
  const auto column = [&](Index j, std::int16_t* to) { std::copy_n(weights.data() + j * depth, depth, to); };
  const Index band = exact_band(depth, cols, column);
  Index greatest = 0;
  for (Index j = 0; j < cols; ++j)
    for (Index from = 0; from < depth; from += band) {
      Index sum = 0;
      for (Index k = from; k < std::min(depth, from + band); ++k)
        sum += std::abs(Index{weights[static_cast<std::size_t>(j * depth + k)]});
      greatest = std::max(greatest, sum);
    }
  return {band, greatest};
}

TEST_CASE("sums of a band are exact in 32 bits, and small weights have deep bands", "[words]") {
  std::mt19937 random(5);
  for (const int most : {1, 7, 40, 127})
    for (const Index depth : {0, 1, 15, 496, 497, 960, 2304, 4608, 20000}) {
      const auto [band, greatest] = band_and_sum(depth, 9, most, random);
      CAPTURE(most, depth, band);
      CHECK(greatest * 32768 < Index{1} << 31);
      CHECK(band >= std::min<Index>(depth, kMostWideDepth / 2));
      if (most == 7) CHECK(band >= std::min<Index>(depth, 6000));
    }
}

TEST_CASE("the greatest weights have bands of any depth up to the limit", "[words]") {
  for (const Index depth : {1, 495, 496, 497, 5000}) {
    const Index band =
        exact_band(depth, 1, [&](Index, std::int16_t* to) { std::fill_n(to, depth, std::int16_t{-128}); });
    CHECK(band * 128 * 32768 < Index{1} << 31);
  }
}

TEST_CASE("a bias with which a sum may have no result is told apart", "[words]") {
  const std::vector<std::int32_t> multiplier(20, 1 << 14), shift(20, 30);
  const Index limit = Index{1} << 40, most = Index{1} << 31;
  const std::vector<Index> low(20, -limit), high(20, limit);
  RescaleTables<Index> tables;
  tables.multiplier = multiplier.data();
  tables.shift = shift.data();
  tables.low = low.data();
  tables.high = high.data();
  const WordScaling scaling(tables, 2, 10, 16);
  std::vector<Index> bias(20, 5), added(static_cast<std::size_t>(scaling.elements()));
  CHECK(scaling.find(bias.data(), 1, added.data()));
  CHECK(scaling.at(1, 0, added.data()).added[word_place(3, 16)] == 5 * (1 << 14) + (1 << 29));
  bias[19] = limit - most;
  CHECK(scaling.find(bias.data(), 1, added.data()));
  bias[19] = limit - most + 1;
  CHECK_FALSE(scaling.find(bias.data(), 1, added.data()));
  bias[19] = -limit + most - 1;
  CHECK_FALSE(scaling.find(bias.data(), 1, added.data()));
}

}  // namespace
}  // namespace tosaic::kernels
