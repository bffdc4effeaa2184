// Checks that states of statistics merge exactly, whatever the split is, and survive serialization.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "tosaic/base/error.h"
#include "tosaic/quant/calibrate/statistic.h"

namespace tosaic::quant {
namespace {

std::vector<std::vector<float>> draw(std::size_t batches, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.3F, 2.0F);
  std::vector<std::vector<float>> out(batches);
  for (std::size_t i = 0; i < batches; ++i)
    for (std::size_t k = 0; k < 40 + 7 * i; ++k)
      out[i].push_back(normal(random) * std::ldexp(1.0F, int(i % 5)));
  return out;
}

NotFinite observe(Statistic& statistic, const std::vector<float>& values) {
  Observing observing(std::move(statistic));
  const NotFinite found = observing.observe(values, {static_cast<std::int64_t>(values.size())}, 1);
  statistic = observing.take();
  return found;
}

std::vector<Statistic> all_kinds() { return {Range(), MovingRange(0.1F), Histogram()}; }

// The statistic of the batches, observed in chunks of `size` batches whose states are merged in order.
Statistic in_chunks(const Statistic& kind, const std::vector<std::vector<float>>& batches, std::size_t size) {
  Statistic total = kind;
  for (std::size_t begin = 0; begin < batches.size(); begin += size) {
    Statistic chunk = empty_like(kind);
    for (std::size_t i = begin; i < std::min(batches.size(), begin + size); ++i) observe(chunk, batches[i]);
    const std::vector<std::byte> bytes = to_bytes(std::span(&chunk, 1));
    merge(total, statistics_from_bytes(bytes).at(0));
  }
  return total;
}

}  // namespace

TEST_CASE("merged states of chunks are equal to the state of all samples", "[quant]") {
  const auto batches = draw(13, 5);
  for (const Statistic& kind : all_kinds()) {
    Statistic alone = kind;
    for (const auto& batch : batches) observe(alone, batch);
    for (const std::size_t size : {1, 2, 5, 13}) CHECK(in_chunks(kind, batches, size) == alone);
  }
}

TEST_CASE("ranges and histograms do not depend on the order of samples", "[quant]") {
  auto batches = draw(9, 6);
  for (const Statistic& kind : {Statistic(Range()), Statistic(Histogram())}) {
    const Statistic forward = in_chunks(kind, batches, 4);
    std::reverse(batches.begin(), batches.end());
    CHECK(in_chunks(kind, batches, 4) == forward);
  }
}

TEST_CASE("a moving average follows the recurrence of its weight", "[quant]") {
  Statistic moving = MovingRange(0.25F);
  observe(moving, std::vector<float>{-4.0F, 8.0F});
  observe(moving, std::vector<float>{0.0F, 4.0F});
  CHECK(bounds_of(moving).least == -3.0F);
  CHECK(bounds_of(moving).greatest == 7.0F);
  CHECK_THROWS_AS(MovingRange(0.0F), QuantMismatch);
  CHECK_THROWS_AS(MovingRange(1.5F), QuantMismatch);
}

TEST_CASE("numbers that are not finite are counted and left out", "[quant]") {
  const std::vector<float> values{1.0F, INFINITY, -2.0F, NAN, -INFINITY};
  for (Statistic statistic : all_kinds()) {
    const NotFinite found = observe(statistic, values);
    CHECK(found.infinities == 2);
    CHECK(found.nans == 1);
    CHECK(bounds_of(statistic).least == -2.0F);
    CHECK(bounds_of(statistic).greatest == 1.0F);
  }
}

TEST_CASE("damaged bytes are refused", "[quant]") {
  std::vector<Statistic> statistics = all_kinds();
  for (Statistic& each : statistics) observe(each, std::vector<float>{1.0F, -3.5F, 2.0F});
  const std::vector<std::byte> bytes = to_bytes(statistics);
  CHECK(statistics_from_bytes(bytes) == statistics);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_THROWS_AS(statistics_from_bytes(std::span(bytes).first(size)), InvalidGraph);
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  CHECK_THROWS_AS(statistics_from_bytes(longer), InvalidGraph);
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::byte> changed = bytes;
    changed[random() % changed.size()] = static_cast<std::byte>(random());
    try {
      static_cast<void>(statistics_from_bytes(changed));
    } catch (const InvalidGraph&) {  // or other samples: any error but this one fails the test
    }
  }
}

}  // namespace tosaic::quant
