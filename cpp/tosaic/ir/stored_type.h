// stored_type: the C++ type in which an element of a dtype is stored.
#pragma once

#include <cstdint>

#include "tosaic/ir/dtype.h"

namespace tosaic {

// Stands for f8, f16 and bf16, which C++ does not have: load_element() and store_element() convert them.
struct NarrowFloat {};

// Calls visit(T{}), where T stores an element of `dtype`, and returns its result. T is uint8 for bool, int8
// for i4, and int64 for i48.
template <class Visit>
decltype(auto) with_stored_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return visit(std::uint8_t{});
    case DType::kI4:
    case DType::kI8:
      return visit(std::int8_t{});
    case DType::kI16:
      return visit(std::int16_t{});
    case DType::kU16:
      return visit(std::uint16_t{});
    case DType::kI32:
      return visit(std::int32_t{});
    case DType::kI48:
    case DType::kI64:
      return visit(std::int64_t{});
    case DType::kF32:
      return visit(float{});
    case DType::kF64:
      return visit(double{});
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  return visit(NarrowFloat{});
}

}  // namespace tosaic
