// scalar_type: the element types of tensors in a .pte file, by their code in the file.
//
//   6  ->  name "float", 4 bytes, DType::kF32
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tosaic/ir/dtype.h"

namespace tosaic::pte {

struct ScalarType {
  std::int8_t code;
  std::string_view name;
  std::size_t size;            // bytes of one element
  std::optional<DType> dtype;  // nothing if graphs do not have this type
};

// All types of the format, by code.
[[nodiscard]] std::span<const ScalarType> scalar_types();
// The type with this code; null if the format has none.
[[nodiscard]] const ScalarType* find_scalar_type(std::int8_t code);

}  // namespace tosaic::pte
