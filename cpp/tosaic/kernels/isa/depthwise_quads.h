// Depthwise convolution of bytes with channels last: the loop of instruction sets that multiply quads
// (isa/gemm.h).
//
// A quad is four taps of one channel. Elements are computed in blocks, which one vector of bytes holds: 16, 32 or 64.
// The bytes of four taps are interleaved in each 16 bytes, so that vector v of four holds these channels of a block,
// the first four or eight lanes only if the block is 16 or 32:
//
//   lane       0 1 2 3    4  5  6  7    8  9 10 11   12 13 14 15
//   channel    4v + (0..3)   4v + 16 + (0..3)   4v + 32 + (0..3)   4v + 48 + (0..3)
//
// Weights, terms, multipliers and shifts have this order: the caller arranges them by quad_channel().
#pragma once

#include <cstdint>

#include "tosaic/kernels/isa/rescale.h"

namespace tosaic::kernels {

// The element of a block of `block` elements at place `place` of the arranged tables.
[[nodiscard]] constexpr std::int64_t quad_channel(std::int64_t block, std::int64_t place) {
  const std::int64_t lanes = block / 4;
  return place % lanes / 4 * 16 + place / lanes * 4 + place % 4;
}

// One line of the result. Element e of a pixel x of the result is the sum over taps of
// taps[t][x * source_step + e] * weight. The last vector may read up to block - 1 bytes beyond.
//
// If the step along w is 1, the caller may describe the whole line as one pixel of out_w * channels elements: the
// elements that adjacent pixels read are adjacent, too. The weights then repeat after `blocks` blocks.
struct DepthwiseQuads {
  const std::int8_t* const* taps = nullptr;  // 4 * quads pointers; bytes of the image plus kQuadOffset
  std::int64_t num_taps = 0, quads = 0;
  std::int64_t blocks = 0;
  const std::int8_t* weights = nullptr;           // [blocks][quads][block][4]
  const std::uint32_t* terms = nullptr;           // [blocks][block]: where sums begin
  std::int64_t pixels = 0, elements = 0;          // of the line; elements of a pixel
  std::int64_t source_step = 0, result_step = 0;  // elements from pixel to pixel
  // Where the results go: sums, or bytes that `rescale` makes of them. The other pointer is null. The tables of
  // `rescale` have [blocks][block] entries.
  std::uint32_t* sums = nullptr;
  std::int8_t* bytes = nullptr;
  RescaleTables<std::int32_t> rescale = {};
};

struct DepthwiseQuadKernels {
  std::int64_t block = 0;  // elements
  void (*line)(const DepthwiseQuads& line) = nullptr;
  // Writes `count` bytes plus kQuadOffset, and `count` bytes of padding. Both may write up to block - 1 bytes
  // more.
  void (*copy)(const std::int8_t* from, std::int64_t count, std::int8_t* to) = nullptr;
  void (*pad)(std::int8_t zero_point, std::int64_t count, std::int8_t* to) = nullptr;
};

namespace avxvnni {
extern const DepthwiseQuadKernels kDepthwiseQuads;
}  // namespace avxvnni
namespace avxvnni_evex {
extern const DepthwiseQuadKernels kDepthwiseQuads;
}  // namespace avxvnni_evex
namespace avx512vnni {
extern const DepthwiseQuadKernels kDepthwiseQuads;
}  // namespace avx512vnni
namespace dotprod {
extern const DepthwiseQuadKernels kDepthwiseQuads;
}  // namespace dotprod
namespace i8mm {
extern const DepthwiseQuadKernels kDepthwiseQuads;
}  // namespace i8mm

}  // namespace tosaic::kernels
