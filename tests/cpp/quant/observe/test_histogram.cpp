#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <random>

#include "tosaic/base/error.h"
#include "tosaic/kernels/histogram_block.h"
#include "tosaic/quant/observe/bins.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

Histogram histogram_of(std::span<const float> values) {
  Histogram out;
  out.observe(values);
  return out;
}

// Samples of very different magnitudes and both signs, with zeros.
std::vector<float> wide_samples(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out)
    value = random() % 8 == 0 ? 0.0F : std::ldexp(normal(random), static_cast<int>(random() % 40) - 30);
  return out;
}

// The bins of samples by their definition, with divisions and logarithms instead of bits.
std::map<int, std::pair<std::uint64_t, double>> reference_bins(std::span<const float> values, int exponent) {
  std::map<int, std::pair<std::uint64_t, double>> out;
  for (const float value : values) {
    const double y = std::abs(static_cast<double>(value)) * std::ldexp(2048.0, -exponent);
    double bin = std::floor(y) + 1024, offset = y - std::floor(y);
    if (y < 64) {
      const int octave = y == 0 ? -100 : std::ilogb(y);  // y is in [2^octave, 2^(octave + 1))
      const double position = (std::ldexp(y, -octave) - 1) * 64;
      bin = std::floor(position) + 64.0 * (octave + 11);
      offset = position - std::floor(position);
    }
    const int place = bin < 0 ? 0 : static_cast<int>(value < 0 ? -bin - 1 : bin + 1);
    auto& [count, offsets] = out[place];
    ++count;
    offsets += place == 0 ? 0 : std::ldexp(offset, 17);
  }
  return out;
}

TEST_CASE("each sample is counted in the bin that its magnitude defines", "[observe]") {
  const std::vector<float> samples = wide_samples(50'000, 1);
  const Histogram histogram = histogram_of(samples);
  std::map<int, std::pair<std::uint64_t, double>> found;
  for (const Histogram::Bin& bin : histogram.bins())
    found[bin.place] = {bin.count, static_cast<double>(bin.offsets)};
  CHECK(found == reference_bins(samples, histogram.exponent()));
}

TEST_CASE("every instruction set finds the same places", "[observe]") {
  std::vector<float> samples = wide_samples(1003, 2);
  samples.insert(samples.end(), {0.0F, -0.0F, 1e-45F, -1e-40F, 1023.99F, -1024.0F});
  std::vector<std::int32_t> expected(samples.size()), found(samples.size());
  const float unit = unit_of(12);
  const auto count = static_cast<std::int64_t>(samples.size());
  const kernels::HistogramKernels& baseline = kernels::histogram_kernels(kernels::Isa::kBaseline);
  baseline.places(samples.data(), count, unit, expected.data());
  const kernels::KeyBounds bounds = baseline.bounds(samples.data(), count);
  CHECK(kernels::key_value(bounds.least) == *std::min_element(samples.begin(), samples.end()));
  CHECK(kernels::key_value(bounds.greatest) == *std::max_element(samples.begin(), samples.end()));
  for (const kernels::Isa isa : kernels::usable_isas()) {
    const kernels::HistogramKernels& loops = kernels::histogram_kernels(isa);
    loops.places(samples.data(), count, unit, found.data());
    CHECK(found == expected);
    if (loops.nonzero_places != nullptr) {
      std::vector<std::int32_t> packed(samples.size() + kernels::kSlack), wanted;
      std::ranges::copy_if(expected, std::back_inserter(wanted), [](std::int32_t place) {
        return place >> kernels::kOffsetBits < kernels::kFirstZeroBin;
      });
      const std::int64_t omitted = count - loops.nonzero_places(samples.data(), count, unit, packed.data());
      packed.resize(samples.size() - static_cast<std::size_t>(omitted));
      CHECK(packed == wanted);
    }
    CHECK(loops.bounds(samples.data(), count).least == bounds.least);
    CHECK(loops.bounds(samples.data(), count).greatest == bounds.greatest);
  }
}

TEST_CASE("the state does not depend on the order of samples or on how they are split", "[observe]") {
  std::mt19937 random(3);
  std::vector<float> samples = wide_samples(20'000, 4);
  samples.insert(samples.end(), {kInf, -kInf, NAN, 1e-42F});
  const Histogram expected = histogram_of(samples);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(samples.begin(), samples.end(), random);
    std::vector<Histogram> parts(3);
    for (std::size_t begin = 0; begin < samples.size();) {
      const std::size_t size = std::min<std::size_t>(random() % 3000, samples.size() - begin);
      parts[random() % 3].observe(std::span(samples).subspan(begin, size));
      begin += size;
    }
    Histogram merged;
    for (const Histogram& part : parts) merged.merge(part);
    REQUIRE(merged == expected);
    REQUIRE(merged.to_bytes() == expected.to_bytes());
  }
}

// Half zeros after the first samples, and a range that grows.
std::vector<float> growing_samples(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] =
        i > count / 3 ? std::max(0.0F, normal(random) * (i > count / 2 ? 100.0F : 1.0F)) : normal(random);
  return out;
}

TEST_CASE("a table counts each sample as often as it was given", "[observe]") {
  const std::vector<float> samples = growing_samples(30'000, 5);
  Histogram expected, found;
  Histogram::Table table;
  for (std::size_t begin = 0, call = 0; begin < samples.size(); begin += 5'000, ++call) {
    const std::span<const float> part = std::span(samples).subspan(begin, 5'000);
    const std::uint64_t times = call % 3 + 1;
    found.observe(part, table, times);
    for (std::uint64_t i = 0; i < times; ++i) expected.observe(part);
  }
  CHECK(found.range() == expected.range());
  CHECK_FALSE(table.empty());
  found.take(table);
  CHECK(table.empty());
  CHECK(found == expected);
  found.take(table);
  CHECK(found == expected);
}

TEST_CASE("a value that is observed many times counts as often, whatever the range is", "[observe]") {
  for (const float value : {0.0F, -0.0F, -3.5F, 1e-30F, 1e20F}) {
    const std::vector<float> samples = growing_samples(2'000, 6), values(300, value);
    Histogram expected, found;
    Histogram::Table table;
    found.observe(samples, table, 1);
    found.observe(value, table, values.size());
    found.observe(samples, table, 1);
    found.take(table);
    for (const std::vector<float>& each : {samples, values, samples}) expected.observe(each);
    CHECK(found == expected);
    CHECK(std::signbit(found.range().least) == std::signbit(expected.range().least));
  }
}

TEST_CASE("more samples than an entry of a table can hold are counted", "[observe]") {
  const std::vector<float> samples(1 << 20, 0.1F);
  Histogram found;
  Histogram::Table table;
  for (int i = 0; i < 40; ++i) found.observe(samples, table, 1);
  found.take(table);
  REQUIRE(found.bins().size() == 1);
  CHECK(found.bins()[0].count == 40 * samples.size());
  CHECK(magnitudes_of(found.bins()[0]).mean * magnitude_unit(found.exponent()) == 0.1F);
}

TEST_CASE("the range doubles until it contains the samples", "[observe]") {
  Histogram histogram;
  for (int power = -120; power <= 127; ++power) {
    const float sample = std::ldexp(1.0F, power);
    histogram.observe(std::vector{sample, -sample});
    CHECK(histogram.exponent() == std::max(power + 1, -99));
  }
  CHECK(histogram.range().finite == 2 * 248);
  std::uint64_t counted = 0;
  for (const Histogram::Bin& bin : histogram.bins()) counted += bin.count;
  CHECK(counted == 2 * 248);
  CHECK(histogram.bins().size() == 2 * 22 + 1);  // 22 octaves of each sign, and smaller values as zero
}

TEST_CASE("the mean of a bin is exact after the range has doubled", "[observe]") {
  std::vector<float> samples;
  for (int i = 0; i < 1000; ++i) samples.push_back(1.0F + static_cast<float>(i) * 0x1p-23F);
  double sum = 0;
  for (const float sample : samples) sum += sample;
  Histogram histogram = histogram_of(samples);
  for (const float wider : {0.0F, 3.0F, 700.0F, 70'000.0F, 3e9F}) {
    histogram.observe(std::vector{wider});
    for (const Histogram::Bin& bin : histogram.bins())
      if (bin.count >= 1000 && bin.place != 0) {
        const double mean = magnitudes_of(bin).mean * magnitude_unit(histogram.exponent());
        CHECK(mean == sum / 1000);
      }
  }
}

TEST_CASE("the memory of a histogram does not grow with its samples", "[observe]") {
  Histogram histogram;
  std::size_t after_one = 0;
  for (std::uint32_t round = 0; round < 60; ++round) {
    histogram.observe(wide_samples(50'000, round % 30));
    if (round == 29) after_one = histogram.to_bytes().size();
  }
  CHECK(histogram.to_bytes().size() == after_one);
  CHECK(histogram.bins().size() <= 2 * kernels::kBinsPerSign + 1);
  CHECK(histogram.range().finite == 60 * 50'000);
}

TEST_CASE("counts stay exact beyond what a table of one call can hold", "[observe]") {
  const std::vector<float> samples(std::size_t{1} << 24, std::nextafter(1.0F, 0.0F));
  const Histogram histogram = histogram_of(samples);
  REQUIRE(histogram.bins().size() == 1);
  CHECK(histogram.bins().front().count == samples.size());
  CHECK(magnitudes_of(histogram.bins().front()).mean * magnitude_unit(0) == samples.front());
}

TEST_CASE("infinities and NaN are counted and change no bin", "[observe]") {
  std::vector<float> samples = wide_samples(3000, 5);
  const Histogram expected = histogram_of(samples);
  for (std::size_t i = 0; i < 30; ++i) {
    samples.insert(samples.begin() + static_cast<std::ptrdiff_t>(97 * i), kInf);
    samples.insert(samples.begin() + static_cast<std::ptrdiff_t>(89 * i), i % 2 == 0 ? NAN : -NAN);
    samples.push_back(-kInf);
  }
  const Histogram found = histogram_of(samples);
  CHECK(std::ranges::equal(found.bins(), expected.bins()));
  CHECK(found.range().infinities == 60);
  CHECK(found.range().nans == 30);
  CHECK(found.range().finite == 3000);
  CHECK(histogram_of(std::vector<float>(9, NAN)).range().finite == 0);
}

TEST_CASE("a histogram of its own bytes is the same histogram", "[observe]") {
  for (const std::size_t count : {0, 1, 5000}) {
    const Histogram histogram = histogram_of(wide_samples(count, 6));
    CHECK(Histogram::from_bytes(histogram.to_bytes()) == histogram);
  }
}

TEST_CASE("damaged bytes of a histogram are refused", "[observe]") {
  const std::vector<std::byte> bytes = histogram_of(wide_samples(100, 7)).to_bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size)
    if (size != 40)  // without bins, but with samples
      CHECK_THROWS_AS(Histogram::from_bytes(std::span(bytes).first(size)), InvalidGraph);
  for (const std::size_t at : {0, 11, 12, 37, 42, 44, 58}) {
    std::vector<std::byte> damaged = bytes;
    damaged[at] ^= std::byte{0x41};
    CHECK_THROWS_WITH(Histogram::from_bytes(damaged), Catch::Contains("the state of a histogram is damaged"));
  }
}

TEST_CASE("each channel has the histogram of its own samples", "[observe]") {
  for (const ChannelShape shape : {ChannelShape{1, 5, 7}, ChannelShape{40, 3, 1}, ChannelShape{3000, 11, 2},
                                   ChannelShape{4, 3, 100}, ChannelShape{2, 1, 5}}) {
    const std::vector<float> values =
        wide_samples(static_cast<std::size_t>(shape.outer * shape.channels * shape.inner), 8);
    std::vector<Histogram> found(static_cast<std::size_t>(shape.channels));
    std::vector<Range> ranges(found.size());
    observe_channels(values, shape, std::span(found));
    observe_channels(values, shape, std::span(ranges));
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      std::vector<float> own;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i)
        if (i / shape.inner % shape.channels == c) own.push_back(values[static_cast<std::size_t>(i)]);
      CHECK(found[static_cast<std::size_t>(c)] == histogram_of(own));
      CHECK(ranges[static_cast<std::size_t>(c)] == histogram_of(own).range());
    }
  }
}

TEST_CASE("channels other than the channels of the values are refused", "[observe]") {
  std::vector<Range> ranges(3);
  const std::vector<float> values(12);
  CHECK_THROWS_WITH(observe_channels(values, {2, 2, 3}, std::span(ranges)),
                    Catch::Contains("wrong number of values or channels: expected 2 * 2 * 3 values and 2"));
  CHECK_THROWS_AS(observe_channels(values, {2, 3, 3}, std::span(ranges)), LayoutMismatch);
}

}  // namespace
}  // namespace tosaic::quant
