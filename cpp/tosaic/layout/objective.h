// objective: the cost that a layout plan minimises.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>

#include "tosaic/ir/graph.h"
#include "tosaic/target/layout_needs.h"

namespace tosaic::layout {

enum class Measure : std::uint8_t {
  kBytes,  // the bytes of all transposes; plans with equal bytes are compared by number
  kCount,  // the number of transposes; plans with equal numbers are compared by bytes
};

// The cost of a transpose of a value, from any order to any other. It is not negative. A plan minimises the
// sum over all transposes. Between equal sums it minimises their number, unless the costs are too large for
// that (weigh in plan_problem.cpp). A plan calls the function once for each value that might be transposed.
using TransposeCost = std::function<std::int64_t(const Graph& graph, ValueId value)>;

using Objective = std::variant<Measure, TransposeCost>;

// The bytes that a transpose of the value moves on the target.
[[nodiscard]] inline std::int64_t bytes_of(const TensorType& type,
                                           const target::LayoutNeeds& needs = target::tosa_layout_needs()) {
  return needs.bytes_of(type);
}

}  // namespace tosaic::layout
