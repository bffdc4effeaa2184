// How the right operand B[depth x cols] of a product lies packed in memory.
//
// B is cut into bands of depth, and each band is packed into panels (isa/gemm.h). A block of a product reads
// the panels of one band, which are adjacent. If panels had the whole depth, the panels of a block would
// often be a multiple of 4096 bytes apart, and compete for the same cache sets.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tosaic/kernels/isa/gemm.h"

namespace tosaic::kernels {

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The depth of all bands but the last, if there are at most `parts` bands.
[[nodiscard]] constexpr std::int64_t band_of_parts(std::int64_t depth, std::int64_t parts) {
  return parts <= 1 ? std::max<std::int64_t>(depth, 1) : ceil_div(ceil_div(depth, parts), 16) * 16;
}

// The depth of a band, which is also the depth of a block of a product.
template <class T>
[[nodiscard]] constexpr std::int64_t band_depth(std::int64_t depth) {
  // 128 for floats, so that a sum of 4608 terms consists of 36 partial sums of 128 terms. This halves the
  // rounding error of partial sums of 512 terms, at the same speed. Sums of integers are exact, so one band
  // may have a large depth: the sums of a single band are rescaled while they are in registers.
  constexpr std::int64_t most = std::is_same_v<T, WidePairs> ? kMostWideDepth
                                : kRescales<T>               ? 16384 / kFactorBytes<T>
                                                             : 512 / kFactorBytes<T>;
  return band_of_parts(depth, ceil_div(depth, most));
}

template <class T>
struct Bands {
  std::int64_t depth = 0, cols = 0;
  std::int64_t band = 1;         // the depth of every band but the last
  std::int64_t panel = 1;        // the columns of a panel
  std::int64_t padded_cols = 0;  // whole panels

  Bands() = default;
  Bands(const GemmKernels<T>& kernels, std::int64_t all_depth, std::int64_t all_cols)
      : Bands(kernels, all_depth, all_cols, band_depth<T>(all_depth)) {}
  Bands(const GemmKernels<T>& kernels, std::int64_t all_depth, std::int64_t all_cols, std::int64_t band_rows)
      : depth(all_depth),
        cols(all_cols),
        band(band_rows),
        panel(kernels.panel),
        padded_cols(ceil_div(all_cols, panel) * panel) {}

  [[nodiscard]] std::int64_t elements() const { return padded_cols * whole_steps<T>(depth); }
  // The depth of the band that begins at `from`.
  [[nodiscard]] std::int64_t depth_at(std::int64_t from) const { return std::min(band, depth - from); }
  // The offset, in packed memory, of column `col` of the band that begins at `from`. `col` is a multiple of
  // the panel's width.
  [[nodiscard]] std::int64_t offset(std::int64_t from, std::int64_t col) const {
    return from * padded_cols + col * whole_steps<T>(depth_at(from));
  }
};

// Packs B, whose element (k, j) is at b[k * depth_stride + j * col_stride]. One of the strides is 1.
template <class T>
void pack_bands(const GemmKernels<T>& kernels, const Bands<T>& bands, const Factor<T>* b,
                std::int64_t depth_stride, std::int64_t col_stride, Factor<T>* packed) {
  for (std::int64_t from = 0; from < bands.depth; from += bands.band) {
    const Factor<T>* first = b + from * depth_stride;
    Factor<T>* to = packed + bands.offset(from, 0);
    if (col_stride == 1)
      kernels.pack(first, depth_stride, bands.depth_at(from), bands.cols, to);
    else
      kernels.pack_transposed(first, col_stride, bands.depth_at(from), bands.cols, to);
  }
}

}  // namespace tosaic::kernels
