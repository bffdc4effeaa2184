// The loops of CappedQuads (isa/gemm.h): three instructions for a vector of quads. Only files of kernels/isa/ include
// this header.
//
// The elements of B are capped, so that VPMADDUBSW never saturates, and exact sums of quads take two more instructions.
// Pairs take four for as many products. What was taken off B (kernels/excess.h) is multiplied first, for one panel at a
// time and sixteen rows of A in a vector. For that, A is transposed to columns of pairs. The sums of the excess are
// what the sums of the tiles begin with.
#pragma once

#include "tosaic/kernels/isa/tiles.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

constexpr int kCappedRows =
    5;  // with ten vectors of sums, the other operands of a step are in registers, too
constexpr Index kStripRows = 16;  // rows of a strip, whose pairs of one depth are a vector
constexpr Index kPanelCols = 2 * kLanes<std::int32_t>;

[[gnu::always_inline]] inline __m256i load_words(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
[[gnu::always_inline]] inline void store_words(void* at, __m256i words) {
  _mm256_storeu_si256(static_cast<__m256i*>(at), words);
}

// The pairs of a strip, in whole vectors.
[[gnu::always_inline]] inline Index pairs_of(Index depth) { return (depth + 15) / 16 * 8; }

// Transposes the low halves of eight vectors, of eight words each, and the high halves.
[[gnu::always_inline]] inline void transpose_words(__m256i (&rows)[8]) {
  __m256i pairs[8], quads[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm256_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
    pairs[i + 4] = _mm256_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    quads[i] = _mm256_unpacklo_epi32(pairs[i], pairs[i + 1]);
    quads[i + 1] = _mm256_unpackhi_epi32(pairs[i], pairs[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int at = i / 2 * 4 + i % 2;
    rows[2 * i] = _mm256_unpacklo_epi64(quads[at], quads[at + 2]);
    rows[2 * i + 1] = _mm256_unpackhi_epi64(quads[at], quads[at + 2]);
  }
}

// Writes the pairs of each depth of sixteen rows at a time. Rows behind the last one are copies of it.
inline void transpose_pairs(const GemmBlock<CappedQuads>& block, std::byte* to) {
  const Index pairs = pairs_of(block.depth);
  for (Index strip = 0; strip < block.rows; strip += kStripRows) {
    const auto row_at = [&](Index i) {
      const Index row = strip + i < block.rows ? strip + i : block.rows - 1;
      return block.a + row * block.a_stride;
    };
    const std::int8_t* rows[kStripRows];
    for (Index i = 0; i < kStripRows; ++i) rows[i] = row_at(i);
    for (Index pair = 0; pair < pairs; pair += 8, to += 8 * ExcessStep::kPairBytes) {
      __m256i words[8];
#pragma GCC unroll 8
      for (Index i = 0; i < 8; ++i)
        words[i] = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(rows[i + 8] + 2 * pair),
                                       reinterpret_cast<const __m128i*>(rows[i] + 2 * pair));
      transpose_words(words);
#pragma GCC unroll 8
      for (Index i = 0; i < 8; ++i) store_words(to + i * ExcessStep::kPairBytes, words[i]);
    }
  }
}

// The sums of a round for eight columns of sixteen rows, transposed. If kIsCut, only the terms from `first` to `end` are
// multiplied. The pairs of A begin with `first`.
template <bool kIsCut>
[[gnu::always_inline]] inline void sum_round(const ExcessStep* step, const ExcessStep* last, Index first,
                                             Index end, const std::byte* pairs, __m256i (&sums)[8]) {
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) sums[j] = _mm256_setzero_si256();
  for (; step != last; ++step)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const Index at = Index{step->at[j]} - (kIsCut ? first : 0);
      if (kIsCut && (at < 0 || at >= end - first)) continue;
      const __m256i factors = (__m256i)step_factor(step->factors[j]);
      sums[j] = _mm256_add_epi16(sums[j], _mm256_maddubs_epi16(load_words(pairs + at), factors));
    }
  transpose_words(sums);  // vector i has rows i and i + 8
}

// Writes the sums of the excess of a panel, whose columns begin at `column`, and the biases of the columns. Row i is at
// to + i * kPanelCols.
inline void sum_excess(const GemmBlock<CappedQuads>& block, Index column, Index width, const std::byte* pairs,
                       std::uint32_t* to) {
  const Index first = block.first_depth / 2 * ExcessStep::kPairBytes,
              end = first + (block.depth + 1) / 2 * ExcessStep::kPairBytes;
  for (Index strip = 0; strip < block.rows; strip += kStripRows,
             pairs += pairs_of(block.depth) * ExcessStep::kPairBytes, to += kStripRows * kPanelCols)
    for (Index j = 0; j < width; j += Excess::kCols) {
      const std::uint32_t* rounds = block.excess.rounds + (column + j) / Excess::kCols;
      __m256i start[kStripRows];
#pragma GCC unroll 16
      for (__m256i& row : start)
        row = block.column_bias == nullptr ? _mm256_setzero_si256()
                                           : load_words(block.column_bias + column + j);
      for (std::uint32_t round = rounds[0]; round < rounds[1]; ++round) {
        const ExcessStep* step = block.excess.steps + block.excess.begin[round];
        const ExcessStep* last = block.excess.steps + block.excess.begin[round + 1];
        __m256i sums[8];
        if (block.panel_depth == 0)
          sum_round<false>(step, last, first, end, pairs, sums);
        else
          sum_round<true>(step, last, first, end, pairs, sums);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          start[i] = _mm256_add_epi32(start[i], _mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums[i])));
          start[i + 8] =
              _mm256_add_epi32(start[i + 8], _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sums[i], 1)));
        }
      }
#pragma GCC unroll 16
      for (Index i = 0; i < kStripRows; ++i) store_words(to + i * kPanelCols + j, start[i]);
    }
}

// Computes a tile of R rows by W vectors. Its sums begin with `start`, rows of a panel, or if it is null with the biases.
// Each step moves memory of the next panel into the second-level cache.
template <int R, int W>
void capped_tile(const GemmBlock<CappedQuads>& block, Index row, const Columns<CappedQuads>& columns,
                 const std::uint32_t* start) {
  Vector<std::uint32_t> sum[R][W];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    if (start == nullptr)
      begin_row<CappedQuads, W>(block, columns.first, sum[i]);
    else
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) sum[i][j] = load(start + i * kPanelCols + j * kLanes<std::uint32_t>);
  }
  const std::int8_t* a[(R + 3) / 4];  // pointers to every fourth row; addressing modes reach the others
#pragma GCC unroll 4
  for (int i = 0; i < R; i += 4) a[i / 4] = block.a + (row + i) * block.a_stride;
  const Index stride = block.a_stride;
  const std::int8_t* b = columns.panel;
  const __m256i ones = _mm256_set1_epi16(1);
  const char* fetched = columns.fetched.at;
  for (Index k = 0; k < block.depth; k += Arithmetic<CappedQuads>::kStep) {
    constexpr int reads = 0, second_level = 2;
    __builtin_prefetch(fetched, reads, second_level);
    fetched += columns.fetched.step;
    __m256i right[W];
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) right[j] = load_words(b + j * kLanes<std::int8_t>);
    b += W * kLanes<std::int8_t>;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const auto left = (__m256i)step_factor(a[i / 4] + (i % 4) * stride + k);
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j)
        sum[i][j] += (Vector<std::uint32_t>)_mm256_madd_epi16(_mm256_maddubs_epi16(left, right[j]), ones);
    }
  }
  finish_tile<CappedQuads, R, W>(block, sum, row, columns.first, columns.valid);
}

using CappedTile = void (*)(const GemmBlock<CappedQuads>&, Index, const Columns<CappedQuads>&,
                            const std::uint32_t*);
template <int W>
constexpr CappedTile kCappedTiles[kCappedRows] = {capped_tile<1, W>, capped_tile<2, W>, capped_tile<3, W>,
                                                  capped_tile<4, W>, capped_tile<5, W>};

inline void multiply_capped(const GemmBlock<CappedQuads>& block) {
  constexpr Index lanes = kLanes<std::uint32_t>;
  const auto has_rounds = [&](Index column, Index cols) {
    const std::uint32_t* rounds = block.excess.rounds;
    return rounds != nullptr && rounds[column / Excess::kCols] != rounds[(column + cols) / Excess::kCols];
  };
  const Index strips = (block.rows + kStripRows - 1) / kStripRows;
  std::byte* const pairs = block.spare;
  auto* const sums =
      reinterpret_cast<std::uint32_t*>(pairs + strips * pairs_of(block.depth) * ExcessStep::kPairBytes);
  if (block.excess.rounds != nullptr && !block.same_rows) transpose_pairs(block, pairs);
  const Index tiles = (block.rows + kCappedRows - 1) / kCappedRows;
  const Index panel_size = panel_depth(block) * kPanelCols;
  const Index steps = whole_steps<CappedQuads>(block.depth) / Arithmetic<CappedQuads>::kStep;
  for (Index column = 0; column < block.cols; column += kPanelCols) {
    const Index left = block.cols - column, width = width_of<CappedQuads>(left);
    const std::int8_t* panel = block.b + column / kPanelCols * panel_size;
    const Fetched fetched{reinterpret_cast<const char*>(panel + panel_size),
                          steps == 0 ? 0 : panel_size / (tiles * steps)};
    const bool begins_with_excess = has_rounds(column, kPanelCols);
    if (begins_with_excess) sum_excess(block, column, width, pairs, sums);
    const CappedTile* const by_rows = width == lanes ? kCappedTiles<1> : kCappedTiles<2>;
    for (Index t = 0, row = 0; t < tiles; ++t) {
      const Index rows = (block.rows - row + (tiles - t) - 1) / (tiles - t);
      by_rows[rows - 1](
          block, row,
          {column, left < width ? left : width, panel + block.first_depth * width, fetched.after(t * steps)},
          begins_with_excess ? sums + row * kPanelCols : nullptr);
      row += rows;
    }
  }
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
