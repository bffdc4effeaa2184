// Checks metrics of ordinary arrays, and of arrays for which the formulas have no value (zero signals, empty
// arrays, NaN and infinities).
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "exec/chain.h"
#include "tosaic/base/error.h"
#include "tosaic/exec/metrics.h"

namespace tosaic::exec {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Metrics between(const std::vector<float>& reference, const std::vector<float>& value) {
  const Shape shape{static_cast<std::int64_t>(reference.size())};
  return compute_metrics(view(reference, shape), view(value, shape));
}

}  // namespace

TEST_CASE("known arrays give known metrics", "[metrics]") {
  const Metrics m = between({3, 4, 0, 0}, {3, 4, 0, 0.5f});
  CHECK(m.count == 4);
  CHECK(m.mismatches == 1);
  CHECK(m.max_abs == 0.5);
  CHECK(m.sqnr_db == Approx(10 * std::log10(25 / 0.25)));
  CHECK(m.relative == Approx(0.1));
  CHECK(m.cosine == Approx(25 / (5 * std::sqrt(25.25))));
}

TEST_CASE("equal arrays have infinite sqnr", "[metrics]") {
  const Metrics m = between({1, -2, 0}, {1, -2, -0.0f});
  CHECK(m.mismatches == 0);
  CHECK(std::isinf(m.sqnr_db));
  CHECK(m.sqnr_db > 0);
  CHECK(m.relative == 0);
  CHECK(m.max_ulp == 0);
  CHECK(m.cosine == 1);
}

TEST_CASE("a zero signal has defined metrics", "[metrics]") {
  CHECK(between({0, 0}, {0, 0}).cosine == 1);
  CHECK(between({0, 0}, {0, 0}).sqnr_db == std::numeric_limits<double>::infinity());
  const Metrics m = between({0, 0}, {0, 1});
  CHECK(m.sqnr_db == -std::numeric_limits<double>::infinity());
  CHECK(m.relative == std::numeric_limits<double>::infinity());
  CHECK(m.cosine == 0);
}

TEST_CASE("empty arrays are equal", "[metrics]") {
  const Metrics m = between({}, {});
  CHECK(m.count == 0);
  CHECK(m.mismatches == 0);
  CHECK(m.cosine == 1);
  CHECK(m.p99_ulp == 0);
}

TEST_CASE("matching NaNs and infinities are equal", "[metrics]") {
  const Metrics m = between({kNan, kInf, -kInf, 2}, {kNan, kInf, -kInf, 2});
  CHECK(m.mismatches == 0);
  CHECK(m.nonfinite == 0);
  CHECK(m.sqnr_db == std::numeric_limits<double>::infinity());
}

TEST_CASE("a NaN or infinity without counterpart is counted and makes the errors infinite", "[metrics]") {
  const Metrics m = between({1, 2, kInf, 4}, {kNan, 2, -kInf, 5});
  CHECK(m.mismatches == 3);
  CHECK(m.nonfinite == 2);
  CHECK(m.max_abs == std::numeric_limits<double>::infinity());
  CHECK(m.sqnr_db == -std::numeric_limits<double>::infinity());
  CHECK(m.max_ulp == std::numeric_limits<double>::infinity());
  CHECK(m.cosine == Approx(24 / (std::sqrt(20) * std::sqrt(29))));
}

TEST_CASE("an ulp is the spacing at the reference in the coarser of the two formats", "[metrics]") {
  const float next = std::nextafter(1.0f, 2.0f);
  CHECK(between({1}, {next}).max_ulp == 1);
  CHECK(between({8}, {8 + 8 * 3 * (next - 1)}).max_ulp == 3);
  CHECK(between({0}, {std::numeric_limits<float>::denorm_min()}).max_ulp == 1);
  const std::vector<std::uint16_t> bf16{0x3f80};  // 1.0
  const std::vector<float> wide{1.0f + 2 * 0.0078125f};
  CHECK(compute_metrics(view(bf16, DType::kBF16, {1}), view(wide, {1})).max_ulp == 2);
  const std::vector<double> one{1.0}, after{std::nextafter(1.0, 2.0)};
  CHECK(compute_metrics(view(one, DType::kF64, {1}), view(after, DType::kF64, {1})).max_ulp == 1);
}

TEST_CASE("noise on a zero reference is a large but finite number of ulps", "[metrics]") {
  const Metrics m = between({0, 0}, {1, 1});
  CHECK(std::isfinite(m.max_ulp));
  CHECK(std::isfinite(m.p99_ulp));
}

TEST_CASE("max_ulp is in units of 1 for integers, and in the given unit if there is one", "[metrics]") {
  const std::vector<std::int8_t> a{1, 2, -128}, b{1, 4, 127};
  CHECK(compute_metrics(view(a, DType::kI8, {3}), view(b, DType::kI8, {3})).max_ulp == 255);
  const std::vector<float> x{0.0f, 0.5f}, y{0.0f, 0.75f};
  CHECK(compute_metrics(view(x, {2}), view(y, {2}), {0.125}).max_ulp == 2);
}

TEST_CASE("wide integers are compared exactly", "[metrics]") {
  const std::int64_t big = std::int64_t{1} << 60;
  const std::vector<std::int64_t> a{big, std::numeric_limits<std::int64_t>::min()},
      b{big + 1, std::numeric_limits<std::int64_t>::max()};
  const Metrics m = compute_metrics(view(a, DType::kI64, {2}), view(b, DType::kI64, {2}));
  CHECK(m.mismatches == 2);
  CHECK(compute_metrics(view(a, DType::kI64, {1}), view(b, DType::kI64, {1})).max_abs == 1);
}

TEST_CASE("p99 is what 99 of 100 elements do not exceed", "[metrics]") {
  std::vector<std::int32_t> a(1000, 0), b(1000, 0);
  for (int i = 0; i < 1000; ++i) b[static_cast<std::size_t>(i)] = i;
  CHECK(compute_metrics(view(a, DType::kI32, {1000}), view(b, DType::kI32, {1000})).p99_ulp == 989);
  b.assign(1000, 0);
  for (int i = 0; i < 10; ++i) b[static_cast<std::size_t>(i)] = 7;
  CHECK(compute_metrics(view(a, DType::kI32, {1000}), view(b, DType::kI32, {1000})).p99_ulp == 0);
  b[10] = 7;
  CHECK(compute_metrics(view(a, DType::kI32, {1000}), view(b, DType::kI32, {1000})).p99_ulp == 7);
}

TEST_CASE("f16, strided and bool arrays are read correctly", "[metrics]") {
  const std::vector<std::uint16_t> half{0x3c00, 0xc000, 0x0001, 0x7c00};  // 1, -2, 2^-24, inf
  const std::vector<float> same{1, -2, 0x1p-24f, kInf};
  CHECK(compute_metrics(view(half, DType::kF16, {4}), view(same, {4})).mismatches == 0);
  const std::vector<float> matrix{1, 2, 3, 4, 5, 6}, transposed{1, 4, 2, 5, 3, 6};
  CHECK(compute_metrics(permuted(view(matrix, {2, 3}), {1, 0}), view(transposed, {3, 2})).mismatches == 0);
  const std::vector<std::uint8_t> flags{0, 1};
  const std::vector<float> numbers{0, 1};
  CHECK(compute_metrics(view(flags, DType::kBool, {2}), view(numbers, {2})).mismatches == 0);
}

TEST_CASE("arrays of different shapes are not compared", "[metrics]") {
  const std::vector<float> a{1, 2};
  CHECK_THROWS_WITH(compute_metrics(view(a, {2}), view(a, {1, 2})),
                    "[compare] arrays of different shapes: expected [2], got [1,2]");
}

}  // namespace tosaic::exec
