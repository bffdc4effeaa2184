// The loops of matrix products work on register tiles: up to kRows x 2 vectors of C stay in registers during
// the loop over depth. Each step loads two vectors of B and broadcasts one element of every row of A. The
// rows of a block are spread evenly over its tiles, so a tile has few rows only if the block has few.
#include "tosaic/kernels/isa/gemm.h"

#include "tosaic/kernels/isa/multiply.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;

#if defined(__AVX512F__)
constexpr int kRows = 14;
#else
constexpr int kRows = 6;
#endif

// ---- tiles ----

template <class T>
struct Columns {
  Index first;  // first column of the tile, in the block
  Index valid;  // columns of C that exist, at most the width of the tile
  const T* panel;
};

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
  if (block.column_bias != nullptr) {
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) {
      const Vector<Sum<T>> bias = load(block.column_bias + column + j * lanes);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) sum[i][j] += bias;
    }
  }
  if (block.row_bias != nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) sum[i][j] += block.row_bias[row + i];
  }
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

// Does the same as the function above for a tile of which only the first `valid` columns are in C.
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
      if (block.column_bias != nullptr) sum += load_first(block.column_bias + column + j, count);
      if (block.row_bias != nullptr) sum += block.row_bias[row + i];
      if (block.clamp) sum = clamp<Sum<T>>(sum, broadcast(block.low), broadcast(block.high));
      store_first(to, sum, count);
    }
  }
}

// Computes a tile of R rows by W vectors.
template <class T, int R, int W>
void tile(const GemmBlock<T>& block, Index row, const Columns<T>& columns) {
  constexpr Index lanes = kLanes<Sum<T>>;
  Vector<Sum<T>> sum[R][W] = {};
  const Index stride = block.a_stride;
  const T* a[(R + 3) / 4];  // pointers to every fourth row; addressing modes reach the others
#pragma GCC unroll 4
  for (int i = 0; i < R; i += 4) a[i / 4] = block.a + (row + i) * stride;
  const T* b = columns.panel;
  for (Index k = 0; k < block.depth; k += Arithmetic<T>::kStep) {
    Vector<T> right[W];
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) right[j] = load(b + j * kLanes<T>);
    b += W * kLanes<T>;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const auto left = left_at(a[i / 4] + (i % 4) * stride + k);
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) add_product(sum[i][j], right[j], left);
    }
  }
  Sum<T>* c = block.c + row * block.c_stride + columns.first;
  if (columns.valid == W * lanes) {
    finish<T, R, W>(block, sum, c, row, columns.first);
    return;
  }
  Sum<T> sums[R][W * lanes];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) store(&sums[i][j * lanes], sum[i][j]);
  finish_partly(block, &sums[0][0], W * lanes, c, row, R, columns.first, columns.valid);
}

template <class T>
using Tile = void (*)(const GemmBlock<T>&, Index, const Columns<T>&);

template <class T, int W, int... R>
struct Tiles {
  static constexpr Tile<T> kByRows[] = {tile<T, R, W>...};
};
#if defined(__AVX512F__)
template <class T, int W>
using AllTiles = Tiles<T, W, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
#else
template <class T, int W>
using AllTiles = Tiles<T, W, 1, 2, 3, 4, 5, 6>;
#endif

// Multiplies one row by four whole panels in one loop: its eight independent sums hide the latency of
// additions.
template <class T>
void row_times_panels(const GemmBlock<T>& block, Index first_panel) {
  constexpr Index lanes = kLanes<Sum<T>>;
  constexpr int kPanels = 4;
  Vector<Sum<T>> sum[kPanels][2] = {};
  const Index panel_size = block.panel_depth * 2 * lanes;
  const T* b = block.b + first_panel * panel_size + block.first_depth * 2 * lanes;
  for (Index k = 0; k < block.depth; k += Arithmetic<T>::kStep) {
    const auto left = left_at(block.a + k);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      add_product(sum[p][0], load(b + p * panel_size), left);
      add_product(sum[p][1], load(b + p * panel_size + kLanes<T>), left);
    }
    b += 2 * kLanes<T>;
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    const Index column = (first_panel + p) * 2 * lanes;
    Vector<Sum<T>> sums[1][2] = {{sum[p][0], sum[p][1]}};
    finish<T, 1, 2>(block, sums, block.c + column, 0, column);
  }
}

// The width of a panel when `columns_left` columns are left.
template <class T>
constexpr Index width_of(Index columns_left) {
  return columns_left <= kLanes<Sum<T>> ? kLanes<Sum<T>> : 2 * kLanes<Sum<T>>;
}

template <class T>
void multiply(const GemmBlock<T>& block) {
  constexpr Index lanes = kLanes<Sum<T>>;
  constexpr Index panel = 2 * lanes;
  const Index whole_panels = block.cols / panel;
  const Index tiles = (block.rows + kRows - 1) / kRows;
  Index row = 0;
  for (Index t = 0; t < tiles; ++t) {
    const Index rows = (block.rows - row + (tiles - t) - 1) / (tiles - t);
    Index p = 0;
    if (block.rows == 1)
      for (; p + 4 <= whole_panels; p += 4) row_times_panels(block, p);
    for (; p * panel < block.cols; ++p) {
      const Index left = block.cols - p * panel;
      const Index width = width_of<T>(left);
      const Columns<T> columns{p * panel, left < width ? left : width,
                               block.b + p * panel * block.panel_depth + block.first_depth * width};
      const Tile<T>* by_rows = width == lanes ? AllTiles<T, 1>::kByRows : AllTiles<T, 2>::kByRows;
      by_rows[rows - 1](block, row, columns);
    }
    row += rows;
  }
}

// ---- rows of A ----

template <class T>
[[gnu::always_inline]] inline void copy_less(T* to, const T* from, T, Index count) {
  copy(to, from, count);
}

// Widens kCount elements at a time. `count` is at least kCount. If it is no multiple of kCount, the last
// vector overlaps the one before.
template <Index kCount>
[[gnu::always_inline]] inline void widen_by(std::int16_t* to, const std::int8_t* from,
                                            std::int16_t zero_point, Index count) {
  for (Index i = 0; i < count; i += kCount) {
    const Index at = i + kCount <= count ? i : count - kCount;
    const auto wide = Widened<std::int8_t, std::int16_t, kCount>::load(from + at) - zero_point;
    __builtin_memcpy(to + at, &wide, sizeof wide);
  }
}

[[gnu::always_inline]] inline void copy_less(std::int16_t* to, const std::int8_t* from,
                                             std::int16_t zero_point, Index count) {
  constexpr Index lanes = kLanes<std::int16_t>;
  if (count >= lanes) return widen_by<lanes>(to, from, zero_point, count);
  if (count >= 8) return widen_by<8>(to, from, zero_point, count);
  for (Index i = 0; i < count; ++i) to[i] = static_cast<std::int16_t>(from[i] - zero_point);
}

template <class T>
[[gnu::always_inline]] inline void finish_step(T* row, Index depth) {
  zero(row + depth, whole_steps<T>(depth) - depth);
}

template <class T>
void gather_rows(const Source<T>* from, Index stride, T zero_point, Index rows, Index depth, T* dst,
                 Index dst_stride) {
  for (Index i = 0; i < rows; ++i) {
    copy_less(dst + i * dst_stride, from + i * stride, zero_point, depth);
    finish_step(dst + i * dst_stride, depth);
  }
}

// Gathers elements [from, to) of one row of taps along w, which has taps * channels elements.
template <class T>
[[gnu::always_inline]] inline void gather_run(const Patches<T>& patches, const Source<T>* line,
                                              Index position, Index from, Index to, T* dst) {
  const Index channels = patches.channels;
  if (patches.row_is_contiguous) {
    const Index first = position + patches.offset[2][0];
    const Index below = first < 0 ? -first * channels : 0;
    const Index space = (patches.in[2] - first) * channels;
    const Index begin = below > from ? (below < to ? below : to) : from;
    const Index last = space < to ? space : to;
    const Index end = last > begin ? last : begin;
    zero(dst, begin - from);
    copy_less(dst + (begin - from), line + first * channels + begin, patches.zero_point, end - begin);
    zero(dst + (end - from), to - end);
    return;
  }
  while (from < to) {
    const Index tap = from / channels;
    const Index channel = from - tap * channels;
    const Index count = channels - channel < to - from ? channels - channel : to - from;
    const Index at = position + patches.offset[2][tap];
    if (at < 0 || at >= patches.in[2])
      zero(dst, count);
    else
      copy_less(dst, line + at * patches.stride[2] + channel, patches.zero_point, count);
    dst += count;
    from += count;
  }
}

template <class T>
void gather_row(const Patches<T>& patches, const Source<T>* image, const Index* position, Index from,
                Index to, T* dst) {
  const Index run = patches.taps[2] * patches.channels;
  for (Index segment = from / run; segment * run < to; ++segment) {
    const Index begin = from > segment * run ? from - segment * run : 0;
    const Index end = to - segment * run < run ? to - segment * run : run;
    const Index d = position[0] + patches.offset[0][segment / patches.taps[1]];
    const Index h = position[1] + patches.offset[1][segment % patches.taps[1]];
    if (d < 0 || d >= patches.in[0] || h < 0 || h >= patches.in[1])
      zero(dst, end - begin);
    else
      gather_run(patches, image + d * patches.stride[0] + h * patches.stride[1], position[2], begin, end,
                 dst);
    dst += end - begin;
  }
}

template <class T>
void gather(const Patches<T>& patches, Index row, Index rows, Index from, Index to, T* dst,
            Index dst_stride) {
  const Index* out = patches.out;
  Index at[3] = {row / (out[2] * out[1]) % out[0], row / out[2] % out[1], row % out[2]};
  Index batch = row / (out[2] * out[1] * out[0]);
  for (Index i = 0; i < rows; ++i) {
    const Index position[3] = {at[0] * patches.step[0], at[1] * patches.step[1], at[2] * patches.step[2]};
    gather_row(patches, patches.input + batch * patches.batch_stride, position, from, to,
               dst + i * dst_stride);
    finish_step(dst + i * dst_stride, to - from);
    if (++at[2] < out[2]) continue;
    at[2] = 0;
    if (++at[1] < out[1]) continue;
    at[1] = 0;
    if (++at[0] < out[0]) continue;
    at[0] = 0;
    ++batch;
  }
}

#if TOSAIC_VECTOR_BYTES == 64
[[gnu::always_inline]] inline Vector<float> low_halves(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
[[gnu::always_inline]] inline Vector<float> high_halves(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
[[gnu::always_inline]] inline Vector<double> low_halves(Vector<double> a, Vector<double> b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
[[gnu::always_inline]] inline Vector<double> high_halves(Vector<double> a, Vector<double> b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#elif TOSAIC_VECTOR_BYTES == 32
[[gnu::always_inline]] inline Vector<float> low_halves(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
[[gnu::always_inline]] inline Vector<float> high_halves(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
[[gnu::always_inline]] inline Vector<double> low_halves(Vector<double> a, Vector<double> b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
[[gnu::always_inline]] inline Vector<double> high_halves(Vector<double> a, Vector<double> b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
#else
[[gnu::always_inline]] inline Vector<float> low_halves(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
[[gnu::always_inline]] inline Vector<float> high_halves(Vector<float> a, Vector<float> b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
[[gnu::always_inline]] inline Vector<double> low_halves(Vector<double> a, Vector<double> b) {
  return __builtin_shufflevector(a, b, 0, 2);
}
[[gnu::always_inline]] inline Vector<double> high_halves(Vector<double> a, Vector<double> b) {
  return __builtin_shufflevector(a, b, 1, 3);
}
#endif

// Transposes a square of lanes x lanes elements. Each of log2(lanes) rounds interleaves the upper half of the
// rows with the lower half.
template <class T>
[[gnu::always_inline]] inline void transpose_square(const T* from, Index from_stride, T* to,
                                                    Index to_stride) {
  constexpr int lanes = kLanes<T>;
  Vector<T> row[lanes];
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) row[i] = load(from + i * from_stride);
#pragma GCC unroll 4
  for (int step = 1; step < lanes; step *= 2) {
    Vector<T> next[lanes];
#pragma GCC unroll 8
    for (int i = 0; i < lanes / 2; ++i) {
      next[2 * i] = low_halves(row[i], row[i + lanes / 2]);
      next[2 * i + 1] = high_halves(row[i], row[i + lanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) row[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) store(to + i * to_stride, row[i]);
}

template <class T>
void transpose(const T* from, Index from_stride, Index rows, Index cols, T* to, Index to_stride) {
  constexpr Index lanes = kLanes<T>;
  const Index whole_rows = rows - rows % lanes;
  const Index whole_cols = cols - cols % lanes;
  for (Index j = 0; j < whole_cols; j += lanes)
    for (Index i = 0; i < whole_rows; i += lanes)
      transpose_square(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
  for (Index i = 0; i < whole_rows; ++i)
    for (Index j = whole_cols; j < cols; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  for (Index i = whole_rows; i < rows; ++i)
    for (Index j = 0; j < cols; ++j) to[j * to_stride + i] = from[i * from_stride + j];
}

// Calls pack_panel(j, valid, width, panel) for each panel. The panel holds columns [j, j + valid) of B, and
// zeros up to its width.
template <class T, class F>
[[gnu::always_inline]] inline void pack_panels(Index depth, Index cols, T* panels, F pack_panel) {
  for (Index j = 0; j < cols; j += 2 * kLanes<Sum<T>>) {
    const Index width = width_of<T>(cols - j);
    const Index valid = cols - j < width ? cols - j : width;
    pack_panel(j, valid, width, panels + j * whole_steps<T>(depth));
  }
}

template <class T>
void pack(const T* b, Index stride, Index depth, Index cols, T* panels) {
  pack_panels(depth, cols, panels, [=](Index j, Index valid, Index width, T* to) {
    constexpr Index panel = 2 * kLanes<T>;
    if (valid == panel) {
      for (Index k = 0; k < depth; ++k) {
        store(to + k * panel, load(b + k * stride + j));
        store(to + k * panel + kLanes<T>, load(b + k * stride + j + kLanes<T>));
      }
      return;
    }
    for (Index k = 0; k < depth; ++k) {
      copy(to + k * width, b + k * stride + j, valid);
      zero(to + k * width + valid, width - valid);
    }
  });
}

template <class T>
void pack_transposed(const T* b, Index stride, Index depth, Index cols, T* panels) {
  pack_panels(depth, cols, panels, [=](Index j, Index valid, Index width, T* to) {
    transpose(b + j * stride, stride, valid, depth, to, width);
    if (valid < width)
      for (Index k = 0; k < depth; ++k) zero(to + k * width + valid, width - valid);
  });
}

// Packs one step of depth: columns [0, valid) of two rows of B. `second` is null if the depth ends before it.
[[gnu::always_inline]] inline void pack_step(const std::int16_t* first, const std::int16_t* second,
                                             Index column_stride, Index valid, Index width,
                                             std::int16_t* pairs) {
  if (second != nullptr && column_stride == 1)
    for (Index i = 0; i < valid; ++i) {
      pairs[2 * i] = first[i];
      pairs[2 * i + 1] = second[i];
    }
  else
    for (Index i = 0; i < valid; ++i) {
      pairs[2 * i] = first[i * column_stride];
      pairs[2 * i + 1] = second == nullptr ? std::int16_t{0} : second[i * column_stride];
    }
  zero(pairs + 2 * valid, 2 * (width - valid));
}

// Element (k, j) of B is at b[k * depth_stride + j * column_stride].
[[gnu::always_inline]] inline void pack_pairs(const std::int16_t* b, Index depth_stride, Index column_stride,
                                              Index depth, Index cols, std::int16_t* panels) {
  pack_panels(depth, cols, panels, [=](Index j, Index valid, Index width, std::int16_t* to) {
    for (Index k = 0; k < depth; k += 2) {
      const std::int16_t* first = b + k * depth_stride + j * column_stride;
      pack_step(first, k + 1 < depth ? first + depth_stride : nullptr, column_stride, valid, width,
                to + k * width);
    }
  });
}

void pack_pairs_by_row(const std::int16_t* b, Index stride, Index depth, Index cols, std::int16_t* panels) {
  pack_pairs(b, stride, 1, depth, cols, panels);
}

void pack_pairs_by_column(const std::int16_t* b, Index stride, Index depth, Index cols,
                          std::int16_t* panels) {
  pack_pairs(b, 1, stride, depth, cols, panels);
}

template <class T>
constexpr GemmKernels<T> kernels() {
  return {kRows,     2 * kLanes<T>,  kLanes<T>, multiply<T>,
          gather<T>, gather_rows<T>, pack<T>,   pack_transposed<T>};
}

constexpr GemmKernels<std::int16_t> pair_kernels() {
  return {kRows,
          2 * kLanes<std::uint32_t>,
          kLanes<std::uint32_t>,
          multiply<std::int16_t>,
          gather<std::int16_t>,
          gather_rows<std::int16_t>,
          pack_pairs_by_row,
          pack_pairs_by_column};
}

}  // namespace

extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
const GemmKernels<float> kGemmF32 = kernels<float>();
const GemmKernels<double> kGemmF64 = kernels<double>();
extern const GemmKernels<std::int16_t> kGemmI16;
const GemmKernels<std::int16_t> kGemmI16 = pair_kernels();

}  // namespace tosaic::kernels::TOSAIC_ISA
