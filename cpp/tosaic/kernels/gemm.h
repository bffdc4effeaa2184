// Matrix products of any size: cut into the blocks that isa/gemm.h multiplies.
//
//   for blocks of rows:  for blocks of depth:  (gather the patches of this block)  for blocks of columns:
//   multiply
//
// A block of A stays in the second-level cache, and so does the block of B it meets.
#pragma once

#include <algorithm>

#include "tosaic/kernels/isa/gemm.h"

namespace tosaic::kernels {

template <class T>
struct GemmProblem {
  std::int64_t rows = 0, cols = 0, depth = 0;
  const T* a = nullptr;  // rows in place, or null: gathered from `patches`
  std::int64_t a_stride = 0;
  const Patches<T>* patches = nullptr;
  const T* b = nullptr;  // packed
  T* c = nullptr;
  std::int64_t c_stride = 0;
  const T* column_bias = nullptr;
  const T* row_bias = nullptr;
  bool clamp = false;  // the result to [low, high]
  T low = 0, high = 0;
  T* gathered = nullptr;  // scratch of gather_elements(), used if patches
};

struct GemmBlocking {
  std::int64_t rows = 1, cols = 1, depth = 1, gathered_stride = 1;
  [[nodiscard]] std::int64_t gather_elements() const { return rows * gathered_stride; }
};

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows this far apart share a few cache sets: such a matrix is copied, not read in place.
template <class T>
[[nodiscard]] bool rows_collide(std::int64_t stride) {
  return stride * static_cast<std::int64_t>(sizeof(T)) % 4096 == 0;
}

// An odd number of cache lines, so that rows spread over all cache sets.
template <class T>
[[nodiscard]] std::int64_t spread_stride(std::int64_t depth) {
  constexpr std::int64_t line = 64 / sizeof(T);
  return (ceil_div(std::max<std::int64_t>(depth, 1), line) | 1) * line;
}

template <class T>
[[nodiscard]] GemmBlocking gemm_blocking(const GemmKernels<T>& kernels, std::int64_t rows, std::int64_t cols,
                                         std::int64_t depth) {
  // 128 floats: a sum of 4608 terms is then 36 partial sums of 128, which halves the rounding error of 512 at
  // the same speed.
  constexpr std::int64_t max_depth = 512 / sizeof(T);
  constexpr std::int64_t max_tiles = 16;
  constexpr std::int64_t b_bytes = 256 * 1024;
  GemmBlocking blocking;
  const std::int64_t parts = std::max<std::int64_t>(1, ceil_div(depth, max_depth));
  blocking.depth = parts == 1 ? std::max<std::int64_t>(depth, 1) : ceil_div(ceil_div(depth, parts), 16) * 16;
  const std::int64_t tiles = std::max<std::int64_t>(1, ceil_div(rows, kernels.max_rows));
  blocking.rows = std::min(std::max<std::int64_t>(rows, 1),
                           kernels.max_rows * ceil_div(tiles, ceil_div(tiles, max_tiles)));
  const std::int64_t panel_bytes = blocking.depth * kernels.panel * static_cast<std::int64_t>(sizeof(T));
  blocking.cols = std::min(ceil_div(std::max<std::int64_t>(cols, 1), kernels.panel) * kernels.panel,
                           std::max<std::int64_t>(1, b_bytes / panel_bytes) * kernels.panel);
  blocking.gathered_stride = spread_stride<T>(blocking.depth);
  return blocking;
}

// Elements of B[depth x cols] when packed.
template <class T>
[[nodiscard]] std::int64_t packed_elements(const GemmKernels<T>& kernels, std::int64_t depth,
                                           std::int64_t cols) {
  return ceil_div(cols, kernels.panel) * kernels.panel * depth;
}

template <class T>
void multiply(const GemmKernels<T>& kernels, const GemmBlocking& blocking, const GemmProblem<T>& problem) {
  for (std::int64_t row = 0; row < problem.rows; row += blocking.rows) {
    GemmBlock<T> block;
    block.rows = std::min(blocking.rows, problem.rows - row);
    block.panel_depth = problem.depth;
    block.c_stride = problem.c_stride;
    block.row_bias = problem.row_bias == nullptr ? nullptr : problem.row_bias + row;
    std::int64_t from = 0;
    do {
      block.depth = std::min(blocking.depth, problem.depth - from);
      block.first_depth = from;
      block.accumulate = from > 0;
      block.clamp = problem.clamp && from + block.depth == problem.depth;
      block.low = problem.low;
      block.high = problem.high;
      block.a = problem.a == nullptr ? problem.gathered : problem.a + row * problem.a_stride + from;
      block.a_stride = problem.a == nullptr ? blocking.gathered_stride : problem.a_stride;
      if (problem.a == nullptr && block.depth > 0)
        kernels.gather(*problem.patches, row, block.rows, from, from + block.depth, problem.gathered,
                       blocking.gathered_stride);
      for (std::int64_t col = 0; col < problem.cols; col += blocking.cols) {
        block.cols = std::min(blocking.cols, problem.cols - col);
        block.b = problem.b + col * problem.depth;
        block.c = problem.c + row * problem.c_stride + col;
        block.column_bias = problem.column_bias == nullptr || from > 0 ? nullptr : problem.column_bias + col;
        kernels.multiply(block);
      }
      block.row_bias = nullptr;
      from += blocking.depth;
    } while (from < problem.depth);
  }
}

}  // namespace tosaic::kernels
