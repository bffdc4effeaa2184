#include "tosaic/ir/dtype.h"

#include <array>
#include <limits>

#include "tosaic/base/error.h"

namespace tosaic {
namespace {

struct Row {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<Row, 15> kRows{{{"bool", 1},
                                     {"i4", 1},
                                     {"i8", 1},
                                     {"u8", 1},
                                     {"i16", 2},
                                     {"u16", 2},
                                     {"i32", 4},
                                     {"i48", 8},
                                     {"i64", 8},
                                     {"f8e4m3", 1},
                                     {"f8e5m2", 1},
                                     {"f16", 2},
                                     {"bf16", 2},
                                     {"f32", 4},
                                     {"f64", 8}}};

}  // namespace

std::size_t byte_size(DType dtype) { return kRows.at(static_cast<std::size_t>(dtype)).bytes; }

std::string_view to_string(DType dtype) { return kRows.at(static_cast<std::size_t>(dtype)).name; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows.at(i).name == text) return static_cast<DType>(i);
  return std::nullopt;
}

double largest_finite(DType dtype) {
  switch (dtype) {  // NOLINT: float dtypes only
    case DType::kF8E4M3:
      return 448.0;
    case DType::kF8E5M2:
      return 57344.0;
    case DType::kF16:
      return 65504.0;
    case DType::kBF16:
      return 0x1.fep127;
    case DType::kF32:
      return 0x1.fffffep127;
    default:
      return 0x1.fffffffffffffp1023;
  }
}

std::optional<ValueRange> integer_limits(DType dtype) {
  const auto bits = [](int count) {
    const std::int64_t half = std::int64_t{1} << (count - 1);
    return ValueRange{-half, half - 1};
  };
  switch (dtype) {
    case DType::kI4:
      return bits(4);
    case DType::kI8:
      return bits(8);
    case DType::kU8:
      return ValueRange{0, 255};
    case DType::kI16:
      return bits(16);
    case DType::kU16:
      return ValueRange{0, 65535};
    case DType::kI32:
      return bits(32);
    case DType::kI48:
      return bits(48);
    case DType::kI64:
      return ValueRange{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      break;
  }
  return std::nullopt;
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);  // within a category the enum is ordered by width
  if (is_float(b)) {
    if (!is_float(a)) return b;
    const bool narrow_a = a < DType::kF16;
    const bool narrow_b = b < DType::kF16;
    if (narrow_a && narrow_b)
      throw InvalidGraph({.where = "promote",
                          .what = "f8e4m3 and f8e5m2 have no common dtype",
                          .hint = "Cast one operand explicitly"});
    if (a == DType::kF16 && b == DType::kBF16) return DType::kF32;
    return b;
  }
  if (a == DType::kBool) return b;
  // Both dtypes are integers. An unsigned dtype and a signed one that is not wider promote to the next wider
  // signed dtype.
  if (a == DType::kI8 && b == DType::kU8) return DType::kI16;
  if (a == DType::kI4 && b == DType::kU8) return DType::kI16;
  if (b == DType::kU16) return a == DType::kU8 ? b : DType::kI32;
  return b;
}

}  // namespace tosaic
