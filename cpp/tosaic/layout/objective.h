// What a layout plan makes least.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>

#include "tosaic/ir/graph.h"

namespace tosaic::layout {

enum class Measure : std::uint8_t {
  kBytes,  // of all transposes; their number where the bytes are equal
  kCount,  // the number of transposes; their bytes where it is equal
};

// What bringing a value to another order costs, not negative, whichever orders these are. A plan makes the
// sum over all transposes least, then their number. Asked once for each value that might be moved.
using TransposeCost = std::function<std::int64_t(const Graph& graph, ValueId value)>;

using Objective = std::variant<Measure, TransposeCost>;

// Of a value in memory; TOSA has i64 as i32.
[[nodiscard]] std::int64_t bytes_of(const TensorType& type);

}  // namespace tosaic::layout
