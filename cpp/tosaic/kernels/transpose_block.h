// Transposition of matrices of elements of 1, 2, 4 or 8 bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tosaic/kernels/isa/each_set.h"
#include "tosaic/kernels/kernel.h"
#include "tosaic/kernels/parallel.h"

namespace tosaic::kernels {

// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < cols; strides in elements.
using TransposeBlock = void (*)(const void* from, std::int64_t from_stride, std::int64_t rows,
                                std::int64_t cols, void* to, std::int64_t to_stride);

// Threads that share a transposition get at least this number of columns each, so that two threads do not
// read and write parts of the same cache line.
inline constexpr std::int64_t kLeastTransposed = 16;

// `count` matrices [rows][cols], one after the other.
struct Matrices {
  TransposeBlock transpose = nullptr;
  std::size_t element_bytes = 1;
  std::int64_t count = 1, rows = 0, cols = 0;
};

// Transposes each of the matrices.
inline void transpose_all(const Matrices& m, const std::byte* from, std::byte* to, Team* team) {
  const auto bytes = static_cast<std::int64_t>(m.element_bytes);
  const Loop columns{.count = m.count * m.cols,
                     .step = kLeastTransposed,
                     .unit_cost = static_cast<double>(m.rows) * cost::kTransposed};
  parallel_for(team, columns, [&](std::int64_t begin, std::int64_t end, Worker) {
    for (std::int64_t at = begin, next = 0; at < end; at = next) {
      const std::int64_t matrix = at / m.cols, first = at % m.cols;
      next = std::min(end, (matrix + 1) * m.cols);
      const std::int64_t start = matrix * m.rows * m.cols;
      m.transpose(from + (start + first) * bytes, m.cols, m.rows, next - at,
                  to + (start + first * m.rows) * bytes, m.rows);
    }
  });
}

struct TransposeKernels {
  TransposeBlock (*find)(std::size_t element_bytes) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const TransposeKernels kTransposeKernels;)

}  // namespace tosaic::kernels
