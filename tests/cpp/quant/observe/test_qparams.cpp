#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>

#include "tosaic/base/error.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();
const QRange kInt8{.qmin = -128, .qmax = 127};
const QRange kSymmetric{.qmin = -127, .qmax = 127, .symmetric = true};
const QRange kUint8{.qmin = 0, .qmax = 255};
const QRange kInt16{.qmin = -32768, .qmax = 32767, .symmetric = true};

Histogram histogram_of(std::span<const float> values) {
  Histogram out;
  out.observe(values);
  return out;
}

// The mean squared error of quantizing the samples.
double measured_error(std::span<const float> values, const QRange& to, Chosen chosen) {
  double sum = 0;
  for (const float value : values) {
    const float q = quantize_unbounded(value, inverse_scale(chosen.scale), chosen.zero_point);
    const double error =
        dequantize_value(bound_quantized(q, to.qmin, to.qmax), chosen.scale, chosen.zero_point) -
        static_cast<double>(value);
    sum += error * error;
  }
  return sum / static_cast<double>(values.size());
}

std::vector<float> samples_of(std::size_t count, const std::function<float(std::mt19937&)>& draw) {
  std::mt19937 random(11);
  std::vector<float> out(count);
  for (float& value : out) value = draw(random);
  return out;
}

float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }

const std::vector<std::pair<std::string, std::vector<float>>>& distributions() {
  static const std::vector<std::pair<std::string, std::vector<float>>> all{
      {"normal", samples_of(20'000, normal)},
      {"relu", samples_of(20'000, [](auto& r) { return std::max(0.0F, normal(r)); })},
      {"negative", samples_of(5000, [](auto& r) { return -1 - std::abs(normal(r)); })},
      {"heavy tails", samples_of(20'000, [](auto& r) { return normal(r) / std::abs(normal(r)); })},
      {"bimodal", samples_of(20'000, [](auto& r) { return 0.1F * normal(r) + (r() % 2 ? 5.0F : -3.0F); })},
      {"one outlier", samples_of(20'000, [](auto& r) { return r() % 20'000 ? normal(r) : 300.0F; })},
      {"uniform", samples_of(5000, [](auto& r) { return static_cast<float>(r() % 10'000) / 3000.0F; })}};
  return all;
}

TEST_CASE("a range without samples has scale one and zero point zero", "[observe]") {
  for (const QRange& to : {kInt8, kSymmetric, kUint8}) {
    CHECK(range_qparams({}, to) == Chosen{1, 0});
    CHECK(least_error_qparams({}, to).chosen == Chosen{1, 0});
  }
}

TEST_CASE("the range of an affine quantization includes zero", "[observe]") {
  const Range range{.least = 2, .greatest = 5.1F, .finite = 2};
  CHECK(range_qparams(range, kUint8) == Chosen{5.1F / 255.0F, 0});
  CHECK(range_qparams(range, kInt8) == Chosen{5.1F / 255.0F, -128});
  CHECK(range_qparams({.least = -2, .greatest = -1, .finite = 2}, kUint8) == Chosen{2.0F / 255.0F, 255});
}

TEST_CASE("a symmetric scale covers the larger side with half of the steps", "[observe]") {
  const Range range{.least = -3, .greatest = 2, .finite = 2};
  CHECK(range_qparams(range, kSymmetric) == Chosen{3.0F / 127.0F, 0});
  CHECK(range_qparams(range, {.qmin = -128, .qmax = 127, .symmetric = true}) == Chosen{3.0F / 127.5F, 0});
  CHECK(range_qparams(range, {.qmin = 0, .qmax = 255, .symmetric = true, .zero_point = 128}) ==
        Chosen{3.0F / 127.5F, 128});
}

TEST_CASE("a scale is finite for the largest range of floats", "[observe]") {
  const float most = std::numeric_limits<float>::max();
  const Chosen chosen = range_qparams({.least = -most, .greatest = most, .finite = 2}, kInt8);
  CHECK(chosen.scale == static_cast<float>(2.0 * most / 255));
  const LeastError found = least_error_qparams(histogram_of(std::vector{-most, most, 1.0F}), kInt8);
  CHECK(std::isfinite(found.chosen.scale));
  CHECK(std::isfinite(found.error));
}

TEST_CASE("no scale is below the least one", "[observe]") {
  const std::vector<float> tiny{1e-20F, -3e-20F};
  CHECK(range_qparams(histogram_of(tiny).range(), kInt8).scale == kEps);
  CHECK(least_error_qparams(histogram_of(tiny), kInt8).chosen.scale == kEps);
  QRange free = kInt8;
  free.least_scale = 1e-30F;
  CHECK(measured_error(tiny, free, least_error_qparams(histogram_of(tiny), free).chosen) < 1e-46);
}

TEST_CASE("ranges of integers that contradict themselves are refused", "[observe]") {
  CHECK_THROWS_WITH(require_range({.qmin = 5, .qmax = 5}), Catch::Contains("qmin < qmax"));
  CHECK_THROWS_AS(require_range({.qmin = 0, .qmax = std::int64_t{1} << 33}), QuantMismatch);
  CHECK_THROWS_WITH(require_range({.qmin = 1, .qmax = 9, .symmetric = true}),
                    Catch::Contains("symmetric quantization cannot represent zero"));
  CHECK_THROWS_AS(require_range({.least_scale = 0}), QuantMismatch);
  CHECK_THROWS_AS(expected_error({}, kInt8, {.scale = -1}), QuantMismatch);
  CHECK_THROWS_WITH(expected_error({}, kInt8, {.scale = 1, .zero_point = 128}),
                    Catch::Contains("an integer from -128 to 127, got 128"));
}

TEST_CASE("the expected error is the error of quantizing the samples", "[observe]") {
  for (const auto& [name, samples] : distributions()) {
    INFO(name);
    const Histogram histogram = histogram_of(samples);
    for (const QRange& to : {kInt8, kUint8, kSymmetric}) {
      const Chosen whole = range_qparams(histogram.range(), to);
      for (const double share : {1.3, 1.0, 0.7, 0.3})
        for (const std::int64_t shift : {0, 20}) {
          const Chosen chosen{static_cast<float>(whole.scale * share),
                              std::min(whole.zero_point + shift, to.qmax)};
          const double expected = measured_error(samples, to, chosen);
          CHECK(expected_error(histogram, to, chosen) == Approx(expected).epsilon(0.03));
        }
    }
    const Chosen chosen = least_error_qparams(histogram, kInt16).chosen;
    CHECK(expected_error(histogram, kInt16, chosen) ==
          Approx(measured_error(samples, kInt16, chosen)).epsilon(0.05));
  }
}

TEST_CASE("no scale and zero point of a fine grid has a smaller error", "[observe]") {
  for (const auto& [name, samples] : distributions()) {
    INFO(name);
    const Histogram histogram = histogram_of(samples);
    const QRange to{.qmin = -8, .qmax = 7};  // few zero points, so that all of them can be tried
    const LeastError found = least_error_qparams(histogram, to);
    const Chosen whole = range_qparams(histogram.range(), to);
    // For each zero point, a fine grid around the best share of a coarse one.
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t zero_point = to.qmin; zero_point <= to.qmax; ++zero_point) {
      const auto error = [&](double share) {
        return expected_error(histogram, to, {static_cast<float>(whole.scale * share), zero_point});
      };
      double near = 0.002;
      for (double share = 0.002; share < 2; share *= 1.15)
        if (error(share) < error(near)) near = share;
      for (double share = near / 1.15; share < near * 1.15; share *= 1.01)
        least = std::min(least, error(share));
    }
    CHECK(found.error <= least * 1.0005);
    CHECK(found.error == Approx(expected_error(histogram, to, found.chosen)));
    CHECK(found.error <= expected_error(histogram, to, whole));
  }
}

TEST_CASE("values on a grid are quantized without error", "[observe]") {
  // Pixels without the darkest and the brightest, and whole numbers.
  const std::vector<float> pixels =
      samples_of(5000, [](auto& r) { return static_cast<float>(3 + r() % 240) / 255.0F; });
  const std::vector<float> whole = samples_of(5000, [](auto& r) { return static_cast<float>(r() % 130); });
  for (const auto& [samples, step] : {std::pair(pixels, 1 / 255.0), std::pair(whole, 1.0)})
    for (const QRange& to : {kInt8, kUint8}) {
      const LeastError found = least_error_qparams(histogram_of(samples), to);
      CHECK(measured_error(samples, to, found.chosen) < 1e-4 * step * step / 12);
    }
}

TEST_CASE("a constant is represented by an integer", "[observe]") {
  for (const float value : {1.0F, -0.37F, 6e8F, 3e-4F, 0.0F})
    for (const QRange& to : {kInt8, kUint8, kSymmetric, kInt16}) {
      const std::vector<float> samples(1000, value);
      const Chosen chosen = least_error_qparams(histogram_of(samples), to).chosen;
      CHECK(std::sqrt(measured_error(samples, to, chosen)) <= 1e-6 * std::abs(value));
    }
}

double silu(double x) { return x / (1 + std::exp(-x)); }

std::vector<double> results_of(const Histogram& histogram, double (*f)(double)) {
  std::vector<double> out;
  for (const double mean : means_of(histogram)) out.push_back(f(mean));
  return out;
}

double measured_error_behind(std::span<const float> values, const QRange& to, Chosen chosen,
                             double (*f)(double)) {
  double sum = 0;
  for (const float value : values) {
    const float q = quantize_unbounded(value, inverse_scale(chosen.scale), chosen.zero_point);
    const double error =
        f(dequantize_value(bound_quantized(q, to.qmin, to.qmax), chosen.scale, chosen.zero_point)) - f(value);
    sum += error * error;
  }
  return sum / static_cast<double>(values.size());
}

TEST_CASE("the error behind a function is the measured one, and smaller than with the plain search",
          "[observe]") {
  const std::vector<float> values = samples_of(40'000, [](auto& r) { return 3 * normal(r); });
  const Histogram histogram = histogram_of(values);
  for (const QRange& to : {kInt8, kUint8, kSymmetric}) {
    const LeastError found = least_error_behind(histogram, to, results_of(histogram, silu));
    const double measured = measured_error_behind(values, to, found.chosen, silu);
    const double plain = measured_error_behind(values, to, least_error_qparams(histogram, to).chosen, silu);
    CHECK(found.error == Approx(measured).epsilon(0.05));
    CHECK(measured < (to.symmetric ? 1.02 : 0.7) * plain);
  }
}

TEST_CASE("no scale and zero point of a grid has a smaller error behind a function", "[observe]") {
  const std::vector<float> values = samples_of(5000, [](auto& r) { return 3 * normal(r); });
  const Histogram histogram = histogram_of(values);
  const LeastError found = least_error_behind(histogram, kInt8, results_of(histogram, silu));
  const double measured = measured_error_behind(values, kInt8, found.chosen, silu);
  for (int i = 1; i <= 40; ++i)
    for (std::int64_t zero_point = -128; zero_point <= 127; zero_point += 3) {
      const Chosen other{static_cast<float>(i * 0.0025), zero_point};
      CHECK(measured <= 1.03 * measured_error_behind(values, kInt8, other, silu));
    }
}

TEST_CASE("the error behind the identity is the plain one", "[observe]") {
  for (const auto& [name, values] : distributions()) {
    CAPTURE(name);
    const Histogram histogram = histogram_of(values);
    const LeastError found =
        least_error_behind(histogram, kInt8, results_of(histogram, [](double x) { return x; }));
    const LeastError plain = least_error_qparams(histogram, kInt8);
    const double measured = measured_error(values, kInt8, found.chosen);
    CHECK(measured <= 1.1 * plain.error + 1e-12);
  }
}

TEST_CASE("integers of 16 bits, and histograms without samples, get the plain search", "[observe]") {
  const std::vector<float> values = samples_of(5000, normal);
  const Histogram histogram = histogram_of(values);
  CHECK(least_error_behind(histogram, kInt16, results_of(histogram, silu)).chosen ==
        least_error_qparams(histogram, kInt16).chosen);
  CHECK(least_error_behind(Histogram(), kInt8, {}).chosen == Chosen{});
}

TEST_CASE("results of a function that are too few or not finite are refused", "[observe]") {
  const Histogram histogram = histogram_of(std::vector<float>{-1.0F, 2.0F});
  const std::vector<double> one{1.0}, infinite{0.0, std::numeric_limits<double>::infinity()};
  CHECK_THROWS_AS(least_error_behind(histogram, kInt8, one), LayoutMismatch);
  CHECK_THROWS_AS(least_error_behind(histogram, kInt8, infinite), QuantMismatch);
}

TEST_CASE("an average moves towards each batch and ignores batches without samples", "[observe]") {
  Range average;
  average = moving_average(average, {.least = -1, .greatest = 2, .finite = 4}, 0.25F);
  CHECK(average == Range{.least = -1, .greatest = 2, .finite = 4});
  average = moving_average(average, {.nans = 3}, 0.25F);
  average = moving_average(average, {.least = -5, .greatest = 2, .finite = 1, .infinities = 1}, 0.25F);
  CHECK(average == Range{.least = -2, .greatest = 2, .finite = 5, .infinities = 1, .nans = 3});
}

}  // namespace
}  // namespace tosaic::quant
