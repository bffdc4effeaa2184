// Products of quads by AMX. Its registers are tiles: matrices of up to 16 rows of 64 bytes. One instruction adds the
// product of a tile of A, 16 rows by 64 bytes of depth, and a tile of B, 16 quads of depth by 16 columns, to a tile of
// C, 16 rows by 16 columns of 32 bits. A tile of A is read from rows that lie anywhere at equal distances, and 16 quads
// of a panel are a tile of B. So operands are packed and gathered as for the other sets that multiply quads, and blocks
// with too few rows are multiplied by the loops of tiles.h.
//
//   tile 0, 1   sums of the upper rows, by the first and the second 16 columns of a panel
//   tile 2, 3   sums of the lower rows
//   tile 4, 5   A and B, for whole steps of 64 bytes of depth
//   tile 6, 7   A and B, for the rest of the depth
//
// All tiles of rows of a block have the same number of rows, so that the registers are configured once: if the rows
// cannot be divided evenly, the last tile begins so early that its first rows are computed twice. The configuration and
// the contents of tiles belong to a thread, and callers expect nothing of them (they are volatile in the ABI). Here they
// live for one call of multiply_by_tiles().
//
// Sums leave the tiles for memory. While the tiles multiply, vectors rescale the sums before: a few rows after each
// step.
//
// Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/tiles.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

constexpr Index kTileRows = 16, kTileBytes = 64, kTileCols = 16;

// ---- instructions ----

// The intrinsics of compilers do not all say which memory they read and write.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

[[gnu::always_inline]] inline void configure_tiles(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}
[[gnu::always_inline]] inline void release_tiles() { asm volatile("tilerelease" : : : "memory"); }
template <int kTile>
[[gnu::always_inline]] inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// The rows are `stride` bytes apart.
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, Index stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile_at(void* to, Index stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}
// Adds the product of A, bytes without sign, and B, bytes with sign.
template <int kSum, int kA, int kB>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

// ---- finished sums ----

// Sums of a block in memory that are to be finished: `rows` rows from row `row` on, `width` columns from `column` on, of
// which `valid` are in C.
struct Sums {
  const std::uint32_t* sums = nullptr;
  Index row = 0, rows = 0, column = 0, width = 0, valid = 0;
};

// Rescales rows of W vectors if every shift has the high halves of products, and no sums are to be added.
template <int W>
[[gnu::noinline]] void rescale_rows(const GemmBlock<Quads>& block, const Sums& part) {
  constexpr Index lanes = kLanes<std::uint32_t>;
  constexpr int kRowsAtOnce = 4 / W;
  const ColumnsToBytes<RescaleWay::kHigh, W> columns(*block.rescale, part.column);
  const auto mask = static_cast<__mmask32>(~std::uint32_t{0} >> (32 - part.valid));
  std::int8_t* to = block.bytes + part.row * block.bytes_stride + part.column;
  const std::uint32_t* from = part.sums;
  for (Index i = 0; i < part.rows; i += kRowsAtOnce) {
    const Index left = part.rows - i;
    // A row that does not exist is the first one.
    const auto vector_at = [&](int v) {
      const Index row = v / W < left ? v / W : 0;
      Vector<std::uint32_t> sum = load(from + row * W * lanes + v % W * lanes);
      if (block.row_bias != nullptr) sum += block.row_bias[part.row + i + row];
      return sum;
    };
    const Register bytes =
        columns.bytes(columns.words(vector_at(0), vector_at(1)), columns.words(vector_at(2), vector_at(3)));
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (r >= left) break;
      __m256i row;
      if constexpr (W == 2)
        row = r == 0 ? _mm512_maskz_extracti32x8_epi32(0xff, bytes, 0)
                     : _mm512_maskz_extracti32x8_epi32(0xff, bytes, 1);
      else
        row = _mm256_zextsi128_si256(r == 0   ? _mm512_maskz_extracti32x4_epi32(0xf, bytes, 0)
                                     : r == 1 ? _mm512_maskz_extracti32x4_epi32(0xf, bytes, 1)
                                     : r == 2 ? _mm512_maskz_extracti32x4_epi32(0xf, bytes, 2)
                                              : _mm512_maskz_extracti32x4_epi32(0xf, bytes, 3));
      _mm256_mask_storeu_epi8(to + r * block.bytes_stride, mask, row);
    }
    from += kRowsAtOnce * W * lanes;
    to += kRowsAtOnce * block.bytes_stride;
  }
}

// Finishes sums in any other way.
[[gnu::noinline]] void finish_sums(const GemmBlock<Quads>& block, const Sums& part) {
  if (block.rescale != nullptr)
    return rescale_tile<Quads>(block, part.sums, part.width, part.row, part.rows, part.column, part.valid);
  std::uint32_t* c = block.c + part.row * block.c_stride + part.column;
  finish_partly<Quads>(block, part.sums, part.width, c, part.row, part.rows, part.column, part.valid);
}

void finish_rows(const GemmBlock<Quads>& block, const Sums& part) {
  if (block.rescale == nullptr || !block.rescale->high_halves || block.accumulate)
    return finish_sums(block, part);
  if (part.width == kTileCols) return rescale_rows<1>(block, part);
  rescale_rows<2>(block, part);
}

// Finishes the next `rows` rows of `part`.
[[gnu::always_inline]] inline void finish_some(const GemmBlock<Quads>& block, Sums& part, Index rows) {
  if (part.rows == 0) return;
  Sums first = part;
  if (first.rows > rows) first.rows = rows;
  finish_rows(block, first);
  part.sums += first.rows * part.width;
  part.row += first.rows;
  part.rows -= first.rows;
}

// ---- tiles ----

// How the tiles of a block are cut.
struct TileGrid {
  Index rows = 0;                   // of a tile
  Index whole_depth = 0, rest = 0;  // the depth of the whole steps, and what is left, in whole quads
};

// The first rows of the tiles that are computed together.
struct TilePair {
  Index upper, lower;
};

template <int kA, int kB, int R, int W>
[[gnu::always_inline]] inline void step_of_tiles(const std::int8_t* upper, const std::int8_t* lower,
                                                 Index stride, const std::int8_t* b) {
  constexpr Index b_stride = W * kTileBytes;
  load_tile<kA>(upper, stride);
  load_tile<kB>(b, b_stride);
  multiply_tiles<0, kA, kB>();
  if constexpr (W == 2) {
    load_tile<kB>(b + kTileBytes, b_stride);
    multiply_tiles<1, kA, kB>();
  }
  if constexpr (R == 2) {
    load_tile<kA>(lower, stride);
    if constexpr (W == 2) {
      multiply_tiles<3, kA, kB>();
      load_tile<kB>(b, b_stride);
    }
    multiply_tiles<2, kA, kB>();
  }
}

template <int kTile>
[[gnu::always_inline]] inline void begin_tile(const std::uint32_t* bias) {
  if (bias == nullptr)
    clear_tile<kTile>();
  else
    load_tile<kTile>(bias, 0);
}

// Computes R tiles of rows by W tiles of columns, and finishes the sums before them. Stores the new sums to `to`.
template <int R, int W>
void tiles_of_rows(const GemmBlock<Quads>& block, const TileGrid& grid, const TilePair& rows,
                   const Columns<Quads>& columns, Sums& before, std::uint32_t* to) {
  const std::uint32_t* bias = block.column_bias == nullptr ? nullptr : block.column_bias + columns.first;
  const std::uint32_t* next_bias = bias == nullptr ? nullptr : bias + kTileCols;
  begin_tile<0>(bias);
  if constexpr (W == 2) begin_tile<1>(next_bias);
  if constexpr (R == 2) begin_tile<2>(bias);
  if constexpr (R == 2 && W == 2) begin_tile<3>(next_bias);
  const std::int8_t* upper = block.a + rows.upper * block.a_stride;
  const std::int8_t* lower = block.a + rows.lower * block.a_stride;
  const std::int8_t* b = columns.panel;
  constexpr Index kFinished = 4 * R;
  for (Index k = 0; k < grid.whole_depth; k += kTileBytes) {
    step_of_tiles<4, 5, R, W>(upper + k, lower + k, block.a_stride, b);
    b += kTileBytes * W * kTileCols;
    finish_some(block, before, kFinished);
  }
  if (grid.rest > 0)
    step_of_tiles<6, 7, R, W>(upper + grid.whole_depth, lower + grid.whole_depth, block.a_stride, b);
  finish_some(block, before, before.rows);
  constexpr Index stride = W * kTileBytes;
  std::uint32_t* second = to + (rows.lower - rows.upper) * W * kTileCols;
  store_tile_at<0>(to, stride);
  if constexpr (W == 2) store_tile_at<1>(to + kTileCols, stride);
  if constexpr (R == 2) store_tile_at<2>(second, stride);
  if constexpr (R == 2 && W == 2) store_tile_at<3>(second + kTileCols, stride);
}

void multiply_by_tiles(const GemmBlock<Quads>& block) {
  constexpr Index kPanel = 2 * kTileCols, kQuad = Arithmetic<Quads>::kStep, kFewRows = 3;
  if (block.rows < kFewRows || block.depth == 0) return multiply<Quads>(block);
  const Index tiles = (block.rows + kTileRows - 1) / kTileRows;
  const Index depth = whole_steps<Quads>(block.depth), rest = depth % kTileBytes;
  const TileGrid grid{(block.rows + tiles - 1) / tiles, depth - rest, rest};
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.row_bytes[i] = static_cast<std::uint16_t>(i == 6 ? rest : kTileBytes);
    shapes.rows[i] = static_cast<std::uint8_t>(i == 5 ? kTileRows : i == 7 ? rest / kQuad : grid.rows);
  }
  if (rest == 0) shapes.row_bytes[6] = shapes.row_bytes[7] = shapes.rows[6] = shapes.rows[7] = 0;
  configure_tiles(shapes);
  alignas(64) std::uint32_t sums[2][2 * kTileRows * kPanel];
  int next = 0;
  Sums before;
  const Index panel_size = depth * kPanel, last_start = block.rows - grid.rows;
  for (Index row = 0; row < block.rows; row += 2 * grid.rows) {
    const Index upper = row < last_start ? row : last_start;
    const Index lower = upper + grid.rows < last_start ? upper + grid.rows : last_start;
    const bool is_pair = row + grid.rows < block.rows;
    const Index end = (is_pair ? lower : upper) + grid.rows;
    for (Index col = 0; col < block.cols; col += kPanel) {
      const Index left = block.cols - col, width = width_of<Quads>(left);
      const Columns<Quads> columns{col, left < width ? left : width, block.b + col / kPanel * panel_size};
      std::uint32_t* to = sums[next];
      next = 1 - next;
      if (width == kPanel)
        (is_pair ? tiles_of_rows<2, 2> : tiles_of_rows<1, 2>)(block, grid, {upper, lower}, columns, before,
                                                              to);
      else
        (is_pair ? tiles_of_rows<2, 1> : tiles_of_rows<1, 1>)(block, grid, {upper, lower}, columns, before,
                                                              to);
      before = {to + (row - upper) * width, row, end - row, col, width, columns.valid};
    }
  }
  finish_some(block, before, before.rows);
  release_tiles();
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
