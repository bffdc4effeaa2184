// Ranges that contain a share of the samples, and ranges of least divergence.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>

#include "tosaic/base/error.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {
namespace {

const QRange kInt8{.qmin = -128, .qmax = 127, .least_scale = 1e-30F};
const QRange kSymmetric{.qmin = -127, .qmax = 127, .symmetric = true, .least_scale = 1e-30F};
const QRange kUint8{.qmin = 0, .qmax = 255, .least_scale = 1e-30F};
const QRange kInt16{.qmin = -32768, .qmax = 32767, .symmetric = true, .least_scale = 1e-30F};

Histogram histogram_of(std::span<const float> values) {
  Histogram out;
  out.observe(values);
  return out;
}

std::vector<float> samples_of(std::size_t count, const std::function<float(std::mt19937&)>& draw) {
  std::mt19937 random(5);
  std::vector<float> out(count);
  for (float& value : out) value = draw(random);
  return out;
}

float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }
float uniform(std::mt19937& random) { return std::uniform_real_distribution<float>(-1, 1)(random); }

const std::vector<std::pair<std::string, std::vector<float>>>& distributions() {
  static const std::vector<std::pair<std::string, std::vector<float>>> all{
      {"normal", samples_of(20'000, normal)},
      {"few", samples_of(7, normal)},
      {"relu", samples_of(20'000, [](auto& r) { return std::max(0.0F, normal(r)); })},
      {"negative", samples_of(5000, [](auto& r) { return -1 - std::abs(normal(r)); })},
      {"heavy tails", samples_of(20'000, [](auto& r) { return normal(r) / std::abs(normal(r)); })},
      {"one outlier", samples_of(20'000, [](auto& r) { return r() % 20'000 ? normal(r) : 300.0F; })},
      {"uniform", samples_of(5000, uniform)}};
  return all;
}

// As numpy.quantile.
double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto i = static_cast<std::size_t>(at);
  const double after = values[std::min(i + 1, values.size() - 1)];
  return values[i] + (at - std::floor(at)) * (after - values[i]);
}

double bound_of(const QRange& to, Chosen chosen, std::int64_t integer) {
  return static_cast<double>(integer - (to.symmetric ? to.zero_point : chosen.zero_point)) * chosen.scale;
}

TEST_CASE("a percentile is the quantile of the samples up to a bin", "[observe]") {
  for (const auto& [name, samples] : distributions()) {
    const std::vector<double> values(samples.begin(), samples.end());
    std::vector<double> magnitudes;
    for (const double value : values) magnitudes.push_back(std::abs(value));
    const Histogram histogram = histogram_of(samples);
    const double bin = std::ldexp(1.0, histogram.exponent()) / 2048;
    for (const double fraction : {0.3, 0.9, 0.99, 0.999, 1.0}) {
      CAPTURE(name, fraction);
      const double low = std::min(0.0, quantile(values, (1 - fraction) / 2));
      const double high = std::max(0.0, quantile(values, (1 + fraction) / 2));
      const Chosen affine = percentile_qparams(histogram, fraction, kInt8);
      CHECK(std::abs(affine.scale * 255 - (high - low)) <= 2 * bin + 1e-6 * (high - low));
      CHECK(std::abs(bound_of(kInt8, affine, -128) - low) <= bin + 0.51 * affine.scale);
      const double bound = quantile(magnitudes, fraction);
      const Chosen symmetric = percentile_qparams(histogram, fraction, kSymmetric);
      CHECK(std::abs(symmetric.scale * 127 - bound) <= bin + 1e-6 * bound);
      CHECK(symmetric.zero_point == 0);
    }
  }
}

TEST_CASE("all samples are what fits the range", "[observe]") {
  for (const auto& [name, samples] : distributions())
    for (const QRange& to : {kInt8, kSymmetric, kUint8, kInt16}) {
      CAPTURE(name);
      const Histogram histogram = histogram_of(samples);
      CHECK(percentile_qparams(histogram, 1, to) == range_qparams(histogram.range(), to));
    }
}

TEST_CASE("the percentile of a constant is the constant", "[observe]") {
  for (const float value : {0.3F, -2.0F, 0.0F})
    for (const QRange& to : {kInt8, kSymmetric}) {
      const Histogram histogram = histogram_of(std::vector<float>(50, value));
      CHECK(percentile_qparams(histogram, 0.5, to).scale ==
            Approx(range_qparams(histogram.range(), to).scale).epsilon(1e-6));
    }
}

TEST_CASE("shares that are none are refused", "[observe]") {
  for (const double fraction : {0.0, -1.0, 1.01, std::nan("")})
    CHECK_THROWS_WITH(percentile_qparams({}, fraction, kInt8),
                      Catch::Contains("a number above 0, and 1 at most"));
  CHECK_THROWS_AS(percentile_qparams({}, 0.5, {.qmin = 5, .qmax = 5}), QuantMismatch);
  CHECK_THROWS_AS(least_entropy_qparams({}, {.qmin = 5, .qmax = 5}), QuantMismatch);
}

TEST_CASE("without samples, the scale is one", "[observe]") {
  CHECK(percentile_qparams({}, 0.9, kInt8) == Chosen{});
  CHECK(least_entropy_qparams({}, kInt8).chosen == Chosen{});
}

TEST_CASE("the least divergence clips outliers", "[observe]") {
  std::vector<float> samples = samples_of(100'000, normal);
  samples.push_back(300);
  const Histogram histogram = histogram_of(samples);
  for (const QRange& to : {kInt8, kSymmetric, kUint8}) {
    const Chosen chosen = least_entropy_qparams(histogram, to).chosen;
    CHECK(bound_of(to, chosen, to.qmax) < 6);
    CHECK(bound_of(to, chosen, to.qmax) > 3);
    CHECK(bound_of(to, chosen, to.qmin) < -3);
    CHECK(bound_of(to, chosen, to.qmin) > -6);
  }
}

TEST_CASE("the least divergence of samples that are spread evenly clips nothing", "[observe]") {
  for (const std::size_t count : {300, 5000, 200'000}) {
    const std::vector<float> samples = samples_of(count, uniform);
    const Histogram histogram = histogram_of(samples);
    for (const QRange& to : {kInt8, kSymmetric, kInt16}) {
      const double whole = range_qparams(histogram.range(), to).scale;
      const double scale = least_entropy_qparams(histogram, to).chosen.scale;
      CHECK(scale <= whole);
      CHECK(scale > 0.98 * whole);
    }
  }
}

TEST_CASE("a spike at the bound of the range is not clipped", "[observe]") {
  const std::vector<float> samples =
      samples_of(20'000, [](auto& r) { return std::clamp(4 * normal(r), 0.0F, 6.0F); });
  for (const QRange& to : {kInt8, kSymmetric, kUint8, kInt16}) {
    const double whole = range_qparams(histogram_of(samples).range(), to).scale;
    CHECK(least_entropy_qparams(histogram_of(samples), to).chosen.scale > 0.99 * whole);
  }
}

TEST_CASE("no range has a least divergence above that of the whole range", "[observe]") {
  for (const auto& [name, samples] : distributions())
    for (const QRange& to : {kInt8, kSymmetric, kUint8, kInt16}) {
      CAPTURE(name);
      const Histogram histogram = histogram_of(samples);
      const LeastEntropy found = least_entropy_qparams(histogram, to);
      CHECK(std::isfinite(found.divergence));
      CHECK(found.chosen.scale <= range_qparams(histogram.range(), to).scale);
      CHECK(bound_of(to, found.chosen, to.qmin) <= 0);
      CHECK(bound_of(to, found.chosen, to.qmax) >= 0);
    }
}

TEST_CASE("ranges do not depend on the order in which samples are merged", "[observe]") {
  for (const auto& [name, samples] : distributions()) {
    CAPTURE(name);
    const Histogram whole = histogram_of(samples);
    Histogram merged;
    for (std::size_t part = 4; part-- > 0;) {
      std::vector<float> values;
      for (std::size_t i = part; i < samples.size(); i += 4) values.push_back(samples[i]);
      merged.merge(histogram_of(values));
    }
    for (const QRange& to : {kInt8, kSymmetric}) {
      CHECK(percentile_qparams(merged, 0.97, to) == percentile_qparams(whole, 0.97, to));
      CHECK(least_entropy_qparams(merged, to).chosen == least_entropy_qparams(whole, to).chosen);
    }
  }
}

TEST_CASE("the largest floats have finite ranges", "[observe]") {
  const float most = std::numeric_limits<float>::max();
  const Histogram histogram = histogram_of(std::vector{-most, most, 1.0F});
  CHECK(std::isfinite(percentile_qparams(histogram, 0.9, kInt8).scale));
  CHECK(std::isfinite(least_entropy_qparams(histogram, kInt8).chosen.scale));
}

}  // namespace
}  // namespace tosaic::quant
