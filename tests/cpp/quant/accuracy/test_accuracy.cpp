// Engines of quant/accuracy on graphs that are built by hand, against plain loops and exhaustive search.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "passes/pass_case.h"
#include "tosaic/base/error.h"
#include "tosaic/quant/accuracy/accuracy.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::quant {
namespace {

using passes::Case;
using passes::require_same;
using passes::results_of;

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

// A linear layer with `columns` inputs.
Contraction linear_contraction(std::int64_t channels, std::int64_t columns) {
  Case c;
  const ValueId y =
      c.add(Op::kLinear, {c.input("x", {4, columns}), c.weights("w", {channels, columns}), ValueId()});
  return *contraction_of(c.graph, *c.graph.producer(y));
}

std::vector<std::int64_t> plain_sums(std::span<const std::int64_t> integers, std::int64_t columns) {
  std::vector<std::int64_t> out;
  const std::int64_t* const end = integers.data() + integers.size();
  for (std::int64_t i = 0; i < columns; ++i)
    for (std::int64_t j = 0; j <= i; ++j) {
      std::int64_t sum = 0;
      for (const std::int64_t* row = integers.data(); row != end; row += columns) sum += row[i] * row[j];
      out.push_back(sum);
    }
  return out;
}

TEST_CASE("sums of products are exact for the largest integers of each grid", "[accuracy]") {
  // 255^2 * 256 is the largest block in f32, and 65535^2 the largest product.
  const std::vector<InputGrid> grids{{1, -128, -128, 127},
                                     {1, 127, -128, 127},
                                     {1, 0, -256, 255},
                                     {1, 0, 0, 65535},
                                     {1, 32767, -32768, 32767}};
  for (const InputGrid& grid : grids)
    for (const std::int64_t columns : {1, 70, 129}) {
      std::mt19937 random(7);
      const std::int64_t rows = 700;
      std::vector<float> samples;
      std::vector<std::int64_t> integers;
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const std::int64_t q = random() % 3 == 0 ? grid.qmin : random() % 2 == 0 ? grid.qmax : grid.qmax - 1;
        integers.push_back(q - grid.zero_point);
        samples.push_back(static_cast<float>(q - grid.zero_point));
      }
      const Contraction contraction = linear_contraction(2, columns);
      SecondMoments moments(contraction, grid);
      moments.observe(contraction, samples, {rows, columns});
      CHECK(std::ranges::equal(moments.sums(0), plain_sums(integers, columns)));
      CHECK(moments.rows() == rows);
    }
}

TEST_CASE("sums that could overflow are refused before samples are added", "[accuracy]") {
  const Contraction contraction = linear_contraction(2, 1);
  SecondMoments moments(contraction, {1, 0, 0, 65535});
  moments.observe(contraction, std::vector<float>{65535.0F}, {1, 1});
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / (std::int64_t{65535} * 65535);
  // The state of `most` rows: the number of rows is in front of the sums.
  std::vector<std::byte> bytes = moments.to_bytes();
  std::memcpy(bytes.data() + bytes.size() - 2 * sizeof most, &most, sizeof most);
  SecondMoments full = SecondMoments::from_bytes(bytes);
  CHECK_THROWS_AS(full.observe(contraction, std::vector<float>{1.0F}, {1, 1}), QuantMismatch);
  CHECK_THROWS_AS(full.merge(moments), QuantMismatch);
  CHECK(full == SecondMoments::from_bytes(bytes));
  const std::int64_t more = most + 1;
  std::memcpy(bytes.data() + bytes.size() - 2 * sizeof more, &more, sizeof more);
  CHECK_THROWS_AS(SecondMoments::from_bytes(bytes), InvalidGraph);
}

double cost(std::span<const float> weights, std::span<const float> rounded, const SecondMoments& moments,
            const Contraction& contraction) {
  return weight_error(contraction, moments, weights, rounded).error;
}

TEST_CASE("rounded weights cost no less than the best ones and no more than the nearest", "[accuracy]") {
  constexpr std::int64_t kColumns = 5;
  double best_total = 0, found_total = 0, nearest_total = 0;
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    const Contraction contraction = linear_contraction(1, kColumns);
    std::vector<float> samples = random_floats(64 * kColumns, seed);
    for (std::size_t i = 1; i < samples.size(); ++i) samples[i] += 0.8F * samples[i - 1];
    SecondMoments moments(contraction, {1e-3, 0, -32767, 32767});
    moments.observe(contraction, samples, {64, kColumns});
    const std::vector<float> weights = random_floats(kColumns, seed + 1000);
    const QParams qparams{.qmin = -3, .qmax = 3, .axis = std::nullopt, .scales = {0.5}, .zero_points = {0}};
    const GptqResult found = gptq(contraction, moments, weights, {1, kColumns}, qparams, {.damping = 0});
    double best = std::numeric_limits<double>::infinity();
    std::vector<float> each(kColumns);
    for (int code = 0; code < 7 * 7 * 7 * 7 * 7; ++code) {
      for (int i = 0, rest = code; i < kColumns; ++i, rest /= 7)
        each[static_cast<std::size_t>(i)] = static_cast<float>(rest % 7 - 3) * 0.5F;
      best = std::min(best, cost(weights, each, moments, contraction));
    }
    std::vector<float> nearest;
    for (const float weight : weights)
      nearest.push_back(std::clamp(std::nearbyint(weight / 0.5F), -3.0F, 3.0F) * 0.5F);
    const double after = cost(weights, found.weights, moments, contraction);
    CHECK(after >= best * (1 - 1e-9));
    CHECK(after <= cost(weights, nearest, moments, contraction) * (1 + 1e-9));
    CHECK(found.error_after == Approx(after).epsilon(1e-9));
    best_total += best;
    found_total += after;
    nearest_total += cost(weights, nearest, moments, contraction);
  }
  CHECK(found_total - best_total < 0.5 * (nearest_total - best_total));
}

TEST_CASE("scales move through a chain, and its results stay", "[accuracy]") {
  Case c;
  const ConvAttrs plain{{1, 1}, {0, 0}, {0, 0}, {1, 1}, {0, 0}, 1, false};
  ConvAttrs depthwise = plain, transposed = plain;
  depthwise.groups = 4;
  transposed.groups = 2;
  transposed.transposed = true;
  ValueId x = c.input("x", {1, 3, 6, 6});
  x = c.add(Op::kConv, {x, c.weights("a", {4, 3, 1, 1}), c.weights("a.bias", {4})}, plain, "first");
  x = c.add(Op::kRelu, {x});
  x = c.add(Op::kConv, {x, c.weights("b", {4, 1, 3, 3}), ValueId()}, depthwise, "second");
  x = c.add(Op::kConv, {x, c.weights("c", {4, 3, 2, 2}), c.weights("c.bias", {6})}, transposed, "third");
  x = c.add(Op::kReshape, {x}, ShapeAttrs{{1, 6 * 25}}, "flat");
  x = c.add(Op::kLinear, {x, c.weights("d", {2, 150}), ValueId()}, "last");
  c.output(x);
  const Equalized equalized = equalize(c.graph);
  verify(equalized.graph);
  REQUIRE(equalized.pairs.size() == 3);
  CHECK(equalized.pairs[2].readers == std::vector<std::string>{"last"});
  for (const EqualizedPair& pair : equalized.pairs)
    for (std::size_t i = 0; i < pair.scales.size(); ++i)
      CHECK(pair.first_after[i] == Approx(pair.reader_after[i]).epsilon(5e-3));
  require_same(results_of(c.graph), results_of(equalized.graph), 1e-4);
}

TEST_CASE("a correction is added to a bias, or as one", "[accuracy]") {
  Case c;
  const ValueId x = c.add(Op::kMatmul, {c.weights("w", {2, 3}), c.input("x", {4, 3, 5})}, "product");
  const ValueId y = c.add(Op::kLinear, {x, c.weights("v", {2, 5}), ValueId()}, "last");
  c.output(y);
  const std::vector<double> errors{1, -2};
  const Graph after = correct_bias(correct_bias(c.graph, "last", errors), "last", std::vector<double>{-1, 2});
  verify(after);
  require_same(results_of(c.graph), results_of(after));
  CHECK(passes::ops_of(correct_bias(c.graph, "product", errors)) == "matmul add linear");
  CHECK_THROWS_AS(correct_bias(c.graph, "x", errors), InvalidGraph);
}

}  // namespace
}  // namespace tosaic::quant
