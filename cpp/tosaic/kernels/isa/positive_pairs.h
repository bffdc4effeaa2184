// The loop of PositivePairs (isa/gemm.h): integers that the adders of floats add. Only files of kernels/isa/
// include this header.
//
// On AMD's processors, additions of integers compete with their multiplications for units, and additions of
// floats do not: on Zen 4, the loop takes 6 cycles instead of 7.4 for a step of 6 rows and 2 vectors. A
// float whose exponent is 0 or 1 is its bits, read as an integer, times 2^-149. So as long as no sum exceeds
// 2^24, adding two such floats adds two integers that are not negative, exactly. A sum of two products is at
// most 2 * 255^2, so kMostSteps steps are added as floats, and then to the sums as integers. Denormal
// numbers must not be flushed to zero while a tile is computed.
#pragma once

#include "tosaic/kernels/isa/tiles.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

constexpr Index kMostSteps = 128;
static_assert(kMostSteps * 2 * 255 * 255 <= 1 << 24);

// The sums of R rows by W vectors over `depth`, at most kMostSteps steps, as floats. Returns where B goes on.
// If kFetches, fetches what the next steps read of B: the processor's own prefetching stops at the end of a
// page.
template <int R, int W, bool kFetches>
[[gnu::always_inline]] inline const std::uint16_t* add_floats(Vector<float> (&sum)[R][W],
                                                              const std::uint16_t* const* a, Index stride,
                                                              const std::uint16_t* b, Index depth) {
  constexpr Index ahead = 4096;  // bytes
#pragma GCC unroll 2
  for (Index k = 0; k < depth; k += Arithmetic<PositivePairs>::kStep) {
    Vector<std::uint16_t> right[W];
#pragma GCC unroll 2
    for (int j = 0; j < W; ++j) right[j] = load(b + j * kLanes<std::uint16_t>);
    if constexpr (kFetches) __builtin_prefetch(reinterpret_cast<const char*>(b) + ahead);
    b += W * kLanes<std::uint16_t>;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const auto left = step_factor(a[i / 4] + (i % 4) * stride + k);
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j)
        sum[i][j] += (Vector<float>)_mm256_madd_epi16((IntegerRegister)right[j], (IntegerRegister)left);
    }
  }
  return b;
}

// Computes a tile of R rows by W vectors.
template <int R, int W>
void positive_tile(const GemmBlock<PositivePairs>& block, Index row, const Columns<PositivePairs>& columns) {
  constexpr Index most = kMostSteps * Arithmetic<PositivePairs>::kStep;
  const std::uint16_t* b = columns.panel;
  Vector<std::uint32_t> total[R][W];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) begin_row<PositivePairs, W>(block, columns.first, total[i]);
  for (Index from = 0; from < block.depth; from += most) {
    const Index depth = block.depth - from < most ? block.depth - from : most;
    const std::uint16_t* a[(R + 3) / 4];  // pointers to every fourth row; addressing modes reach the others
#pragma GCC unroll 4
    for (int i = 0; i < R; i += 4) a[i / 4] = block.a + (row + i) * block.a_stride + from;
    Vector<float> sum[R][W] = {};
    // The other tiles find B in a cache.
    b = row == 0 ? add_floats<R, W, true>(sum, a, block.a_stride, b, depth)
                 : add_floats<R, W, false>(sum, a, block.a_stride, b, depth);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < W; ++j) total[i][j] += (Vector<std::uint32_t>)sum[i][j];
  }
  finish_tile<PositivePairs, R, W>(block, total, row, columns.first, columns.valid);
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
