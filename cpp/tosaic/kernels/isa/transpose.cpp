// Transposes square tiles of n x n elements (n rows of one vector each) in log2(n) rounds of perfect
// shuffles. A round interleaves rows i and i + n/2 into rows 2i and 2i + 1. The tiles are visited in panels
// of rows, so that the cache lines of source and target stay in the first-level cache. Tiles at the right
// edge with fewer than n columns read beyond the edge into the next rows, and drop those elements. This makes
// narrow matrices fast, e.g. the nine columns of weights of a 3 x 3 convolution. All other elements outside
// of whole tiles are copied one by one.
#include "tosaic/kernels/transpose_block.h"

#include "tosaic/kernels/isa/vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using std::int64_t;

template <class T>
inline constexpr int kTile = TOSAIC_VECTOR_BYTES / sizeof(T) < 16 ? TOSAIC_VECTOR_BYTES / sizeof(T) : 16;

template <class T>
using Row = Vector<T, kTile<T>>;

// The shuffle that interleaves rows a and b to a[0], b[0], a[1], b[1], ... `half` is 0 for the lower halves
// of the rows, and 1 for the upper halves.
template <class T>
[[gnu::always_inline]] constexpr Row<T> interleaving(int half) {
  Row<T> mask{};
  for (int i = 0; i < kTile<T>; ++i)
    mask[i] = static_cast<T>(i / 2 + half * (kTile<T> / 2) + (i % 2) * kTile<T>);
  return mask;
}

// Writes the first `cols` columns of the tile.
template <class T>
[[gnu::always_inline]] inline void tile(const T* from, int64_t from_stride, T* to, int64_t to_stride,
                                        int64_t cols) {
  constexpr int n = kTile<T>;
  Row<T> rows[n];
  Row<T> mixed[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) __builtin_memcpy(&rows[i], from + i * from_stride, sizeof rows[i]);
#pragma GCC unroll 8
  for (int round = n; round > 1; round /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < n / 2; ++i) {
#if defined(__clang__)
      for (int k = 0; k < n; ++k) {
        mixed[2 * i][k] = k % 2 == 0 ? rows[i][k / 2] : rows[i + n / 2][k / 2];
        mixed[2 * i + 1][k] = k % 2 == 0 ? rows[i][n / 2 + k / 2] : rows[i + n / 2][n / 2 + k / 2];
      }
#else
      mixed[2 * i] = __builtin_shuffle(rows[i], rows[i + n / 2], interleaving<T>(0));
      mixed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + n / 2], interleaving<T>(1));
#endif
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = mixed[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    if (i == cols) break;
    __builtin_memcpy(to + i * to_stride, &rows[i], sizeof rows[i]);
  }
}

template <class T>
void edge(const T* from, int64_t from_stride, int64_t rows, int64_t cols, T* to, int64_t to_stride) {
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t i = 0; i < rows; ++i) to[j * to_stride + i] = from[i * from_stride + j];
}

template <class T>
void transpose(const void* source, int64_t from_stride, int64_t rows, int64_t cols, void* target,
               int64_t to_stride) {
  constexpr int64_t n = kTile<T>;
  constexpr int64_t kPanel = 64 / sizeof(T) > n ? 64 / sizeof(T) : n;  // rows whose results share cache lines
  const auto* from = static_cast<const T*>(source);
  auto* to = static_cast<T*>(target);
  const int64_t whole_rows = rows - rows % n;
  const int64_t whole_cols = cols - cols % n;
  const int64_t rest = cols - whole_cols;
  // Tiles at the right edge end before this row: their last row is read up to column whole_cols + n, and the
  // matrix ends with column `cols` of its last row.
  const int64_t beyond = rest == 0 ? 0 : (n - rest + from_stride - 1) / from_stride;
  const int64_t edge_rows = rest == 0 ? 0 : whole_rows < rows - beyond ? whole_rows : (rows - beyond) / n * n;
  for (int64_t panel = 0; panel < whole_rows; panel += kPanel) {
    const int64_t end = panel + kPanel < whole_rows ? panel + kPanel : whole_rows;
    for (int64_t j = 0; j < whole_cols; j += n)
      for (int64_t i = panel; i < end; i += n)
        tile(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride, n);
    for (int64_t i = panel; i < end && i < edge_rows; i += n)
      tile(from + i * from_stride + whole_cols, from_stride, to + whole_cols * to_stride + i, to_stride,
           rest);
  }
  const int64_t done = edge_rows > 0 ? edge_rows : 0;
  edge(from + done * from_stride + whole_cols, from_stride, rows - done, rest,
       to + whole_cols * to_stride + done, to_stride);
  edge(from + whole_rows * from_stride, from_stride, rows - whole_rows, whole_cols, to + whole_rows,
       to_stride);
}

TransposeBlock find_transpose(std::size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return transpose<std::uint8_t>;
    case 2:
      return transpose<std::uint16_t>;
    case 4:
      return transpose<std::uint32_t>;
    case 8:
      return transpose<std::uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

const TransposeKernels kTransposeKernels{find_transpose};

}  // namespace tosaic::kernels::TOSAIC_ISA
