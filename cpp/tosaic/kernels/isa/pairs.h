// Pairs of 16-bit integers: how B is packed into panels, and the table of products. Only files of
// kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/gather.h"
#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/multiply.h"
#include "tosaic/kernels/isa/tiles.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

// Packs one step of depth: columns [0, valid) of two rows of B. `second` is null if the depth ends before it.
[[gnu::always_inline]] inline void pack_step(const std::int16_t* first, const std::int16_t* second,
                                             Index column_stride, Index valid, Index width,
                                             std::int16_t* pairs) {
  if (second != nullptr && column_stride == 1)
    for (Index i = 0; i < valid; ++i) {
      pairs[pair_place(i, 0)] = first[i];
      pairs[pair_place(i, 1)] = second[i];
    }
  else
    for (Index i = 0; i < valid; ++i) {
      pairs[pair_place(i, 0)] = first[i * column_stride];
      pairs[pair_place(i, 1)] = second == nullptr ? std::int16_t{0} : second[i * column_stride];
    }
  for (Index i = valid; i < width; ++i) pairs[pair_place(i, 0)] = pairs[pair_place(i, 1)] = 0;
}

// Element (k, j) of B is at b[k * depth_stride + j * column_stride].
[[gnu::always_inline]] inline void pack_pairs(const std::int16_t* b, Index depth_stride, Index column_stride,
                                              Index depth, Index cols, std::int16_t* panels) {
  pack_panels<Pairs>(depth, cols, panels, [=](Index j, Index valid, Index width, std::int16_t* to) {
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

// T is Pairs or WidePairs.
template <class T>
constexpr GemmKernels<T> pair_kernels() {
  return {.max_rows = kRows,
          .panel = 2 * kLanes<std::uint32_t>,
          .lanes = kLanes<std::uint32_t>,
          .multiply_add = multiply_add_time<T>(),
          .multiply = multiply<T>,
          .gather = gather<T>,
          .gather_rows = gather_rows<T>,
          .pack = pack_pairs_by_row,
          .pack_transposed = pack_pairs_by_column};
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
