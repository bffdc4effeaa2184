// constant_value: what a pass knows of the elements of a value before a run.
#pragma once

#include <cmath>
#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic {

// The constant of a value, or null.
[[nodiscard]] inline const Constant* constant_of(const Graph& graph, ValueId id) {
  return id.valid() ? graph.value(id).constant.get() : nullptr;
}

// The number that all elements of a constant share. Returns nothing if the elements differ or are NaN, if
// there are no elements or more than `limit`, or if the constant's data is not bound.
[[nodiscard]] inline std::optional<double> splat_of(const Graph& graph, ValueId id,
                                                    std::size_t limit = 4096) {
  const Constant* constant = constant_of(graph, id);
  if (constant == nullptr || !constant->storage.bound()) return std::nullopt;
  const auto count = static_cast<std::size_t>(num_elements(constant->shape));
  if (count == 0 || count > limit) return std::nullopt;
  const double first = element_as_double(*constant, 0);
  for (std::size_t i = 1; i < count; ++i)
    if (element_as_double(*constant, i) != first) return std::nullopt;
  return std::isnan(first) ? std::nullopt : std::optional(first);
}

}  // namespace tosaic
