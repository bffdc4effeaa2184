// axis_columns: shared by kernels that compute along the middle axis of [outer, extent, inner], in double or
// in 64-bit integers. A block of up to 64 adjacent columns of the inner axis is computed side by side.
// Threads share the blocks.
#pragma once

#include <algorithm>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/parallel.h"

namespace tosaic::kernels {

inline constexpr std::int64_t kColumns = 64;

struct AxisSplit {
  std::int64_t outer = 1, extent = 1, inner = 1;
};

[[nodiscard]] inline AxisSplit split_at(const Shape& shape, std::size_t axis) {
  AxisSplit split;
  for (std::size_t i = 0; i < shape.size(); ++i)
    (i < axis ? split.outer : i == axis ? split.extent : split.inner) *= shape[i];
  return split;
}

// Calls body(outer, column, columns, worker) for each block of columns.
template <class Body>
void for_each_columns(const AxisSplit& split, double unit_cost, Team* team, Body body) {
  const std::int64_t blocks = (split.inner + kColumns - 1) / kColumns;
  const Loop loop{.count = split.outer * blocks, .unit_cost = unit_cost};
  parallel_for(team, loop, [&](std::int64_t begin, std::int64_t end, Worker worker) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t column = unit % blocks * kColumns;
      body(unit / blocks, column, std::min(kColumns, split.inner - column), worker);
    }
  });
}

// Calls body with a number of the type that these kernels compute in: double or int64_t.
template <class Body>
void with_number(Domain domain, Body body) {
  if (is_float(domain))
    body(double{});
  else
    body(std::int64_t{});
}

}  // namespace tosaic::kernels
