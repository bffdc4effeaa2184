// Matrix products of floats: how B is packed into panels. Defines the GemmKernels of floats and pairs.
#include "tosaic/kernels/isa/gemm.h"

#include "tosaic/kernels/isa/gather.h"
#include "tosaic/kernels/isa/pairs.h"
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
  pack_panels<T>(depth, cols, panels, [=](Index j, Index valid, Index width, T* to) {
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
  pack_panels<T>(depth, cols, panels, [=](Index j, Index valid, Index width, T* to) {
    transpose(b + j * stride, stride, valid, depth, to, width);
    if (valid < width)
      for (Index k = 0; k < depth; ++k) zero(to + k * width + valid, width - valid);
  });
}

template <class T>
constexpr GemmKernels<T> kernels() {
  return {.max_rows = kRows,
          .panel = 2 * kLanes<T>,
          .lanes = kLanes<T>,
          .multiply_add = multiply_add_time<T>(),
          .multiply = multiply<T>,
          .gather = gather<T>,
          .gather_rows = gather_rows<T>,
          .pack = pack<T>,
          .pack_transposed = pack_transposed<T>};
}

}  // namespace

extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
const GemmKernels<float> kGemmF32 = kernels<float>();
const GemmKernels<double> kGemmF64 = kernels<double>();
extern const GemmKernels<Pairs> kGemmPairs;
const GemmKernels<Pairs> kGemmPairs = pair_kernels<Pairs>();
extern const GemmKernels<WidePairs> kGemmWidePairs;
const GemmKernels<WidePairs> kGemmWidePairs = pair_kernels<WidePairs>();

}  // namespace tosaic::kernels::TOSAIC_ISA
