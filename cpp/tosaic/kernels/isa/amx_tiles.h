// Products of quads by AMX. Its registers are tiles: matrices of up to 16 rows of 64 bytes. One instruction
// adds the product of a tile of A, 16 rows by 64 bytes of depth, and a tile of B, 16 quads of depth by 16
// columns, to a tile of C, 16 rows by 16 columns of 32 bits. A tile of A is read from rows that lie anywhere
// at equal distances, and 16 quads of a panel are a tile of B. So operands are packed and gathered as for the
// other sets that multiply quads, and blocks with too few rows are multiplied by the loops of tiles.h.
//
//   tile 0, 1   sums of the upper rows, by the first and the second 16 columns of a panel
//   tile 2, 3   sums of the lower rows
//   tile 4, 5   A and B, for whole steps of 64 bytes of depth
//   tile 6, 7   A and B, for the rest of the depth
//
// All tiles of rows of a block have the same number of rows, so that the registers are configured once: if
// the rows cannot be divided evenly, the last tile overlaps the tile before, and the shared rows are computed
// twice. The configuration and the contents of tiles belong to a thread, and callers expect nothing of them
// (they are volatile in the ABI). Here they live for one call of multiply_by_tiles().
//
// Sums are stored to memory. While the next tiles multiply, vector instructions rescale these sums: a few
// rows after each step.
//
// Only files of kernels/isa/ include this header.
#pragma once

#include <algorithm>

#include "tosaic/kernels/isa/amx.h"
#include "tosaic/kernels/isa/tiles.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

// ---- finished sums ----

// Sums of a block in memory that are to be finished: `rows` rows from row `row` on, of a panel of W vectors.
struct Sums {
  const std::uint32_t* sums = nullptr;
  Index row = 0, rows = 0;
};

// Rescales rows of a panel of W vectors to i8, if the high halves of products suffice (RescaleWay::kHigh) and
// C has no sums yet that are to be added.
template <int W, bool kHasRowBias>
struct RescaledPanel {
  static constexpr int kRowsAtOnce = 4 / W;
  static constexpr Index kLanesOfRow = W * kLanes<std::uint32_t>;
  const std::uint32_t* row_bias;
  std::int8_t* bytes;
  Index stride;
  ColumnsToBytes<RescaleWay::kHigh, W> columns;
  __mmask32 mask;

  [[gnu::always_inline]] RescaledPanel(const GemmBlock<Quads>& block, const Columns<Quads>& panel)
      : row_bias(block.row_bias),
        bytes(block.bytes + panel.first),
        stride(block.bytes_stride),
        columns(*block.rescale, panel.first),
        mask(static_cast<__mmask32>(~std::uint32_t{0} >> (32 - panel.valid))) {}

  // Vector v of the sums of the next rows, rescaled. Odd lanes become even ones by a second load, one element
  // further: a shift would occupy the execution unit that rescales.
  template <int v>
  [[gnu::always_inline]] V32 rescaled(const Sums& part) const {
    const std::uint32_t* at = part.sums + v * kLanes<std::uint32_t>;
    const LaneScale<RescaleWay::kHigh> by = v % W == 0 ? columns.left : columns.right;
    if constexpr (kHasRowBias) {
      const std::uint32_t bias = v / W < part.rows ? row_bias[part.row + v / W] : 0;
      return rescale_vector((V32)(load(at) + bias), by);
    } else {
      return rescale_halves((W64)load(at), (W64)load(at + 1), by);
    }
  }

  // Rescales the next rows: kRowsAtOnce, or as many as are left.
  [[gnu::always_inline]] void finish(Sums& part) const {
    const ByteRange& range = columns.range;
    const Register row_bytes = columns.bytes(range.words(rescaled<0>(part), rescaled<1>(part)),
                                             range.words(rescaled<2>(part), rescaled<3>(part)));
    std::int8_t* to = bytes + part.row * stride;
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (r >= part.rows) break;
      __m256i row;
      if constexpr (W == 2)
        row = r == 0 ? _mm512_maskz_extracti32x8_epi32(0xff, row_bytes, 0)
                     : _mm512_maskz_extracti32x8_epi32(0xff, row_bytes, 1);
      else
        row = _mm256_zextsi128_si256(r == 0   ? _mm512_maskz_extracti32x4_epi32(0xf, row_bytes, 0)
                                     : r == 1 ? _mm512_maskz_extracti32x4_epi32(0xf, row_bytes, 1)
                                     : r == 2 ? _mm512_maskz_extracti32x4_epi32(0xf, row_bytes, 2)
                                              : _mm512_maskz_extracti32x4_epi32(0xf, row_bytes, 3));
      _mm256_mask_storeu_epi8(to + r * stride, mask, row);
    }
    part.sums += kRowsAtOnce * kLanesOfRow;
    part.row += kRowsAtOnce;
    part.rows -= kRowsAtOnce;
  }
};

// Rescales rows of a panel to i32. C has no sums yet that are to be added.
template <int W, RescaleWay kWay>
struct WidePanel {
  static constexpr int kRowsAtOnce = 4 / W;
  const std::uint32_t* row_bias;
  std::int32_t* c;
  Index stride, valid;
  LaneScale<kWay> left, right;
  V32 output_zp;
  WideLimits limits;

  [[gnu::always_inline]] WidePanel(const GemmBlock<Quads>& block, const Columns<Quads>& panel)
      : row_bias(block.row_bias),
        c(reinterpret_cast<std::int32_t*>(block.c) + panel.first),
        stride(block.c_stride),
        valid(panel.valid),
        left(scale_of_columns<kWay>(*block.rescale, panel.first)),
        right(scale_of_columns<kWay>(*block.rescale, panel.first + (W - 1) * kLanes<std::uint32_t>)),
        output_zp(broadcast(block.rescale->output_zp)),
        limits(*block.rescale) {}

  [[gnu::always_inline]] void finish(Sums& part) const {
    constexpr Index lanes = kLanes<std::uint32_t>;
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (r >= part.rows) break;
      std::int32_t* const to = c + (part.row + r) * stride;
      const std::uint32_t bias = row_bias == nullptr ? 0 : row_bias[part.row + r];
#pragma GCC unroll 2
      for (int v = 0; v < W; ++v) {
        const Index left_of_it = v * lanes;
        if (valid <= left_of_it) break;
        const V32 sum = (V32)(load(part.sums + r * W * lanes + left_of_it) + bias);
        limits.store(to + left_of_it, rescale_vector(sum, v == 0 ? left : right) + output_zp,
                     std::min(lanes, valid - left_of_it));
      }
    }
    part.sums += kRowsAtOnce * W * lanes;
    part.row += kRowsAtOnce;
    part.rows -= kRowsAtOnce;
  }
};

// Finishes rows of a panel in all other cases.
template <int W>
struct FinishedPanel {
  static constexpr int kRowsAtOnce = 2 * kTileRows;
  const GemmBlock<Quads>& block;
  const Columns<Quads>& panel;

  [[gnu::always_inline]] FinishedPanel(const GemmBlock<Quads>& of, const Columns<Quads>& columns)
      : block(of), panel(columns) {}

  [[gnu::noinline]] void finish(Sums& part) const {
    constexpr Index width = W * kLanes<std::uint32_t>;
    if (block.rescale != nullptr) {
      rescale_tile<Quads>(block, part.sums, width, part.row, part.rows, panel.first, panel.valid);
    } else {
      std::uint32_t* c = block.c + part.row * block.c_stride + panel.first;
      finish_partly<Quads>(block, part.sums, width, c, part.row, part.rows, panel.first, panel.valid);
    }
    part.rows = 0;
  }
};

// ---- tiles ----

// How a block is cut into tiles.
struct TileGrid {
  Index rows = 0;                          // of a tile
  Index tiles_of_line = 0, line_rows = 0;  // a block without lines is one line
  Index line_stride = 0, a_stride = 0;
  const Run<Quads>* runs = nullptr;
  Index num_runs = 0;
  Index whole_depth = 0,
        rest = 0;  // of a run: the depth of the whole steps, and what is left, in whole quads
};

// Where a tile begins: in the rows of C, and in A, relative to the first row.
struct TileStart {
  Index row, a;
};

[[gnu::always_inline]] inline TileStart start_of(const TileGrid& grid, Index tile) {
  const Index line = tile / grid.tiles_of_line, last = grid.line_rows - grid.rows;
  const Index even = tile % grid.tiles_of_line * grid.rows, row = even < last ? even : last;
  return {line * grid.line_rows + row, line * grid.line_stride + row * grid.a_stride};
}

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

// The panel of B after the one that is multiplied. Each step of the multiplication moves a part of it into
// the second-level cache. The weights of a whole network are too large for the caches of a core, and the
// tiles would wait for memory.
struct NextPanel {
  const char* at = nullptr;
  Index bytes = 0, bytes_of_step = 0;

  // `steps` is the number of steps until the panel is needed.
  NextPanel(const void* panel, Index size, Index steps)
      : at(static_cast<const char*>(panel)),
        bytes(panel == nullptr ? 0 : size),
        bytes_of_step((bytes + steps * kTileBytes - 1) / (steps * kTileBytes) * kTileBytes) {}

  [[gnu::always_inline]] void fetch_part() {
    constexpr int reads = 0, second_level = 2;
    for (Index i = 0; i < bytes_of_step && bytes > 0; i += kTileBytes) {
      __builtin_prefetch(at, reads, second_level);
      at += kTileBytes;
      bytes -= kTileBytes;
    }
  }
};

// Computes R tiles of rows by W tiles of columns, and finishes sums of the tiles before. Stores the new sums
// to `to`.
template <int R, int W, class Panel>
[[gnu::always_inline]] inline void tiles_of_rows(const GemmBlock<Quads>& block, const TileGrid& grid,
                                                 const TileStart& upper, const TileStart& lower,
                                                 const Columns<Quads>& columns, const Panel& panel,
                                                 NextPanel& next_panel, Sums& before, std::uint32_t* to) {
  const std::uint32_t* bias = block.column_bias == nullptr ? nullptr : block.column_bias + columns.first;
  const std::uint32_t* next_bias = bias == nullptr ? nullptr : bias + kTileCols;
  begin_tile<0>(bias);
  if constexpr (W == 2) begin_tile<1>(next_bias);
  if constexpr (R == 2) begin_tile<2>(bias);
  if constexpr (R == 2 && W == 2) begin_tile<3>(next_bias);
  const std::int8_t* b = columns.panel;
  // How many times rows are finished after each step.
  const Index steps = grid.num_runs * (grid.whole_depth / kTileBytes + 1);
  const Index finishes = (before.rows + steps * Panel::kRowsAtOnce - 1) / (steps * Panel::kRowsAtOnce);
  for (const Run<Quads>* run = grid.runs; run < grid.runs + grid.num_runs; ++run) {
    const std::int8_t *a = run->a + upper.a, *next_a = run->a + lower.a;
    for (Index k = 0; k < grid.whole_depth; k += kTileBytes) {
      step_of_tiles<4, 5, R, W>(a + k, next_a + k, grid.a_stride, b);
      b += kTileBytes * W * kTileCols;
      next_panel.fetch_part();
      for (Index i = 0; i < finishes && before.rows > 0; ++i) panel.finish(before);
    }
    if (grid.rest > 0) {
      step_of_tiles<6, 7, R, W>(a + grid.whole_depth, next_a + grid.whole_depth, grid.a_stride, b);
      b += grid.rest * W * kTileCols;
      for (Index i = 0; i < finishes && before.rows > 0; ++i) panel.finish(before);
    }
  }
  while (before.rows > 0) panel.finish(before);
  constexpr Index stride = W * kTileBytes;
  std::uint32_t* second = to + (lower.row - upper.row) * W * kTileCols;
  store_tile_at<0>(to, stride);
  if constexpr (W == 2) store_tile_at<1>(to + kTileCols, stride);
  if constexpr (R == 2) store_tile_at<2>(second, stride);
  if constexpr (R == 2 && W == 2) store_tile_at<3>(second + kTileCols, stride);
}

// Multiplies all rows of a block by a panel.
template <int W, class Panel>
[[gnu::noinline]] void multiply_and_finish(const GemmBlock<Quads>& block, const TileGrid& grid,
                                           const Columns<Quads>& columns, NextPanel next_panel) {
  constexpr Index kSize = 2 * kTileRows * W * kTileCols;
  alignas(64) std::uint32_t sums[2 * kSize + 1];  // a vector may be loaded from the second element on
  const Panel panel(block, columns);
  Sums before;
  Index next = 0, row = 0;
  const Index tiles = block.rows / grid.line_rows * grid.tiles_of_line;
  for (Index tile = 0; tile < tiles; tile += 2) {
    const TileStart upper = start_of(grid, tile);
    std::uint32_t* to = sums + next;
    next = kSize - next;
    Index end = upper.row + grid.rows;
    if (tile + 1 < tiles) {
      const TileStart lower = start_of(grid, tile + 1);
      tiles_of_rows<2, W>(block, grid, upper, lower, columns, panel, next_panel, before, to);
      end = lower.row + grid.rows;
    } else {
      tiles_of_rows<1, W>(block, grid, upper, upper, columns, panel, next_panel, before, to);
    }
    before = {to + (row - upper.row) * W * kTileCols, row, end - row};
    row = end;
  }
  while (before.rows > 0) panel.finish(before);
}

template <int W>
void multiply_panel(const GemmBlock<Quads>& block, const TileGrid& grid, const Columns<Quads>& columns,
                    const NextPanel& next) {
  const auto finish_by = [&]<class Panel>() { multiply_and_finish<W, Panel>(block, grid, columns, next); };
  if (block.rescale == nullptr || block.accumulate) return finish_by.template operator()<FinishedPanel<W>>();
  const bool high = block.rescale->high_halves;
  if (block.bytes == nullptr) {
    if (high) return finish_by.template operator()<WidePanel<W, RescaleWay::kHigh>>();
    if (block.rescale->double_round)
      return finish_by.template operator()<WidePanel<W, RescaleWay::kDouble>>();
    return finish_by.template operator()<WidePanel<W, RescaleWay::kSingle>>();
  }
  if (!high) return finish_by.template operator()<FinishedPanel<W>>();
  if (block.row_bias != nullptr) return finish_by.template operator()<RescaledPanel<W, true>>();
  finish_by.template operator()<RescaledPanel<W, false>>();
}

// True if tiles take less time than the vectors of tiles.h, which do not have to be configured and keep sums
// in registers.
[[gnu::always_inline]] inline bool is_worth_tiles(Index rows, Index depth) {
  constexpr Index kFewRows = 3, kSmallDepth = 16, kSmallSize = 1024;
  return rows >= kFewRows && depth > kSmallDepth && rows * depth >= kSmallSize;
}

void multiply_by_tiles(const GemmBlock<Quads>& block) {
  constexpr Index kPanel = 2 * kTileCols, kQuad = Arithmetic<Quads>::kStep;
  if (block.runs == nullptr && !is_worth_tiles(block.rows, block.depth)) return multiply<Quads>(block);
  const Run<Quads> whole{block.a, block.depth};
  TileGrid grid;
  grid.runs = block.runs == nullptr ? &whole : block.runs;
  grid.num_runs = block.runs == nullptr ? 1 : block.num_runs;
  grid.line_rows = block.runs == nullptr ? block.rows : block.line_rows;
  grid.line_stride = block.line_stride;
  grid.a_stride = block.a_stride;
  grid.tiles_of_line = (grid.line_rows + kTileRows - 1) / kTileRows;
  grid.rows = (grid.line_rows + grid.tiles_of_line - 1) / grid.tiles_of_line;
  const Index run_depth = whole_steps<Quads>(grid.runs->depth), rest = run_depth % kTileBytes;
  grid.whole_depth = run_depth - rest;
  grid.rest = rest;
  const Index depth = grid.num_runs * run_depth;
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    if (i >= 6 && rest == 0) break;
    shapes.row_bytes[i] = static_cast<std::uint16_t>(i == 6 ? rest : kTileBytes);
    shapes.rows[i] = static_cast<std::uint8_t>(i == 5 ? kTileRows : i == 7 ? rest / kQuad : grid.rows);
  }
  configure_tiles(shapes);
  const Index pairs_of_tiles = (block.rows / grid.line_rows * grid.tiles_of_line + 1) / 2;
  const Index steps = std::max<Index>(1, pairs_of_tiles * grid.num_runs * (grid.whole_depth / kTileBytes));
  for (Index col = 0; col < block.cols; col += kPanel) {
    const Index left = block.cols - col, width = width_of<Quads>(left);
    const Columns<Quads> columns{col, left < width ? left : width, block.b + col * depth};
    const Index behind = left - width, next_width = width_of<Quads>(behind);
    const NextPanel next =
        behind > 0 ? NextPanel(columns.panel + width * depth, next_width * depth, steps)
                   : NextPanel(block.fetched, std::min(block.fetched_bytes, width * depth), steps);
    (width == kPanel ? multiply_panel<2> : multiply_panel<1>)(block, grid, columns, next);
  }
  release_tiles();
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
