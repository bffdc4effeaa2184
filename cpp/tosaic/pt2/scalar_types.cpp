#include "tosaic/pt2/scalar_types.h"

#include <algorithm>

namespace tosaic::pt2 {
namespace {

constexpr ScalarType kTypes[] = {
    {1, "uint8", 1, DType::kU8, {}},
    {2, "int8", 1, DType::kI8, {}},
    {3, "int16", 2, DType::kI16, {}},
    {4, "int32", 4, DType::kI32, {}},
    {5, "int64", 8, DType::kI64, {}},
    {6, "float16", 2, DType::kF16, {}},
    {7, "float32", 4, DType::kF32, {}},
    {8, "float64", 8, DType::kF64, {}},
    {9, "complex32", 4, {}, {}},
    {10, "complex64", 8, {}, DType::kF32},
    {11, "complex128", 16, {}, DType::kF64},
    {12, "bool", 1, DType::kBool, {}},
    {13, "bfloat16", 2, DType::kBF16, {}},
    {28, "uint16", 2, DType::kU16, {}},
    {29, "float8_e4m3fn", 1, DType::kF8E4M3, {}},
    {30, "float8_e5m2", 1, DType::kF8E5M2, {}},
    {31, "float8_e4m3fnuz", 1, {}, {}},
    {32, "float8_e5m2fnuz", 1, {}, {}},
    {33, "float8_e8m0fnu", 1, {}, {}},
    {34, "uint32", 4, {}, {}},
    {35, "uint64", 8, {}, {}},
};

}  // namespace

std::span<const ScalarType> scalar_types() { return kTypes; }

const ScalarType* find_scalar_type(std::int64_t number) {
  const auto* const found = std::ranges::find(kTypes, number, &ScalarType::number);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace tosaic::pt2
