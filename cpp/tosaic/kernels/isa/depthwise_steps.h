// Depthwise convolution of bytes with channels last: the loop of instruction sets that multiply several taps
// of a channel at once. T is Quads or Pairs (isa/gemm.h).
//
// A step is four (Quads) or two (Pairs) taps of one channel. Elements are computed in blocks, which one
// vector of bytes holds: 16, 32 or 64. The sums of a block are four vectors. The instructions that interleave
// the factors of a step's taps work on 16 bytes at a time. So the four vectors have the channels of a block
// of 64 in this order. Vectors of a smaller block have the first four or eight of these lanes:
//
//   lane              0 1 2 3         4  5  6  7           8  9 10 11           12 13 14 15
//   Quads, vector v   4v + (0..3)     4v + 16 + (0..3)     4v + 32 + (0..3)     4v + 48 + (0..3)
//   Pairs, vector v   4v + (0..3)     4v + 8 + (0..3)      4v + 16 + (0..3)     4v + 24 + (0..3)
//
// With Pairs, this holds for vectors 0 and 1. Vectors 2 and 3 have the second half of the block in the same
// order. Weights, terms, multipliers and shifts have this order: the caller arranges them by step_channel().
#pragma once

#include <cstdint>

#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/rescale.h"

namespace tosaic::kernels {

// The element of a block of `block` elements at place `place` of the arranged tables.
template <class T>
[[nodiscard]] constexpr std::int64_t step_channel(std::int64_t block, std::int64_t place) {
  constexpr std::int64_t step = Arithmetic<T>::kStep;
  const std::int64_t lanes = block / 4, vector = place / lanes, lane = place % lanes;
  return vector / step * (block * step / 4) + lane / 4 * (4 * step) + vector % step * 4 + lane % 4;
}

// One line of the result. Element e of a pixel x of the result is the sum over taps of
// taps[t][x * source_step + e] * weight. The last vector may read up to block - 1 elements beyond the line.
//
// If the step along w is 1, the caller may describe the whole line as one pixel of out_w * channels elements:
// the elements that adjacent pixels read are adjacent, too. The weights then repeat after `blocks` blocks.
template <class T>
struct DepthwiseSteps {
  const Factor<T>* const* taps = nullptr;  // kStep * steps pointers to the factors of the image
  std::int64_t num_taps = 0, steps = 0;
  std::int64_t blocks = 0;
  const Factor<T>* weights = nullptr;             // [blocks][steps][block][kStep]
  const std::uint32_t* terms = nullptr;           // [blocks][block]: initial values of the sums
  std::int64_t pixels = 0, elements = 0;          // pixels of the line; elements of a pixel
  std::int64_t source_step = 0, result_step = 0;  // elements from pixel to pixel
  // Where the results go: sums, or bytes that `rescale` makes of them. The other pointer is null. The tables
  // of `rescale` have [blocks][block] entries.
  std::uint32_t* sums = nullptr;
  std::int8_t* bytes = nullptr;
  RescaleTables<std::int32_t> rescale = {};
};

template <class T>
struct DepthwiseStepKernels {
  std::int64_t block = 0;  // elements of a block
  void (*line)(const DepthwiseSteps<T>& line) = nullptr;
  // Writes `count` bytes of the image as factors, and `count` factors of padding. Both may write up to
  // block - 1 factors more.
  void (*copy)(const std::int8_t* from, Factor<T> zero_point, std::int64_t count, Factor<T>* to) = nullptr;
  void (*pad)(Factor<T> zero_point, std::int64_t count, Factor<T>* to) = nullptr;
};

}  // namespace tosaic::kernels
