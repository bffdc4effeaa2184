// Matrix products over blocks that fit the caches: what each instruction set provides to contraction kernels.
//
//   C[rows x cols] (+)= A[rows x depth] * B[depth x cols]       vectors lie along the columns
//
// A is read in place (rows `a_stride` apart, elements of a row adjacent), so a block of A is either the
// operand itself or image patches gathered by `gather`. B is packed in panels of `panel` columns: panel p
// starts at p * panel * panel_depth and holds [panel_depth][width], where width is `panel`, or `lanes` for a
// last panel of at most that many columns; columns beyond the matrix are zero. Each element is summed in
// order of depth.
#pragma once

#include <cstdint>

#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

template <class T>
struct GemmBlock {
  std::int64_t rows = 0, cols = 0, depth = 0;
  const T* a = nullptr;
  std::int64_t a_stride = 0;
  const T* b = nullptr;                           // the first panel
  std::int64_t panel_depth = 0, first_depth = 0;  // the panels' depth, and where this block starts in it
  T* c = nullptr;
  std::int64_t c_stride = 0;
  bool accumulate = false;         // add to C, else overwrite it
  const T* column_bias = nullptr;  // added when not null: one per column
  const T* row_bias = nullptr;     // and one per row
  bool clamp = false;  // to [low, high], after everything else; set it on the last block of depth only
  T low = 0, high = 0;
};

// Image patches as rows of A, channels last. Row = output position (batch, d, h, w); depth = (tap d, h, w,
// channel). The input coordinate of tap t at output index o is o * step + offset[t]; outside the image it
// reads zero.
template <class T>
struct Patches {
  const T* input = nullptr;  // at the first channel of the group
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
  // Rows [row, row + rows) and depth [from, to) of the patches into dst, rows dst_stride apart.
  void (*gather)(const Patches<T>& patches, std::int64_t row, std::int64_t rows, std::int64_t from,
                 std::int64_t to, T* dst, std::int64_t dst_stride) = nullptr;
  // Packs B[depth x cols], element (k, j) at b[k * stride + j], into panels.
  void (*pack)(const T* b, std::int64_t stride, std::int64_t depth, std::int64_t cols, T* panels) = nullptr;
  // Packs B whose element (k, j) is at b[j * stride + k].
  void (*pack_transposed)(const T* b, std::int64_t stride, std::int64_t depth, std::int64_t cols,
                          T* panels) = nullptr;
  // to[j * to_stride + i] = from[i * from_stride + j].
  void (*transpose)(const T* from, std::int64_t from_stride, std::int64_t rows, std::int64_t cols, T* to,
                    std::int64_t to_stride) = nullptr;
};

namespace baseline {
extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
}  // namespace baseline
namespace avx2 {
extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
}  // namespace avx2
namespace avx512 {
extern const GemmKernels<float> kGemmF32;
extern const GemmKernels<double> kGemmF64;
}  // namespace avx512

}  // namespace tosaic::kernels
