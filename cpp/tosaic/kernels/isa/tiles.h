// The loops of matrix products work on register tiles: up to kRows x 2 vectors of C stay in registers during
// the loop over depth. Each step loads two vectors of B and broadcasts one element of every row of A. The
// rows of a block are spread evenly over its tiles, so a tile has few rows only if the block has few.
//
// Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/multiply.h"
#include "tosaic/kernels/isa/rescale_tile.h"
#include "tosaic/kernels/isa/words.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;

#if TOSAIC_VECTOR_BYTES == 64
constexpr int kRows = 14;
#elif defined(__aarch64__)  // 32 registers, as AVX-512 has, but up to four multiply-adds in a cycle
constexpr int kRows = 8;
#else
constexpr int kRows = 6;
#endif

// ---- tiles ----

template <class T>
[[gnu::always_inline]] inline bool rescales(const GemmBlock<T>& block) {
  if constexpr (kRescales<T>) return block.rescale != nullptr;
  return false;
}

// Prefetches B 4096 bytes ahead of the tile. Near the end of a panel, this is memory of the next panel.
// `step` is the number of bytes of B that the tile reads at a time. The processor's own prefetching stops at
// the end of each page of 4096 bytes.
template <std::int64_t step>
[[gnu::always_inline]] inline void fetch_ahead(const void* b) {
  constexpr Index line = 64, ahead = 4096;
#pragma GCC unroll 2
  for (Index at = 0; at < step; at += line) __builtin_prefetch(static_cast<const char*>(b) + ahead + at);
}

// Memory that each step moves into the second-level cache: `at`, then at + step, and so on.
struct Fetched {
  const char* at = nullptr;
  Index step = 0;
  [[nodiscard]] Fetched after(Index steps) const { return {at + steps * step, step}; }
};

template <class T>
struct Columns {
  Index first;  // first column of the tile, in the block
  Index valid;  // columns of C that exist, at most the width of the tile
  const Factor<T>* panel;
  Fetched fetched = {};
};

template <class T, int R, int W>
[[gnu::always_inline]] inline void add_row_biases(const GemmBlock<T>& block, Vector<Sum<T>> (&sum)[R][W],
                                                  Index row) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) sum[i][j] += block.row_bias[row + i];
}

// Writes the sums of R rows by W whole vectors to C: adds C and biases and clamps, as the block says.
template <class T, int R, int W>
[[gnu::always_inline]] inline void finish(const GemmBlock<T>& block, Vector<Sum<T>> (&sum)[R][W], Sum<T>* c,
                                          Index row, Index column) {
  constexpr Index lanes = kLanes<Sum<T>>;
  if (block.accumulate) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) sum[i][j] += load(c + i * block.c_stride + j * lanes);
  }
  if (!kRescales<T> && block.column_bias != nullptr) {
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) {
      const Vector<Sum<T>> bias = load(block.column_bias + column + j * lanes);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) sum[i][j] += bias;
    }
  }
  if (block.row_bias != nullptr) add_row_biases<T, R, W>(block, sum, row);
  if (block.clamp) {
    const Vector<Sum<T>> low = broadcast(block.low);
    const Vector<Sum<T>> high = broadcast(block.high);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) sum[i][j] = clamp<Sum<T>>(sum[i][j], low, high);
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) store(c + i * block.c_stride + j * lanes, sum[i][j]);
}

// Writes the sums of a tile to C, as finish() does, if only the first `valid` columns are in C.
template <class T>
[[gnu::noinline]] void finish_partly(const GemmBlock<T>& block, const Sum<T>* sums, Index width, Sum<T>* c,
                                     Index row, Index rows, Index column, Index valid) {
  constexpr Index lanes = kLanes<Sum<T>>;
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < valid; j += lanes) {
      const Index count = valid - j < lanes ? valid - j : lanes;
      Sum<T>* to = c + i * block.c_stride + j;
      Vector<Sum<T>> sum = load(sums + i * width + j);
      if (block.accumulate) sum += load_first(to, count);
      if (!kRescales<T> && block.column_bias != nullptr)
        sum += load_first(block.column_bias + column + j, count);
      if (block.row_bias != nullptr) sum += block.row_bias[row + i];
      if (block.clamp) sum = clamp<Sum<T>>(sum, broadcast(block.low), broadcast(block.high));
      store_first(to, sum, count);
    }
  }
}

// Adds the sums of a block to the sums in C, which have more bits.
template <class T>
[[gnu::noinline]] void finish_wide(const GemmBlock<T>& block, const Partial<T>* sums, Index width, Index row,
                                   Index rows, Index column, Index valid) {
  for (Index i = 0; i < rows; ++i, sums += width) {
    Sum<T>* to = block.c + (row + i) * block.c_stride + column;
    const Sum<T>* before = block.accumulate               ? to
                           : block.column_bias != nullptr ? block.column_bias + column
                                                          : nullptr;
    if (before == nullptr)
      for (Index j = 0; j < valid; ++j) to[j] = static_cast<std::int32_t>(sums[j]);
    else
      for (Index j = 0; j < valid; ++j) to[j] = before[j] + static_cast<std::int32_t>(sums[j]);
  }
}

template <class T, int R, int W>
[[gnu::always_inline]] inline void store_tile(const Vector<Partial<T>> (&sum)[R][W], Partial<T>* to) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) store(to + (i * W + j) * kLanes<Partial<T>>, sum[i][j]);
}

// Rescales the sums of a tile to i16. The sums are passed in memory: if this code were a part of the tile's
// function, the compiler would not keep the sums in registers during the loop over depth.
template <class T>
[[gnu::noinline]] void finish_words(const GemmBlock<T>& block, const Partial<T>* sums, Index width, Index row,
                                    Index rows, Index column, Index valid) {
  constexpr Index lanes = kLanes<Partial<T>>;
  for (Index j = 0; j < valid; j += lanes) {
    const WordLanes by(*block.rescale_words, column + j);
    std::int16_t* to = block.words + row * block.words_stride + column + j;
    for (Index i = 0; i < rows; ++i, to += block.words_stride)
      by.store_words(to, load(sums + i * width + j), valid - j);
  }
}

// Finishes a tile of R rows by W vectors, of which the first `valid` columns are in C.
template <class T, int R, int W>
[[gnu::always_inline]] inline void finish_tile(const GemmBlock<T>& block, Vector<Partial<T>> (&sum)[R][W],
                                               Index row, Index column, Index valid) {
  constexpr Index width = W * kLanes<Partial<T>>;
  if constexpr (!std::is_same_v<Partial<T>, Sum<T>>) {
    Partial<T> sums[R * width];
    store_tile<T, R, W>(sum, sums);
    if (block.rescale_words != nullptr) return finish_words(block, sums, width, row, R, column, valid);
    finish_wide(block, sums, width, row, R, column, valid);
  } else {
    Sum<T>* c = block.c + row * block.c_stride + column;
    if (valid == width && !rescales(block)) return finish<T, R, W>(block, sum, c, row, column);
#if defined(TOSAIC_RESCALES_VECTORS)
    if constexpr (kRescales<T>)
      if (rescales(block) && fits_registers(block, width, valid)) {
        if (block.row_bias != nullptr) add_row_biases<T, R, W>(block, sum, row);
        return rescale_registers<T, R, W>(block, sum, row, column);
      }
#endif
    Sum<T> sums[R * width];
    store_tile<T, R, W>(sum, sums);
    if constexpr (kRescales<T>)
      if (rescales(block)) return rescale_tile<T>(block, sums, width, row, R, column, valid);
    finish_partly(block, sums, width, c, row, R, column, valid);
  }
}

// The sums of integers begin at the biases of their columns: the order of terms does not matter.
template <class T, int W>
[[gnu::always_inline]] inline void begin_row(const GemmBlock<T>& block, Index column,
                                             Vector<Partial<T>> (&sum)[W]) {
#pragma GCC unroll 2
  for (int j = 0; j < W; ++j) {
    sum[j] = Vector<Partial<T>>{};
    if constexpr (kRescales<T>)
      if (block.column_bias != nullptr) sum[j] = load(block.column_bias + column + j * kLanes<Sum<T>>);
  }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Computes a tile of R rows by W vectors. One instruction multiplies two rows of A by two columns of B, over
// a depth of eight.
template <int R, int W>
void matrix_tile(const GemmBlock<Quads>& block, Index row, const Columns<Quads>& columns) {
  using Bytes = Vector<std::int8_t>;
  using Sums = Vector<std::uint32_t>;
  using Halves = Vector<std::int64_t>;
  constexpr int kPairs = (R + 1) / 2;
  constexpr Index kQuad = Arithmetic<Quads>::kStep;
  Sums products[kPairs][W][2] = {};  // of rows 2i and 2i + 1 with two of the four columns of a vector
  const auto row_at = [&](int i) { return block.a + (row + (i < R ? i : R - 1)) * block.a_stride; };
  const std::int8_t* b = columns.panel;
  const Index depth = whole_steps<Quads>(block.depth);
  for (Index k = 0; k < depth; k += 2 * kQuad) {
    const bool is_whole = k + kQuad < depth;
    Bytes right[W][2];
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) {
      const auto first = (int32x4_t)load(b + j * kLanes<std::int8_t>);
      const auto second = is_whole ? (int32x4_t)load(b + (W + j) * kLanes<std::int8_t>) : int32x4_t{};
      right[j][0] = (Bytes)vzip1q_s32(first, second);
      right[j][1] = (Bytes)vzip2q_s32(first, second);
    }
    b += 2 * W * kLanes<std::int8_t>;
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      // Bytes after the last quad of a row have any value; they are multiplied by the zeros above.
      const auto left = (Bytes)vcombine_s8(vld1_s8(row_at(2 * i) + k), vld1_s8(row_at(2 * i + 1) + k));
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) {
        add_matrix_product(products[i][j][0], right[j][0], left);
        add_matrix_product(products[i][j][1], right[j][1], left);
      }
    }
  }
  Sums sum[R][W];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    begin_row<Quads, W>(block, columns.first, sum[i]);
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) {
      const auto low = (int64x2_t)products[i / 2][j][0], high = (int64x2_t)products[i / 2][j][1];
      sum[i][j] += (Sums)(i % 2 == 0 ? (Halves)vzip1q_s64(low, high) : (Halves)vzip2q_s64(low, high));
    }
  }
  finish_tile<Quads, R, W>(block, sum, row, columns.first, columns.valid);
}
#endif

// Adds the product of R rows of A, of which the first is at `first`, and `depth` rows of B to the sums from
// row kFirst on. If kFetch, each step also prefetches a part of GemmBlock::fetched. Returns the next element
// of B.
template <class T, int R, int W, bool kFetch, int kFirst = 0, int kSums>
[[gnu::always_inline]] inline const Factor<T>* add_products(Vector<Partial<T>> (&sum)[kSums][W],
                                                            const Factor<T>* first, Index stride,
                                                            const Factor<T>* b, Index depth,
                                                            Fetched fetched) {
  const Factor<T>* a[(R + 3) / 4];  // pointers to every fourth row; addressing modes reach the others
#pragma GCC unroll 4
  for (int i = 0; i < R; i += 4) a[i / 4] = first + i * stride;
  for (Index k = 0; k < depth; k += Arithmetic<T>::kStep) {
    Vector<Factor<T>> right[W];
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) right[j] = load(b + j * kLanes<Factor<T>>);
    // With CappedQuads, all rows are multiplied by a panel before the next panel, which `fetched` prefetches
    // meanwhile.
    if constexpr (!kIsCapped<T>) fetch_ahead<W * sizeof(Vector<Factor<T>>)>(b);
    if constexpr (kFetch) {
      constexpr int reads = 0, second_level = 2;
      __builtin_prefetch(fetched.at, reads, second_level);
      fetched.at += fetched.step;
    }
    b += W * kLanes<Factor<T>>;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const auto left = left_at(a[i / 4] + (i % 4) * stride + k);
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) {
        if constexpr (kIsCapped<T>)
          add_capped_product(sum[kFirst + i][j], right[j], left);
        else
          add_product(sum[kFirst + i][j], right[j], left);
      }
    }
  }
  return b;
}

// Computes a tile of R rows by W vectors.
template <class T, int R, int W>
void tile(const GemmBlock<T>& block, Index row, const Columns<T>& columns) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  if constexpr (std::is_same_v<T, Quads> && R > 1) return matrix_tile<R, W>(block, row, columns);
#endif
  Vector<Partial<T>> sum[R][W];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) begin_row<T, W>(block, columns.first, sum[i]);
  const Factor<T>* a = block.a + row * block.a_stride;
  if (kFetches<T> && columns.fetched.step > 0)
    add_products<T, R, W, kFetches<T>>(sum, a, block.a_stride, columns.panel, block.depth, columns.fetched);
  else
    add_products<T, R, W, false>(sum, a, block.a_stride, columns.panel, block.depth, {});
  finish_tile<T, R, W>(block, sum, row, columns.first, columns.valid);
}

// Adds the products of all runs of a tile, which may have the first row of the block, or the last one.
template <class T, int R, int W, bool kFetch>
[[gnu::always_inline]] inline void add_runs(Vector<Partial<T>> (&sum)[R][W], const GemmBlock<T>& block,
                                            Index row, const Columns<T>& columns, bool has_first,
                                            bool has_last) {
  const Index stride = block.a_stride;
  for (const Run<T>* run = block.runs; run < block.runs + block.num_runs; ++run) {
    const Factor<T>* a = run->a + row * stride;
    const Factor<T>* b = columns.panel + run->at * W * kLanes<Factor<T>>;
    const Index not_first = has_first ? run->not_first : 0, not_last = has_last ? run->not_last : 0;
    const Index depth = run->depth - not_first - not_last;
    const Fetched fetched = columns.fetched.after(run->at);
    if constexpr (R > 1) {
      if (not_first > 0) add_products<T, R - 1, W, kFetch, 1>(sum, a + stride, stride, b, not_first, fetched);
    }
    a += not_first;
    b += not_first * W * kLanes<Factor<T>>;
    b = add_products<T, R, W, kFetch>(sum, a, stride, b, depth, fetched.after(not_first));
    if constexpr (R > 1) {
      if (not_last > 0)
        add_products<T, R - 1, W, kFetch>(sum, a + depth, stride, b, not_last,
                                          fetched.after(not_first + depth));
    }
  }
}

// Computes a tile of R rows by W vectors if the rows of A consist of runs.
template <class T, int R, int W>
void tile_of_runs(const GemmBlock<T>& block, Index row, const Columns<T>& columns) {
  Vector<Partial<T>> sum[R][W];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) begin_row<T, W>(block, columns.first, sum[i]);
  const bool has_first = row == 0, has_last = row + R == block.rows;
  if (columns.fetched.step == 0 && (block.runs_are_whole || (!has_first && !has_last))) {
    // A simpler loop, which takes less time if runs are short.
    for (const Run<T>* run = block.runs; run < block.runs + block.num_runs; ++run)
      add_products<T, R, W, false>(sum, run->a + row * block.a_stride, block.a_stride,
                                   columns.panel + run->at * W * kLanes<Factor<T>>, run->depth, {});
  } else if (columns.fetched.step == 0) {
    add_runs<T, R, W, false>(sum, block, row, columns, has_first, has_last);
  } else {
    add_runs<T, R, W, true>(sum, block, row, columns, has_first, has_last);
  }
  finish_tile<T, R, W>(block, sum, row, columns.first, columns.valid);
}

template <class T>
using Tile = void (*)(const GemmBlock<T>&, Index, const Columns<T>&);

template <class T, int W, int... R>
struct Tiles {
  static constexpr Tile<T> kByRows[] = {tile<T, R, W>...};
};
// Empty for forms whose rows never consist of runs.
template <class T, int W, int... R>
struct TilesOfRuns {
  static constexpr Tile<T> kByRows[sizeof...(R)] = {};
};
template <int W, int... R>
struct TilesOfRuns<float, W, R...> {
  static constexpr Tile<float> kByRows[] = {tile_of_runs<float, R, W>...};
};
#if TOSAIC_VECTOR_BYTES == 64
#define TOSAIC_ROWS 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
#elif defined(__aarch64__)
#define TOSAIC_ROWS 1, 2, 3, 4, 5, 6, 7, 8
#else
#define TOSAIC_ROWS 1, 2, 3, 4, 5, 6
#endif

// The tiles of `width` columns, one for each number of rows.
template <class T>
[[gnu::always_inline]] inline const Tile<T>* tiles_of(const GemmBlock<T>& block, Index width) {
  if (width == kLanes<Partial<T>>)
    return block.runs == nullptr ? Tiles<T, 1, TOSAIC_ROWS>::kByRows
                                 : TilesOfRuns<T, 1, TOSAIC_ROWS>::kByRows;
  return block.runs == nullptr ? Tiles<T, 2, TOSAIC_ROWS>::kByRows : TilesOfRuns<T, 2, TOSAIC_ROWS>::kByRows;
}
#undef TOSAIC_ROWS

// The width of a panel when `columns_left` columns are left.
template <class T>
constexpr Index width_of(Index columns_left) {
  return columns_left <= kLanes<Partial<T>> ? kLanes<Partial<T>> : 2 * kLanes<Partial<T>>;
}

template <class T>
void multiply(const GemmBlock<T>& block) {
  constexpr Index lanes = kLanes<Partial<T>>;
  constexpr Index panel = 2 * lanes;
  const Index panels = (block.cols + panel - 1) / panel;
  const Index tiles = (block.rows + kRows - 1) / kRows;
  // Each step of a tile prefetches an equal part of block.fetched.
  const Index steps = whole_steps<T>(block.depth) / Arithmetic<T>::kStep;
  const Index fetched_step =
      steps == 0 || block.fetched == nullptr ? 0 : block.fetched_bytes / (tiles * panels * steps);
  const Fetched fetched{block.fetched, fetched_step};
  const Index panel_size = whole_steps<T>(block.depth) * panel;
  Index row = 0;
  for (Index t = 0; t < tiles; ++t) {
    const Index rows = (block.rows - row + (tiles - t) - 1) / (tiles - t);
    for (Index p = 0; p < panels; ++p) {
      const Index left = block.cols - p * panel;
      const Index width = width_of<T>(left);
      const Columns<T> columns{p * panel, left < width ? left : width, block.b + p * panel_size,
                               fetched.after((t * panels + p) * steps)};
      tiles_of(block, width)[rows - 1](block, row, columns);
    }
    row += rows;
  }
}

// ---- panels ----

// Calls pack_panel(j, valid, width, panel) for each panel. The panel holds columns [j, j + valid) of B, and
// zeros up to its width.
template <class T, class F>
[[gnu::always_inline]] inline void pack_panels(Index depth, Index cols, Factor<T>* panels, F pack_panel) {
  for (Index j = 0; j < cols; j += 2 * kLanes<Partial<T>>) {
    const Index width = width_of<T>(cols - j);
    const Index valid = cols - j < width ? cols - j : width;
    pack_panel(j, valid, width, panels + j * whole_steps<T>(depth));
  }
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
