// gemm: matrix products of any size, cut into the blocks that isa/gemm.h multiplies.
//
//   for each block of rows:
//     for each block of depth:
//       gather the rows of A in this block (if they cannot be read in place)
//       for each block of columns: multiply
//     call `take` with the finished rows (if it is set)
//
// Several threads compute one product: each computes bands of rows, bands of columns, or blocks of both
// (GemmGrid).
//
// A block of A and the block of B that it is multiplied with stay in the second-level cache.
#pragma once

#include <algorithm>
#include <array>
#include <functional>

#include "tosaic/kernels/gemm/bands.h"
#include "tosaic/kernels/gemm/forms.h"
#include "tosaic/kernels/parallel.h"

namespace tosaic::kernels {

// A function that is called with finished rows [row, row + count) of C, which are dense.
template <class T>
using TakeRows = std::function<void(std::int64_t row, std::int64_t count, const Sum<T>* sums)>;

template <class T>
struct GemmProblem {
  std::int64_t rows = 0, cols = 0;
  std::int64_t first_row = 0;    // the rows before it are not computed
  const Source<T>* a = nullptr;  // the rows of A; null: the rows are `patches`
  std::int64_t a_stride = 0;
  bool copies_rows = !kReadsInPlace<T>;  // rows are first gathered in `gathered`
  Factor<T> zero_point = 0;              // of A; for quads, `column_bias` includes column_terms()
  Factor<T> right_zero_point = 0;        // of B; only for quads
  const Patches<T>* patches = nullptr;
  const Factor<T>* b =
      nullptr;         // packed as `bands`, of which columns [first_col, first_col + cols) are multiplied
  Excess excess = {};  // of the packed columns, band by band; only for CappedQuads
  Bands<T> bands;
  std::int64_t first_col = 0;
  Sum<T>* c = nullptr;
  std::int64_t c_stride = 0;
  const Sum<T>* column_bias = nullptr;
  bool clamp = false;  // clamps the result to [low, high]
  Sum<T> low = 0, high = 0;
  Factor<T>* gathered = nullptr;      // scratch of gather_elements(); used for patches and copies_rows
  const TakeRows<T>* take = nullptr;  // not null: c is scratch for one block of rows, and c_stride is cols
  // Not null: the sums are rescaled, and `take` is null.
  //   `bytes` not null: to i8. The results go to `bytes`, with rows that are bytes_stride apart. C is scratch
  //                     for one block of rows, or null if there is one block of depth.
  //   `bytes` null: to i32. The results go to C.
  const RescaleTables<std::int32_t>* rescale = nullptr;
  std::int8_t* bytes = nullptr;
  std::int64_t bytes_stride = 0;
  // If not null, the sums are rescaled to `words` in place of C. Entry 0 of the tables belongs to column 0.
  // Only for WidePairs, and if there is one band.
  const WordTables* rescale_words = nullptr;
  std::int16_t* words = nullptr;
  std::int64_t words_stride = 0;
};

struct GemmBlocking {
  std::int64_t rows = 1, cols = 1, depth = 1, gathered_stride = 1;
  std::int64_t spare = 0;  // elements after the gathered ones for GemmBlock::spare
  // Gathering may write a vector beyond the last element.
  [[nodiscard]] std::int64_t gathered_elements() const { return rows * gathered_stride + 64; }
  [[nodiscard]] std::int64_t gather_elements() const { return gathered_elements() + spare; }
};

// True if rows that are `stride` elements apart fall into only few cache sets. Such a matrix is copied, not
// read in place.
template <class T>
[[nodiscard]] bool rows_collide(std::int64_t stride) {
  return stride * kFactorBytes<T> % 4096 == 0;
}

// The row stride for rows of `depth` elements: at least `depth`, and an odd number of cache lines, so that
// rows spread over all cache sets.
template <class T>
[[nodiscard]] std::int64_t spread_stride(std::int64_t depth) {
  constexpr std::int64_t line = 64 / kFactorBytes<T>;
  return (ceil_div(std::max<std::int64_t>(depth, 1), line) | 1) * line;
}

// Where the sums of a problem go: to the result, to `take`, or rescaled to the result.
enum class SumsTo : std::uint8_t { kResult, kTake, kRescale };

// A block of C that is scratch memory has at most c_bytes.
template <class T>
[[nodiscard]] GemmBlocking gemm_blocking(const GemmKernels<T>& kernels, std::int64_t rows,
                                         const Bands<T>& bands, SumsTo to = SumsTo::kResult) {
  constexpr std::int64_t b_bytes = 256 * 1024, c_bytes = 256 * 1024;
  GemmBlocking blocking;
  const std::int64_t cols = bands.cols;
  blocking.depth = bands.band;
  std::int64_t max_tiles = 16;
  if (to == SumsTo::kTake || (to == SumsTo::kRescale && blocking.depth < bands.depth)) {
    const std::int64_t tile_bytes =
        kernels.max_rows * std::max<std::int64_t>(cols, 1) * static_cast<std::int64_t>(sizeof(Sum<T>));
    max_tiles = std::clamp<std::int64_t>(c_bytes / tile_bytes, 1, max_tiles);
  }
  if (!kReadsInPlace<T>) {  // the depth of a block may be large
    const std::int64_t row_bytes = blocking.depth * kFactorBytes<T>;
    max_tiles = std::clamp<std::int64_t>(kernels.a_bytes / (kernels.max_rows * row_bytes), 1, max_tiles);
  }
  const std::int64_t tiles = std::max<std::int64_t>(1, ceil_div(rows, kernels.max_rows));
  blocking.rows = std::min(std::max<std::int64_t>(rows, 1),
                           kernels.max_rows * ceil_div(tiles, ceil_div(tiles, max_tiles)));
  const std::int64_t panel_bytes = blocking.depth * kernels.panel * kFactorBytes<T>;
  blocking.cols = std::min(ceil_div(std::max<std::int64_t>(cols, 1), kernels.panel) * kernels.panel,
                           std::max<std::int64_t>(1, b_bytes / panel_bytes) * kernels.panel);
  blocking.gathered_stride = spread_stride<T>(blocking.depth);
  if constexpr (kIsCapped<T>) blocking.spare = spare_bytes(blocking.rows, blocking.depth);
  return blocking;
}

// How a product is cut into parts for threads: C is cut into `row_parts` bands of rows, and each band into
// `col_parts` blocks of columns.
struct GemmGrid {
  std::int64_t row_parts = 1, col_parts = 1;
};

// The grid that takes the least time by this estimate of the time of a part: multiplying whole tiles, reading
// its rows of A (and writing them, if they are gathered) and its columns of B.
//
// The estimate supposes that the kernel before has computed A in bands of rows, one for each thread. Then a
// core has the rows of its thread's band in its cache, and gets all other rows from other cores. A thread
// that computes a block of columns reads all rows.
template <class T>
[[nodiscard]] GemmGrid gemm_grid(const GemmKernels<T>& kernels, std::int64_t rows, std::int64_t cols,
                                 std::int64_t depth, const Threads& threads) {
  constexpr double kRead = 0.03 * kFactorBytes<T>;        // an element of A or B from the shared cache
  constexpr double kExchange = 0.06 * sizeof(Source<T>);  // an element of A from the cache of another core
  constexpr double kPart = 800;                           // calling a thread, once for each part
  constexpr double kTileRows = 3;                         // loading B for a tile takes as long as 3 rows of A
  constexpr double kIdle = 0.08;                          // of a part's time: waiting for the last thread
  if (threads.count == 1 || rows == 0 || cols == 0) return {};
  const std::int64_t tiles = ceil_div(rows, kernels.max_rows), panels = ceil_div(cols, kernels.panel);
  const std::int64_t count = threads.count, most = count * kPartsPerThread;
  GemmGrid best;
  double least = 0;
  for (std::int64_t i = 1; i <= std::min(tiles, most); ++i)
    for (std::int64_t j = 1; j <= std::min(panels, most / i); ++j) {
      const std::int64_t band = ceil_div(rows, i);
      const double part_rows =
          static_cast<double>(band) + kTileRows * static_cast<double>(ceil_div(band, kernels.max_rows));
      const auto part_cols = static_cast<double>(ceil_div(panels, j) * kernels.panel);
      const double part = static_cast<double>(depth) *
                          (part_rows * part_cols * kernels.multiply_add + (part_rows + part_cols) * kRead);
      const auto foreign =
          static_cast<double>(rows * depth * (count - std::min(i, count))) / static_cast<double>(count);
      const double time = i * j == 1 ? part
                                     : static_cast<double>(ceil_div(i * j, count)) * (part + kPart) +
                                           kIdle * part + foreign * kExchange;
      const bool is_first = i * j == 1 || (threads.share_all && best.row_parts * best.col_parts == 1);
      if (is_first || time < least) {
        least = time;
        best = {i, j};
      }
    }
  return best;
}

struct GemmPart {
  std::int64_t first_row, end_row, first_col, end_col;
};

// Calls work(GemmPart, worker) for each part of C[rows x cols]. Parts begin at whole panels.
template <class T, class F>
void for_each_part(Team* team, const GemmKernels<T>& kernels, const GemmGrid& grid, std::int64_t rows,
                   std::int64_t cols, F&& work) {
  if (team == nullptr || grid.row_parts * grid.col_parts == 1)
    return work(GemmPart{0, rows, 0, cols}, Worker{0});
  const std::int64_t panels = ceil_div(cols, kernels.panel);
  team->run(static_cast<std::uint32_t>(grid.row_parts * grid.col_parts),
            [&](std::uint32_t part, Worker worker) {
              const std::int64_t i = part / grid.col_parts, j = part % grid.col_parts;
              work(GemmPart{rows * i / grid.row_parts, rows * (i + 1) / grid.row_parts,
                            panels * j / grid.col_parts * kernels.panel,
                            std::min(panels * (j + 1) / grid.col_parts * kernels.panel, cols)},
                   worker);
            });
}

template <class T>
void gather_block(const GemmKernels<T>& kernels, const GemmBlocking& blocking, const GemmProblem<T>& problem,
                  std::int64_t row, std::int64_t from, const GemmBlock<T>& block) {
  if (problem.a == nullptr)
    kernels.gather(*problem.patches, row, block.rows, from, from + block.depth, problem.gathered,
                   blocking.gathered_stride);
  else
    kernels.gather_rows(problem.a + row * problem.a_stride + from, problem.a_stride, problem.zero_point,
                        block.rows, block.depth, problem.gathered, blocking.gathered_stride);
}

// Writes the sum of each column of a packed operand. The sum does not contain the excess that capping took
// off the operand.
template <class T>
void column_sums(const GemmKernels<T>& kernels, const Bands<T>& bands, const Factor<T>* packed,
                 Sum<T>* sums) {
  const std::vector<Factor<T>> ones(static_cast<std::size_t>(whole_steps<T>(bands.band)), 1);
  GemmBlock<T> block;
  block.rows = 1;
  block.cols = bands.cols;
  block.a = ones.data();
  block.c = sums;
  std::fill_n(sums, bands.cols, Sum<T>{});
  block.accumulate = true;
  for (std::int64_t from = 0; from < bands.depth; from += bands.band) {
    block.depth = bands.depth_at(from);
    block.b = packed + bands.offset(from, 0);
    kernels.multiply(block);
  }
}

// Adds the excess of each column.
inline void add_excess(const Bands<CappedQuads>& bands, const Excess& excess, Sum<CappedQuads>* sums) {
  const std::uint32_t* rounds = excess.rounds;
  if (rounds == nullptr) return;
  for (std::int64_t from = 0; from < bands.depth; from += bands.band)
    for (std::int64_t col = 0; col < bands.padded_cols; col += bands.panel, ++rounds)
      for (std::uint32_t at = excess.begin[rounds[0]]; at < excess.begin[rounds[1]]; ++at) {
        const ExcessTerm& term = excess.terms[at];
        sums[col + term.column / ExcessTerm::kPairBytes] +=
            static_cast<Sum<CappedQuads>>(std::int32_t{term.factors[0]} + term.factors[1]);
      }
}

// The terms that are to be added to the sums of quads because of the zero point of A: one per column of a
// packed operand.
template <class T>
void column_terms(const GemmKernels<T>& kernels, const Bands<T>& bands, const Factor<T>* packed,
                  [[maybe_unused]] const Excess& excess, Factor<T> zero_point, Sum<T>* terms) {
  column_sums(kernels, bands, packed, terms);
  if constexpr (kIsCapped<T>) add_excess(bands, excess, terms);
  const auto by = static_cast<Sum<T>>(-(kZeroPointOffset<T> + std::int32_t{zero_point}));
  for (std::int64_t j = 0; j < bands.cols; ++j) terms[j] *= by;
}

// The largest number of rows that a block has with any instruction set.
inline constexpr std::size_t kMostBlockRows = 256;

// Writes the terms of the rows that are to be added because of the zero point of B.
template <class T>
void row_terms(const GemmKernels<T>& kernels, const GemmProblem<T>& problem, const GemmBlock<T>& block,
               std::array<Sum<T>, kMostBlockRows>& terms) {
  kernels.row_sums(block.a, block.a_stride, block.rows, block.depth, terms.data());
  const auto nothing =
      static_cast<Sum<T>>(block.depth * (kZeroPointOffset<T> + std::int32_t{problem.zero_point}));
  const auto by = static_cast<Sum<T>>(-std::int32_t{problem.right_zero_point});
  for (std::int64_t i = 0; i < block.rows; ++i) terms[i] = (terms[i] - nothing) * by;
}

// Sets what all blocks of the band that begins at `from` have in common.
template <class T>
void set_band(GemmBlock<T>& block, const GemmProblem<T>& problem, std::int64_t from) {
  block.depth = problem.bands.depth_at(from);
  block.accumulate = from > 0;
  block.clamp = problem.clamp && from + block.depth == problem.bands.depth;
  block.low = problem.low;
  block.high = problem.high;
}

// Sets the columns of a block from `col` on: their number, B and the biases.
template <class T>
void set_columns(GemmBlock<T>& block, const GemmBlocking& blocking, const GemmProblem<T>& problem,
                 std::int64_t from, std::int64_t col) {
  block.cols = std::min(blocking.cols, problem.cols - col);
  block.b = problem.b + problem.bands.offset(from, problem.first_col + col);
  if constexpr (kIsCapped<T>) {
    block.excess = problem.excess;
    if (block.excess.rounds != nullptr)
      block.excess.rounds +=
          (from / problem.bands.band * problem.bands.padded_cols + problem.first_col + col) /
          problem.bands.panel;
    block.same_rows = col > 0;
  }
  block.column_bias = problem.column_bias == nullptr || from > 0 ? nullptr : problem.column_bias + col;
}

// Sets which part of B the block moves into the cache: a part of the panels that are multiplied after columns
// from `col` on of the band that begins at `from`. The block is number `part` of `parts` blocks that share
// this work. Fetches nothing if all of B fits the second-level cache.
template <class T>
void fetch_next(const GemmBlocking& blocking, const GemmProblem<T>& problem, std::int64_t from,
                std::int64_t col, GemmBlock<T>& block, std::int64_t part = 0, std::int64_t parts = 1) {
  constexpr std::int64_t cache_bytes = 512 * 1024;
  const Bands<T>& bands = problem.bands;
  block.fetched = nullptr;
  col += blocking.cols;
  if (col >= problem.cols) {
    col = 0;
    from += bands.band;
  }
  if (problem.cols * bands.depth * kFactorBytes<T> <= cache_bytes || from >= bands.depth) return;
  const std::int64_t bytes =
      std::min(blocking.cols, problem.cols - col) * bands.depth_at(from) * kFactorBytes<T>;
  block.fetched = reinterpret_cast<const char*>(problem.b + bands.offset(from, problem.first_col + col)) +
                  bytes * part / parts;
  block.fetched_bytes = bytes / parts;
}

template <class T>
void multiply(const GemmKernels<T>& kernels, const GemmBlocking& blocking, const GemmProblem<T>& problem) {
  const Bands<T>& bands = problem.bands;
  const bool stages_c = problem.take != nullptr || problem.bytes != nullptr;
  const bool gathers = problem.a == nullptr || problem.copies_rows;
  [[maybe_unused]] std::array<Sum<T>, kHasQuads<T> ? kMostBlockRows : 1> terms;
  RescaleTables<std::int32_t> rescale;
  WordTables words;
  for (std::int64_t row = problem.first_row; row < problem.rows; row += blocking.rows) {
    GemmBlock<T> block;
    block.rows = std::min(blocking.rows, problem.rows - row);
    if constexpr (kIsCapped<T>)
      block.spare = reinterpret_cast<std::byte*>(problem.gathered + blocking.gathered_elements());
    block.c_stride = problem.c_stride;
    std::int64_t from = 0;
    do {
      set_band(block, problem, from);
      block.a = problem.gathered;
      block.a_stride = blocking.gathered_stride;
      if constexpr (kReadsInPlace<T>) {
        if (!gathers) {
          block.a = problem.a + row * problem.a_stride + from;
          block.a_stride = problem.a_stride;
        }
      }
      if (gathers && block.depth > 0) gather_block(kernels, blocking, problem, row, from, block);
      if constexpr (kHasQuads<T>) {
        if (problem.right_zero_point != 0) {
          row_terms(kernels, problem, block, terms);
          block.row_bias = terms.data();
        }
      }
      const bool is_last = from + blocking.depth >= bands.depth;
      for (std::int64_t col = 0; col < problem.cols; col += blocking.cols) {
        set_columns(block, blocking, problem, from, col);
        if (problem.c != nullptr) block.c = problem.c + (stages_c ? 0 : row * problem.c_stride) + col;
        if (problem.rescale != nullptr && is_last) {
          rescale = problem.rescale->at(col);
          block.rescale = &rescale;
          if (problem.bytes != nullptr) block.bytes = problem.bytes + row * problem.bytes_stride + col;
          block.bytes_stride = problem.bytes_stride;
        }
        if (problem.rescale_words != nullptr) {
          words = problem.rescale_words->at(col);
          block.rescale_words = &words;
          block.words = problem.words + row * problem.words_stride + col;
          block.words_stride = problem.words_stride;
        }
        if constexpr (kFetches<T>) fetch_next(blocking, problem, from, col, block);
        kernels.multiply(block);
      }
      from += blocking.depth;
    } while (from < bands.depth);
    if (problem.take != nullptr) (*problem.take)(row, block.rows, problem.c);
  }
}

}  // namespace tosaic::kernels
