// tensor_meta: the type and the memory of a tensor, as a .pt2 file records them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "tosaic/pt2/fields.h"
#include "tosaic/pt2/json.h"

namespace tosaic::pt2 {

enum class NumberKind : std::uint8_t { kInt, kFloat, kBool };

// A number that is an expression of symbols, as the file writes it: "Symbol('s0') + 1".
struct Symbolic {
  std::string_view expression;
  NumberKind kind = NumberKind::kInt;

  friend bool operator==(const Symbolic&, const Symbolic&) = default;
};

using Size = std::variant<std::int64_t, Symbolic>;

inline constexpr std::int64_t kLayouts = 7, kStrided = 7;

struct TensorMeta {
  std::int64_t dtype = 0;            // a number of scalar_types()
  std::vector<Size> sizes, strides;  // in elements, not negative
  Size offset;
  std::string_view device;
  std::int64_t layout = 0;  // 1 to kLayouts

  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

// Depends on every field: types of a program may differ in any one of them.
[[nodiscard]] std::size_t hash_of(const TensorMeta& tensor);

// Throws WrongJson.
[[nodiscard]] TensorMeta read_tensor(Json value, Texts& texts);

}  // namespace tosaic::pt2
