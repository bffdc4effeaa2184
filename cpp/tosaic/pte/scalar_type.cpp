#include "tosaic/pte/scalar_type.h"

#include <algorithm>
#include <array>

namespace tosaic::pte {
namespace {

constexpr auto kTypes = std::to_array<ScalarType>({
    {0, "uint8", 1, DType::kU8},
    {1, "int8", 1, DType::kI8},
    {2, "int16", 2, DType::kI16},
    {3, "int32", 4, DType::kI32},
    {4, "int64", 8, DType::kI64},
    {5, "float16", 2, DType::kF16},
    {6, "float32", 4, DType::kF32},
    {7, "float64", 8, DType::kF64},
    {8, "complex32", 4, {}},
    {9, "complex64", 8, {}},
    {10, "complex128", 16, {}},
    {11, "bool", 1, DType::kBool},
    {12, "qint8", 1, {}},
    {13, "quint8", 1, {}},
    {14, "qint32", 4, {}},
    {15, "bfloat16", 2, DType::kBF16},
    {16, "quint4x2", 1, {}},
    {17, "quint2x4", 1, {}},
    {22, "bits16", 2, {}},
    {23, "float8_e5m2", 1, DType::kF8E5M2},
    {24, "float8_e4m3fn", 1, DType::kF8E4M3},
    {25, "float8_e5m2fnuz", 1, {}},
    {26, "float8_e4m3fnuz", 1, {}},
    {27, "uint16", 2, DType::kU16},
    {28, "uint32", 4, {}},
    {29, "uint64", 8, {}},
});

}  // namespace

std::span<const ScalarType> scalar_types() { return kTypes; }

const ScalarType* find_scalar_type(std::int8_t code) {
  const auto it = std::ranges::find(kTypes, code, &ScalarType::code);
  return it == kTypes.end() ? nullptr : &*it;
}

}  // namespace tosaic::pte
