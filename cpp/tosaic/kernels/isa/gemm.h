// Matrix products over blocks that fit the caches: what each instruction set provides to contraction kernels.
//
//   C[rows x cols] (+)= A[rows x depth] * B[depth x cols]       vectors lie along the columns
//
// A is read in place (rows `a_stride` apart, elements of a row adjacent), so a block of A is either the
// operand itself, or rows or image patches of it that were gathered. B is packed in panels of `panel`
// columns: panel p starts at p * panel * panel_depth and holds [panel_depth][width], where width is `panel`,
// or `lanes` for a last panel of at most that many columns; columns beyond the matrix are zero. Each element
// is summed in order of depth.
//
// Integers of 8 bits are multiplied as pairs of 16 bits, what the instructions for them do: gathering takes
// the zero point off and makes 16 bits of them, and a panel holds [depth / 2][width][2], where an odd depth
// is rounded up by a zero on both sides. Sums are modulo 2^32: the low bits of the exact sum, whatever its
// size.
#pragma once

#include <cstdint>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

// Of a contraction that multiplies T: the elements of its left operand, what it sums in, and how many
// elements of depth one step multiplies.
template <class T>
struct Arithmetic {
  using Source = T;
  using Sum = T;
  static constexpr std::int64_t kStep = 1;
};
template <>
struct Arithmetic<std::int16_t> {
  using Source = std::int8_t;
  using Sum = std::uint32_t;
  static constexpr std::int64_t kStep = 2;
};
template <class T>
using Source = typename Arithmetic<T>::Source;
template <class T>
using Sum = typename Arithmetic<T>::Sum;

// Whether the left operand can be multiplied where it lies.
template <class T>
inline constexpr bool kReadsInPlace = sizeof(Source<T>) == sizeof(T);

// Depth in whole steps.
template <class T>
[[nodiscard]] constexpr std::int64_t whole_steps(std::int64_t depth) {
  return (depth + Arithmetic<T>::kStep - 1) / Arithmetic<T>::kStep * Arithmetic<T>::kStep;
}

template <class T>
struct GemmBlock {
  std::int64_t rows = 0, cols = 0, depth = 0;
  const T* a = nullptr;
  std::int64_t a_stride = 0;
  const T* b = nullptr;                           // the first panel
  std::int64_t panel_depth = 0, first_depth = 0;  // the panels' depth, and where this block starts in it
  Sum<T>* c = nullptr;
  std::int64_t c_stride = 0;
  bool accumulate = false;              // add to C, else overwrite it
  const Sum<T>* column_bias = nullptr;  // added when not null: one per column
  const Sum<T>* row_bias = nullptr;     // and one per row
  bool clamp = false;  // to [low, high], after everything else; set it on the last block of depth only
  Sum<T> low = 0, high = 0;
};

// Image patches as rows of A, channels last. Row = output position (batch, d, h, w); depth = (tap d, h, w,
// channel). The input coordinate of tap t at output index o is o * step + offset[t]; outside the image it
// reads zero, inside an element less the zero point.
template <class T>
struct Patches {
  const Source<T>* input = nullptr;  // at the first channel of the group
  T zero_point = 0;
  std::int64_t batch_stride = 0;
  std::int64_t stride[3] = {};  // elements between neighbours along d, h, w
  std::int64_t in[3] = {}, out[3] = {}, step[3] = {}, taps[3] = {};
  const std::int64_t* offset[3] = {};
  std::int64_t channels = 0;
  bool row_is_contiguous = false;  // all taps of a w row are adjacent in memory
};

template <class T>
struct GemmKernels {
  std::int64_t max_rows = 0;  // of the register tile
  std::int64_t panel = 0, lanes = 0;
  void (*multiply)(const GemmBlock<T>& block) = nullptr;
  // Rows [row, row + rows) and depth [from, to) of the patches into dst, rows dst_stride apart, each followed
  // by zeros up to a whole step.
  void (*gather)(const Patches<T>& patches, std::int64_t row, std::int64_t rows, std::int64_t from,
                 std::int64_t to, T* dst, std::int64_t dst_stride) = nullptr;
  // The same of a matrix: rows `stride` apart, less a zero point.
  void (*gather_rows)(const Source<T>* from, std::int64_t stride, T zero_point, std::int64_t rows,
                      std::int64_t depth, T* dst, std::int64_t dst_stride) = nullptr;
  // Packs B[depth x cols], element (k, j) at b[k * stride + j], into panels.
  void (*pack)(const T* b, std::int64_t stride, std::int64_t depth, std::int64_t cols, T* panels) = nullptr;
  // Packs B whose element (k, j) is at b[j * stride + k].
  void (*pack_transposed)(const T* b, std::int64_t stride, std::int64_t depth, std::int64_t cols,
                          T* panels) = nullptr;
};

namespace baseline {
extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
extern const GemmKernels<std::int16_t> kGemmI16;
}  // namespace baseline
namespace avx2 {
extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
extern const GemmKernels<std::int16_t> kGemmI16;
}  // namespace avx2
namespace avx512 {
extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
extern const GemmKernels<std::int16_t> kGemmI16;
}  // namespace avx512

}  // namespace tosaic::kernels
