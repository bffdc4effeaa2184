#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "run_kernel.h"
#include "tosaic/kernels/gemm/word_scaling.h"

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

using testing::Array;
using testing::Bytes;
using testing::Call;

Array integers(std::mt19937& random, DType dtype, const Shape& shape, double most) {
  std::uniform_real_distribution<double> numbers(-most, most);
  Array array{dtype, shape, std::vector<double>(static_cast<std::size_t>(num_elements(shape)))};
  for (double& value : array.values) value = std::round(numbers(random));
  return array;
}

// Compares a contraction that is fused with the RESCALE after it with the two reference kernels.
void check_fused(const Call& contraction, const TosaRescaleAttrs& scale) {
  const Call sums{contraction};
  Array wide{DType::kI48, sums.shape, testing::run(sums, {.reference = true}).values};
  const Call rescale{
      .op = Op::kTosaRescale, .attrs = scale, .operands = {wide}, .dtype = DType::kI16, .shape = sums.shape};
  const std::vector<double> expected = testing::run(rescale, {.reference = true}).values;
  const Attrs attrs = scale;
  const Follower follower{Op::kTosaRescale, &attrs};
  std::vector<Bytes> bytes;
  std::vector<Operand> operands;
  std::vector<const std::byte*> pointers;
  for (const Array& each : sums.operands) {
    bytes.push_back(testing::stored(each));
    pointers.push_back(bytes.back().data());
    operands.push_back({each.dtype, each.shape, each.constant ? bytes.back().data() : nullptr, true});
  }
  const std::vector<Operand> results{{DType::kI48, sums.shape, nullptr, true}};
  for (const Isa isa : usable_isas()) {
    Request request{sums.op, &sums.attrs, operands, results, {.isa = isa}};
    request.followers = {&follower, 1};
    const Kernel kernel = prepare_fused(request);
    REQUIRE(kernel.run);
    const Bytes result(expected.size() * 2), scratch(kernel.scratch_bytes);
    std::byte* to[] = {result.data()};
    kernel.run({pointers, to, scratch.data()});
    std::vector<double> found;
    for (std::size_t i = 0; i < expected.size(); ++i)
      found.push_back(load_element(DType::kI16, result.data() + 2 * i));
    INFO(to_string(isa));
    CHECK(found == expected);
  }
}

TEST_CASE("contractions rescale their sums to i16 as RESCALE does", "[words]") {
  std::mt19937 random(23);
  const TosaConvAttrs conv{{0, 0, 0, 0}, {1, 1}, {1, 1}, 0, 0, DType::kI48, false};
  for (const Index channels : {1, 5, 16, 33, 50})
    for (const Index depth : {1, 40, 700, 3000})
      for (const bool per_channel : {false, true}) {
        TosaRescaleAttrs scale;
        scale.dtype = DType::kI16;
        scale.scale32 = false;
        scale.per_channel = per_channel;
        for (Index i = 0; i < (per_channel ? channels : 1); ++i) {
          scale.multiplier.push_back(static_cast<std::int64_t>(16384 + random() % 16384));
          scale.shift.push_back(static_cast<std::int64_t>(30 + random() % 18));
        }
        const double most_weight = random() % 2 == 0 ? 127 : 9, most_bias = random() % 2 == 0 ? 1e6 : 1e12;
        const Array bias = integers(random, DType::kI48, {channels}, most_bias);
        CAPTURE(channels, depth, per_channel, most_weight, most_bias);
        check_fused(
            {.op = Op::kTosaConv2d,
             .attrs = conv,
             .operands = {integers(random, DType::kI16, {1, 3, 5, depth}, 32767),
                          constant(integers(random, DType::kI8, {channels, 1, 1, depth}, most_weight)), bias},
             .dtype = DType::kI48,
             .shape = {1, 3, 5, channels}},
            scale);
        if (depth > 40) continue;
        check_fused(
            {.op = Op::kTosaDepthwiseConv2d,
             .attrs = conv,
             .operands = {integers(random, DType::kI16, {1, 4, 9, channels}, 32767),
                          constant(integers(random, DType::kI8, {3, 3, channels, 1}, most_weight)), bias},
             .dtype = DType::kI48,
             .shape = {1, 2, 7, channels}},
            scale);
      }
}

}  // namespace
}  // namespace tosaic::kernels
