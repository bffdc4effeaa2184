// Matrix products of floats and of pairs of 16-bit integers: how B is packed into panels, and the tables.
#include "tosaic/kernels/isa/gemm.h"

#include "tosaic/kernels/isa/gather.h"
#include "tosaic/kernels/isa/tiles.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

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
  return {kRows,          2 * kLanes<T>, kLanes<T>,          multiply<T>, gather<T>,
          gather_rows<T>, pack<T>,       pack_transposed<T>, nullptr};
}

constexpr GemmKernels<std::int16_t> pair_kernels() {
  return {kRows,
          2 * kLanes<std::uint32_t>,
          kLanes<std::uint32_t>,
          multiply<std::int16_t>,
          gather<std::int16_t>,
          gather_rows<std::int16_t>,
          pack_pairs_by_row,
          pack_pairs_by_column,
          nullptr};
}

}  // namespace

extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
const GemmKernels<float> kGemmF32 = kernels<float>();
const GemmKernels<double> kGemmF64 = kernels<double>();
extern const GemmKernels<std::int16_t> kGemmI16;
const GemmKernels<std::int16_t> kGemmI16 = pair_kernels();

}  // namespace tosaic::kernels::TOSAIC_ISA
