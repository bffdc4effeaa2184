// DType: the element types. In memory an i4 element has one byte and an i48 element eight; only `.tosa` files
// pack them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tosaic/base/interval.h"

namespace tosaic {

enum class DType : std::uint8_t {
  kBool,
  kI4,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kI48,
  kI64,
  kF8E4M3,
  kF8E5M2,
  kF16,
  kBF16,
  kF32,
  kF64
};

// Bytes of one element in memory.
[[nodiscard]] std::size_t byte_size(DType dtype);
// "f32", "i8", "bool" ...: the names of the text form.
[[nodiscard]] std::string_view to_string(DType dtype);
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view text);

[[nodiscard]] constexpr bool is_float(DType dtype) { return dtype >= DType::kF8E4M3; }
[[nodiscard]] constexpr bool is_integer(DType dtype) {
  return dtype > DType::kBool && dtype < DType::kF8E4M3;
}

using ValueRange = Interval<std::int64_t>;  // a range of integers
// Maps u8 to i8 and u16 to i16, and every other dtype to itself. TOSA's dtypes do not distinguish signed from
// unsigned; the attributes input_unsigned and output_unsigned of RESCALE do.
[[nodiscard]] constexpr DType without_sign(DType dtype) {
  return dtype == DType::kU8 ? DType::kI8 : dtype == DType::kU16 ? DType::kI16 : dtype;
}
// The values that an integer dtype can hold. Returns nothing for bool and floats.
[[nodiscard]] std::optional<ValueRange> integer_limits(DType dtype);

// The largest finite value of a float dtype.
[[nodiscard]] double largest_finite(DType dtype);

// torch's promotion of two dtypes of equal priority (torch.promote_types). Throws InvalidGraph for f8e4m3
// with f8e5m2, which have no common dtype.
[[nodiscard]] DType promote(DType a, DType b);

}  // namespace tosaic
