// scalar_types: the dtypes of torch, and the number that stands for each in a .pt2 file.
//
//   7  ->  name "float32", 4 bytes, DType::kF32
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tosaic/ir/dtype.h"

namespace tosaic::pt2 {

struct ScalarType {
  std::int64_t number;
  std::string_view name;
  std::size_t size;            // bytes of one element
  std::optional<DType> dtype;  // nothing if graphs do not have this dtype
  std::optional<DType> part;   // for a complex dtype: the dtype of the real part
};

// All dtypes of the format, by number.
[[nodiscard]] std::span<const ScalarType> scalar_types();
// The dtype with this number; null if the format has none.
[[nodiscard]] const ScalarType* find_scalar_type(std::int64_t number);

}  // namespace tosaic::pt2
