#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "example_graphs.h"
#include "tosaic/ir/dims.h"
#include "tosaic/ir/storage.h"

namespace tosaic {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double stored(DType dtype, double value) {
  std::byte memory[8]{};
  store_element(dtype, memory, value);
  return load_element(dtype, memory);
}

std::uint32_t bits(DType dtype, double value) {
  std::byte memory[8]{};
  store_element(dtype, memory, value);
  return std::to_integer<std::uint32_t>(memory[0]) | std::to_integer<std::uint32_t>(memory[1]) << 8;
}

double of_bits(DType dtype, std::uint32_t value) {
  const std::byte memory[2]{static_cast<std::byte>(value & 255), static_cast<std::byte>(value >> 8)};
  return load_element(dtype, memory);
}

TEST_CASE("dtypes are parsed from their names", "[ir][dtype]") {
  for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(parse_dtype(to_string(dtype)) == dtype);
    CHECK(byte_size(dtype) >= 1);
    CHECK(is_float(dtype) + is_integer(dtype) + (dtype == DType::kBool) == 1);
  }
  CHECK_FALSE(parse_dtype("float32").has_value());
}

TEST_CASE("dtypes promote as in torch", "[ir][dtype]") {
  CHECK(promote(DType::kF16, DType::kBF16) == DType::kF32);
  CHECK(promote(DType::kI64, DType::kF16) == DType::kF16);
  CHECK(promote(DType::kI8, DType::kU8) == DType::kI16);
  CHECK(promote(DType::kBool, DType::kI8) == DType::kI8);
  CHECK(promote(DType::kI64, DType::kI8) == DType::kI64);
}

TEST_CASE("narrow floats round half to even", "[ir][dtype]") {
  CHECK(bits(DType::kF16, 1.0) == 0x3c00);
  CHECK(bits(DType::kF16, 1.0 + 1.0 / 2048) == 0x3c00);          // a tie, to even
  CHECK(bits(DType::kF16, 1.0 + 3.0 / 2048) == 0x3c02);          // a tie, to even
  CHECK(bits(DType::kF16, 1.0 + 1.0 / 2048 + 1e-12) == 0x3c01);  // rounded once, not first to f32
  CHECK(bits(DType::kF16, 65519.999) == 0x7bff);
  CHECK(bits(DType::kF16, 65520) == 0x7c00);
  CHECK(bits(DType::kF16, std::ldexp(1, -25)) == 0);
  CHECK(bits(DType::kF16, std::ldexp(1.5, -25)) == 1);
  CHECK(bits(DType::kF16, std::ldexp(1, -14) - std::ldexp(1, -26)) ==
        0x0400);  // a subnormal that rounds up to the smallest normal number
  CHECK(bits(DType::kBF16, 1.0 + 1.0 / 256) == 0x3f80);
  CHECK(bits(DType::kBF16, 1.0 + 3.0 / 256) == 0x3f82);
  CHECK(bits(DType::kBF16, -kInf) == 0xff80);
  CHECK(bits(DType::kBF16, 3.4e38) == 0x7f80);
  CHECK(bits(DType::kF8E5M2, 1.125) == 0x3c);
  CHECK(bits(DType::kF8E5M2, 57344) == 0x7b);
  CHECK(bits(DType::kF8E5M2, 61440) == 0x7c);
  CHECK(bits(DType::kF8E4M3, 448) == 0x7e);
  CHECK(bits(DType::kF8E4M3, 464) == 0x7e);
  CHECK(bits(DType::kF8E4M3, 464.001) == 0x7f);
  CHECK(bits(DType::kF8E4M3, kInf) == 0x7f);
  CHECK(bits(DType::kF8E4M3, -0.0) == 0x80);
  CHECK(std::isnan(stored(DType::kF8E4M3, kInf)));
}

TEST_CASE("every bit pattern of a narrow float survives a load and a store", "[ir][dtype]") {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kF16, DType::kBF16}) {
    const std::uint32_t count = byte_size(dtype) == 1 ? 256 : 65536;
    std::uint32_t nans = 0, wrong = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const double value = of_bits(dtype, i);
      if (std::isnan(value))
        ++nans;
      else
        wrong += bits(dtype, value) != i;
    }
    CHECK(wrong == 0);
    CHECK(nans == (dtype == DType::kF8E4M3   ? 2u
                   : dtype == DType::kF8E5M2 ? 6u
                   : dtype == DType::kF16    ? 2046u
                                             : 254u));
  }
}

TEST_CASE("narrow floats round to the nearest neighbour", "[ir][dtype]") {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kF16, DType::kBF16}) {
    const std::uint32_t count = byte_size(dtype) == 1 ? 128 : 32768;
    std::uint32_t wrong = 0;
    for (std::uint32_t i = 0; i + 1 < count; ++i) {
      const double low = of_bits(dtype, i);
      const double high = of_bits(dtype, i + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = (low + high) / 2;
      wrong += bits(dtype, middle) != (i % 2 == 0 ? i : i + 1);
      wrong += bits(dtype, std::nextafter(middle, 0)) != i;
      wrong += bits(dtype, std::nextafter(middle, kInf)) != i + 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("integers round half to even and saturate", "[ir][dtype]") {
  CHECK(stored(DType::kI8, 2.5) == 2);
  CHECK(stored(DType::kI8, -3.5) == -4);
  CHECK(stored(DType::kI8, 300) == 127);
  CHECK(stored(DType::kU8, -1) == 0);
  CHECK(stored(DType::kI4, 9) == 7);
  CHECK(stored(DType::kI4, -9) == -8);
  CHECK(stored(DType::kI48, 1e30) == 140737488355327.0);
  CHECK(stored(DType::kI64, kInf) == 9223372036854775808.0);
  CHECK(stored(DType::kI32, -kInf) == -2147483648.0);
  CHECK(stored(DType::kI32, kNan) == 0);
  CHECK(stored(DType::kBool, 0.5) == 1);
}

TEST_CASE("scalars convert as by Python's int() and float(), with saturation", "[ir][dtype]") {
  CHECK(as_int(Scalar(-2.9)) == -2);
  CHECK(as_int(Scalar(1e30)) == std::numeric_limits<std::int64_t>::max());
  CHECK(as_int(Scalar(-1e30)) == std::numeric_limits<std::int64_t>::min());
  CHECK(as_int(Scalar(kNan)) == 0);
  CHECK(as_int(Scalar(true)) == 1);
  CHECK(as_double(Scalar(std::int64_t{3})) == 3.0);
}

TEST_CASE("a constant stores the elements it was made from", "[ir][storage]") {
  const ConstantRef constant = testing::constant("c", DType::kI16, {2, 2}, {1, -2, 3, 70000});
  CHECK(element_as_int(*constant, 1) == -2);
  CHECK(element_as_double(*constant, 3) == 32767);
  CHECK(testing::error_of([&] { static_cast<void>(element_as_int(*constant, 4)); }) ==
        "[storage] element of constant 'c' is out of range: expected an index below 4, got 4");
  CHECK(testing::error_of([] { testing::constant("c", DType::kI16, {3}, {1}); }) ==
        "[storage] constant 'c' of shape [3] has the wrong count: expected 3, got 1");
}

TEST_CASE("elements of 64-bit integer constants are exact", "[ir][storage]") {
  Constant constant;
  constant.dtype = DType::kI64;
  constant.shape = {1};
  constant.storage = Storage::of(std::vector<std::int64_t>{9007199254740993});
  CHECK(element_as_int(constant, 0) == 9007199254740993);
}

TEST_CASE("storage is aligned and zeroed, and can be written only by a single owner", "[ir][storage]") {
  Storage storage = Storage::allocate(100);
  CHECK(reinterpret_cast<std::uintptr_t>(storage.bytes().data()) % 64 == 0);
  CHECK(std::ranges::all_of(storage.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  storage.writable()[99] = std::byte{1};
  const Storage second = storage;
  CHECK(testing::error_of([&] { static_cast<void>(storage.writable()); }) ==
        "[storage] shared storage cannot be written: expected one owner, got 2");
  Storage foreign(std::make_shared<int>(1), storage.bytes().data(), 4);
  CHECK(testing::error_of([&] { static_cast<void>(foreign.writable()); }) ==
        "[storage] only storage from allocate() can be written");
  CHECK_FALSE(Storage().bound());
  CHECK(Storage::allocate(0).bound());
  CHECK(Storage(nullptr, nullptr, 0).bound());
}

TEST_CASE("a constant changed by its owner is refused", "[ir][storage]") {
  Constant constant;
  constant.name = "w";
  constant.shape = {1};
  const Storage own = Storage::allocate(4);
  constant.storage =
      Storage(std::make_shared<Storage>(own), own.bytes().data(), 4, [] { return "version 2, not 1"; });
  CHECK(testing::error_of([&] { static_cast<void>(constant.bytes()); }) ==
        "[storage] constant 'w' was changed after import: version 2, not 1. Import the model again.");
  constant.storage = Storage::allocate(8);
  CHECK(testing::error_of([&] { static_cast<void>(constant.bytes()); }) ==
        "[storage] constant 'w' has the wrong size: expected 4 bytes, got 8");
}

TEST_CASE("dims insert, erase, permute and broadcast", "[ir][dims]") {
  Dims dims{1, 2, 3};
  dims.insert(1, 9);
  CHECK(dims == Dims{1, 9, 2, 3});
  dims.erase(0);
  CHECK(dims == Dims{9, 2, 3});
  CHECK(contiguous_strides({2, 3, 4}) == Dims{12, 4, 1});
  CHECK(permuted({5, 6, 7}, {2, 0, 1}) == Dims{7, 5, 6});
  CHECK(inverse_permutation({2, 0, 1}) == Dims{1, 2, 0});
  CHECK(broadcast({3, 1}, {2, 1, 4}) == Shape{2, 3, 4});
  CHECK(testing::error_of([] { static_cast<void>(broadcast({3}, {2})); }) ==
        "[infer] shapes do not broadcast: expected extents that are equal or 1, got [3] and [2]");
  CHECK(num_elements({}) == 1);
  CHECK(DimOrder({0, 1, 2}).is_identity());
  CHECK(DimOrder::channels_last(4).axes(4) == Dims{0, 2, 3, 1});
}

}  // namespace
}  // namespace tosaic
