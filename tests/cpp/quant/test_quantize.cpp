#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::quant {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
std::vector<T> elements(const Storage& storage) {
  std::vector<T> out(storage.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), storage.bytes().data(), storage.size());
  return out;
}

QParams per_tensor(DType storage, std::int64_t qmin, std::int64_t qmax, double scale,
                   std::int64_t zero_point) {
  return {storage, qmin, qmax, {}, {scale}, {zero_point}};
}

std::string refusal(const QParams& qparams, const Shape& shape) {
  try {
    require_qparams(qparams, shape);
  } catch (const QuantMismatch& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("ties round to even before the zero point is added", "[quantize]") {
  const std::vector<float> x{0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F};
  const Quantized q = quantize(x, {6}, per_tensor(DType::kI8, -128, 127, 1.0, 3));
  CHECK(elements<std::int8_t>(q.storage) == std::vector<std::int8_t>{3, 5, 5, 3, 1, 1});
  CHECK(q.counts == Counts{});
}

TEST_CASE("the scale is inverted as a double", "[quantize]") {
  int beside = 0;
  for (const double scale : {0.1, 1 / 127.5, 0.017, 0.3})
    for (int i = -2000; i <= 2000; ++i) {
      const auto x = static_cast<float>((i + 0.5) * scale);
      const Quantized q = quantize(std::vector{x}, {1}, per_tensor(DType::kI16, -32768, 32767, scale, 0));
      const auto expected = static_cast<std::int16_t>(std::nearbyint(x * static_cast<float>(1.0 / scale)));
      REQUIRE(elements<std::int16_t>(q.storage).front() == expected);
      beside += std::nearbyint(x / static_cast<float>(scale)) == static_cast<float>(expected) ? 0 : 1;
    }
  CHECK(beside > 0);  // a division by the scale would round some values to other integers
}

TEST_CASE("values outside the bounds saturate and are counted", "[quantize]") {
  const std::vector<float> x{200, -200, 127, -127, kInf, -kInf, 127.5F, 127.4F, NAN};
  const Quantized q = quantize(x, {9}, per_tensor(DType::kI8, -127, 127, 1.0, 0));
  CHECK(elements<std::int8_t>(q.storage) ==
        std::vector<std::int8_t>{127, -127, 127, -127, 127, -127, 127, 127, 0});
  CHECK(q.counts == Counts{.saturated = 5, .nans = 1});
}

TEST_CASE("i32 saturates where torch wraps", "[quantize]") {
  const std::vector<float> x{3e9F, -3e9F, 2147483520.0F, 2147483648.0F, -2147483648.0F};
  const Quantized q = quantize(x, {5}, per_tensor(DType::kI32, INT32_MIN, INT32_MAX, 1.0, 0));
  CHECK(elements<std::int32_t>(q.storage) ==
        std::vector<std::int32_t>{INT32_MAX, INT32_MIN, 2147483520, INT32_MAX, INT32_MIN});
  CHECK(q.counts.saturated == 3);
}

TEST_CASE("channels of any axis have their own scale and zero point", "[quantize]") {
  const QParams qparams{DType::kU8, 0, 255, 1, {1.0, 0.5, 2.0}, {0, 10, 20}};
  const std::vector<float> x{1, 2, 1, 2, 1, 2, -3, 4, -3, 4, -3, 4};
  const Quantized q = quantize(x, {2, 3, 2}, qparams);
  CHECK(elements<std::uint8_t>(q.storage) ==
        std::vector<std::uint8_t>{1, 2, 12, 14, 20, 21, 0, 4, 4, 18, 18, 22});
  CHECK(q.counts.saturated == 1);
  CHECK(elements<float>(dequantize(q.storage.bytes(), {2, 3, 2}, qparams)) ==
        std::vector<float>{1, 2, 1, 2, 0, 2, 0, 4, -3, 4, -4, 4});
}

TEST_CASE("i4 values are stored in 8 bits", "[quantize]") {
  const Quantized q =
      quantize(std::vector{7.0F, 8.0F, -8.0F, -9.0F}, {4}, per_tensor(DType::kI4, -8, 7, 1.0, 0));
  CHECK(elements<std::int8_t>(q.storage) == std::vector<std::int8_t>{7, 7, -8, -8});
  CHECK(q.counts.saturated == 2);
}

TEST_CASE("every integer of 16 bits survives dequantizing and quantizing", "[quantize]") {
  for (const double scale : {1e-6, 0.00392156862745098, 0.1, 1.0, 1000.0}) {
    const QParams qparams = per_tensor(DType::kI16, -32768, 32767, scale, 0);
    std::vector<std::int16_t> all;
    for (int q = -32768; q <= 32767; ++q) all.push_back(static_cast<std::int16_t>(q));
    const std::vector<float> x = elements<float>(dequantize(std::as_bytes(std::span(all)), {65536}, qparams));
    const Quantized q = quantize(x, {65536}, qparams);
    CHECK(elements<std::int16_t>(q.storage) == all);
    CHECK(q.counts == Counts{});
  }
}

TEST_CASE("empty tensors can be quantized and dequantized", "[quantize]") {
  const QParams qparams{DType::kI8, -128, 127, 0, {}, {}};
  CHECK(quantize({}, {0, 3}, qparams).storage.size() == 0);
  CHECK(dequantize({}, {0, 3}, qparams).size() == 0);
}

TEST_CASE("qparams that contradict each other are refused by name", "[quantize]") {
  const QParams good{DType::kI8, -128, 127, 0, {1.0, 2.0}, {0, 0}};
  CHECK(refusal(good, {2, 3}).empty());
  const auto changed = [&](auto change) {
    QParams qparams = good;
    change(qparams);
    return refusal(qparams, {2, 3});
  };
  CHECK(changed([](QParams& q) { q.scales[1] = 0; }) ==
        "[quant] scale 1: expected a positive finite number, got 0.0");
  CHECK(changed([](QParams& q) { q.scales = {1.0}; }) ==
        "[quant] the scales and zero points: expected 2 of each, got 1 and 2");
  CHECK(changed([](QParams& q) { q.axis = 2; }) ==
        "[quant] the axis of the scales: expected an axis of [2,3], got 2");
  CHECK(changed([](QParams& q) { q.qmax = 128; }) ==
        "[quant] the bounds of i8: expected qmin <= qmax within -128 to 127, got -128 and 128");
  CHECK(changed([](QParams& q) { q.qmin = 127, q.qmax = 0; }) != "");
  CHECK(changed([](QParams& q) { q.storage = DType::kF32; }) ==
        "[quant] the storage dtype: expected i4, i8, u8, i16, u16 or i32, got f32");
  CHECK_THROWS_AS(quantize(std::vector{1.0F}, {2, 3}, good), LayoutMismatch);
}

TEST_CASE("a bias is rounded half to even and saturates with a count", "[quantize]") {
  const std::vector<float> bias{0.75F, 1.25F, -0.75F, -1.25F, 1e9F, -1e9F, NAN};
  const std::vector<double> half{0.5};
  const QuantizedBias narrow = quantize_bias(bias, half, DType::kI32);
  CHECK(narrow.values == std::vector<std::int64_t>{2, 2, -2, -2, 2000000000, -2000000000, 0});
  CHECK(narrow.counts == Counts{.saturated = 0, .nans = 1});

  const std::vector<double> tiny{1e-9, 1e-9};  // such scales come from weight channels of zeros
  const QuantizedBias beyond = quantize_bias(std::vector{4.0F, -4.0F}, tiny, DType::kI32);
  CHECK(beyond.values == std::vector<std::int64_t>{INT32_MAX, INT32_MIN});
  CHECK(beyond.counts.saturated == 2);
  const QuantizedBias wide = quantize_bias(std::vector{4.0F, -4.0F}, tiny, DType::kI48);
  CHECK(wide.values == std::vector<std::int64_t>{4000000000, -4000000000});
  CHECK(wide.counts.saturated == 0);
  const QuantizedBias widest = quantize_bias(std::vector{1e9F}, std::vector{1e-9}, DType::kI48);
  CHECK(widest.values == std::vector<std::int64_t>{(std::int64_t{1} << 47) - 1});
}

TEST_CASE("a bias with the wrong number of scales, a zero scale or another accumulator is refused",
          "[quantize]") {
  const std::vector<float> bias{1, 2, 3};
  CHECK_THROWS_AS(quantize_bias(bias, std::vector{1.0, 1.0}, DType::kI32), QuantMismatch);
  CHECK_THROWS_AS(quantize_bias(bias, std::vector{0.0}, DType::kI32), QuantMismatch);
  CHECK_THROWS_AS(quantize_bias(bias, std::vector{1.0}, DType::kI16), QuantMismatch);
}

}  // namespace
}  // namespace tosaic::quant
