// The loops of CappedQuads (isa/gemm.h): three instructions for a vector of quads. Only files of kernels/isa/
// include this header.
//
// The elements of B are capped, so that VPMADDUBSW never saturates; two more instructions make exact sums of
// quads. Pairs take four instructions for as many products. The excess of B (gemm/excess.h) is multiplied
// first: for one panel at a time, term by term, with sixteen rows of A in a vector. For that, A is transposed
// to columns of pairs. The sums of the tiles begin with the sums of the excess.
#pragma once

#include "tosaic/kernels/isa/tiles.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

constexpr int kCappedRows = 5;  // ten vectors of sums leave registers for the other operands of a step
constexpr Index kStripRows = ExcessTerm::kRows;
constexpr Index kPanelCols = 2 * kLanes<std::int32_t>;
static_assert(kPanelCols == Excess::kCols);

[[gnu::always_inline]] inline __m256i load_words(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
[[gnu::always_inline]] inline void store_words(void* at, __m256i words) {
  _mm256_storeu_si256(static_cast<__m256i*>(at), words);
}

// Transposes two 8x8 matrices of words: the low halves of eight vectors, and the high halves.
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

// Writes the pairs of A strip by strip. In a strip of kStripRows rows, the pairs of one depth are side by
// side. Rows after the last one are copies of it.
inline void transpose_pairs(const GemmBlock<CappedQuads>& block, std::byte* to) {
  const Index pairs = excess_pairs(block.depth);
  for (Index strip = 0; strip < block.rows; strip += kStripRows) {
    const std::int8_t* rows[kStripRows];
    for (Index i = 0; i < kStripRows; ++i)
      rows[i] = block.a + (strip + i < block.rows ? strip + i : block.rows - 1) * block.a_stride;
    for (Index pair = 0; pair < pairs; pair += 8, to += 8 * ExcessTerm::kPairBytes)
      for (Index first = 0; first < kStripRows; first += 16) {
        __m256i words[8];
#pragma GCC unroll 8
        for (Index i = 0; i < 8; ++i)
          words[i] = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(rows[first + i + 8] + 2 * pair),
                                         reinterpret_cast<const __m128i*>(rows[first + i] + 2 * pair));
        transpose_words(words);
#pragma GCC unroll 8
        for (Index i = 0; i < 8; ++i) store_words(to + i * ExcessTerm::kPairBytes + 2 * first, words[i]);
      }
  }
}

// Sums of 16 bits of a panel. The rows of a strip are adjacent.
struct ColumnSums {
  static constexpr Index kVectors = kStripRows / 16;
  __m256i column[kPanelCols][kVectors];
};
static_assert(sizeof(ColumnSums) == kPanelCols * ExcessTerm::kPairBytes);

// Adds the products of terms to the sums of their columns.
[[gnu::always_inline]] inline void add_terms(const ExcessTerm* term, const ExcessTerm* last,
                                             const std::byte* pairs, ColumnSums& sums) {
  for (; term != last; ++term) {
    auto* const sum = reinterpret_cast<__m256i*>(reinterpret_cast<std::byte*>(&sums) + term->column);
    const auto factors = (__m256i)step_factor(term->factors);
#pragma GCC unroll 2
    for (Index v = 0; v < ColumnSums::kVectors; ++v)
      sum[v] =
          _mm256_add_epi16(sum[v], _mm256_maddubs_epi16(load_words(pairs + term->pair + 32 * v), factors));
  }
}

// Adds the sums, and numbers that are the same in all rows, to the rows of a panel; if kIsFirst, overwrites
// the rows instead.
template <bool kIsFirst>
[[gnu::always_inline]] inline void add_rows(const ColumnSums& sums, __m256i left_number, __m256i right_number,
                                            std::uint32_t* to) {
  constexpr Index lanes = kLanes<std::uint32_t>;
  const auto* rows = reinterpret_cast<const __m128i*>(&sums);  // eight rows of a column
  constexpr Index kRowsOfColumn = kStripRows / 8;
  for (Index eight = 0; eight < kRowsOfColumn; ++eight) {
    const auto columns = [&](Index j) {  // j, and j + 4 in the high half
      return _mm256_loadu2_m128i(rows + (j + 4) * kRowsOfColumn + eight, rows + j * kRowsOfColumn + eight);
    };
    // A lane of 32 bits has column j and, above it, column j + 8.
    __m256i pairs[2][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i left = columns(j), right = columns(j + 8);
      pairs[0][j] = _mm256_unpacklo_epi16(left, right);
      pairs[1][j] = _mm256_unpackhi_epi16(left, right);
    }
#pragma GCC unroll 2
    for (int four = 0; four < 2; ++four) {
      __m256i quads[4];
#pragma GCC unroll 2
      for (int j = 0; j < 4; j += 2) {
        quads[j] = _mm256_unpacklo_epi32(pairs[four][j], pairs[four][j + 1]);
        quads[j + 1] = _mm256_unpackhi_epi32(pairs[four][j], pairs[four][j + 1]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, to += kPanelCols) {
        const __m256i a = quads[i / 2], b = quads[i / 2 + 2];
        const __m256i row = i % 2 == 0 ? _mm256_unpacklo_epi64(a, b) : _mm256_unpackhi_epi64(a, b);
        __m256i left = _mm256_add_epi32(_mm256_srai_epi32(_mm256_slli_epi32(row, 16), 16), left_number);
        __m256i right = _mm256_add_epi32(_mm256_srai_epi32(row, 16), right_number);
        if constexpr (!kIsFirst) {
          left = _mm256_add_epi32(left, load_words(to));
          right = _mm256_add_epi32(right, load_words(to + lanes));
        }
        store_words(to, left);
        store_words(to + lanes, right);
      }
    }
  }
}

[[gnu::always_inline]] inline __m256i wide_starts(const std::int16_t* starts) {
  return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(starts)));
}

// Writes the sums of the excess of a panel, whose columns begin at `column`, and the biases of the columns.
// Row i is at to + i * kPanelCols. The panel has an excess.
inline void sum_excess(const GemmBlock<CappedQuads>& block, Index column, const std::byte* pairs,
                       std::uint32_t* to) {
  const std::uint32_t* rounds = block.excess.rounds + column / kPanelCols;
  __m256i left_bias = _mm256_setzero_si256(), right_bias = left_bias;
  if (block.column_bias != nullptr) {
    left_bias = load_words(block.column_bias + column);
    right_bias = load_words(block.column_bias + column + kLanes<std::uint32_t>);
  }
  for (Index strip = 0; strip < block.rows; strip += kStripRows) {
    for (std::uint32_t round = rounds[0]; round < rounds[1]; ++round) {
      const std::int16_t* starts = block.excess.starts + round * Excess::kCols;
      ColumnSums sums;
#pragma GCC unroll 16
      for (Index j = 0; j < kPanelCols; ++j)
        for (__m256i& sum : sums.column[j]) sum = _mm256_set1_epi16(starts[j]);
      const ExcessTerm* term = block.excess.terms + block.excess.begin[round];
      const ExcessTerm* last = block.excess.terms + block.excess.begin[round + 1];
      add_terms(term, last, pairs, sums);
      const __m256i left_start = wide_starts(starts), right_start = wide_starts(starts + 8);
      if (round == rounds[0])
        add_rows<true>(sums, _mm256_sub_epi32(left_bias, left_start),
                       _mm256_sub_epi32(right_bias, right_start), to);
      else
        add_rows<false>(sums, _mm256_sub_epi32(_mm256_setzero_si256(), left_start),
                        _mm256_sub_epi32(_mm256_setzero_si256(), right_start), to);
    }
    pairs += excess_pairs(block.depth) * ExcessTerm::kPairBytes;
    to += kStripRows * kPanelCols;
  }
}

// Computes a tile of R rows by W vectors. Its sums begin with `start`, rows of a panel, or if it is null with
// the biases. Each step moves memory of the next panel into the second-level cache.
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
  add_products<CappedQuads, R, W, true>(sum, block.a + row * block.a_stride, block.a_stride, columns.panel,
                                        block.depth, columns.fetched);
  finish_tile<CappedQuads, R, W>(block, sum, row, columns.first, columns.valid);
}

using CappedTile = void (*)(const GemmBlock<CappedQuads>&, Index, const Columns<CappedQuads>&,
                            const std::uint32_t*);
template <int W>
constexpr CappedTile kCappedTiles[kCappedRows] = {capped_tile<1, W>, capped_tile<2, W>, capped_tile<3, W>,
                                                  capped_tile<4, W>, capped_tile<5, W>};

inline void multiply_capped(const GemmBlock<CappedQuads>& block) {
  constexpr Index lanes = kLanes<std::uint32_t>;
  const std::uint32_t* const rounds = block.excess.rounds;
  std::byte* const pairs = block.spare;
  auto* const sums =
      reinterpret_cast<std::uint32_t*>(pairs + excess_rows(block.rows) * 2 * excess_pairs(block.depth));
  if (rounds != nullptr && !block.same_rows) transpose_pairs(block, pairs);
  const Index tiles = (block.rows + kCappedRows - 1) / kCappedRows;
  const Index panel_size = whole_steps<CappedQuads>(block.depth) * kPanelCols;
  const Index steps = whole_steps<CappedQuads>(block.depth) / Arithmetic<CappedQuads>::kStep;
  for (Index column = 0; column < block.cols; column += kPanelCols) {
    const Index left = block.cols - column, width = width_of<CappedQuads>(left);
    const std::int8_t* panel = block.b + column / kPanelCols * panel_size;
    const Fetched fetched{reinterpret_cast<const char*>(panel + panel_size),
                          steps == 0 ? 0 : panel_size / (tiles * steps)};
    const Index p = column / kPanelCols;
    const bool begins_with_excess = rounds != nullptr && rounds[p] != rounds[p + 1];
    if (begins_with_excess) sum_excess(block, column, pairs, sums);
    const CappedTile* const by_rows = width == lanes ? kCappedTiles<1> : kCappedTiles<2>;
    for (Index t = 0, row = 0; t < tiles; ++t) {
      const Index rows = (block.rows - row + (tiles - t) - 1) / (tiles - t);
      by_rows[rows - 1](block, row, {column, left < width ? left : width, panel, fetched.after(t * steps)},
                        begins_with_excess ? sums + row * kPanelCols : nullptr);
      row += rows;
    }
  }
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
