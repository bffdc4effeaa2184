// Sampling of images at the positions of a grid: the loops that each instruction set provides.
//
//   grid --positions--> taps of a block of outputs (offsets of pixels, weights) --sums--> outputs
//
// The positions are computed once for all channels, in the same order of operations as in torch's vectorised
// kernel and without fused multiply-adds, because other roundings of a position may change `nearest`.
//
// The image is either packed or read in place. A packed image has the channels innermost, `channels` elements
// a pixel (a multiple of 4, or 1), and a margin, so that taps outside of the image need no test.
#pragma once

#include <cstdint>

#include "tosaic/ir/attributes.h"
#include "tosaic/kernels/isa/each_set.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::kernels {

inline constexpr std::int64_t kGridBlock = 256;  // outputs per block: the taps fit the first-level cache

// One spatial axis of the image.
struct GridAxis {
  float scale = 0, shift = 0;  // position = (coordinate + 1) * scale + shift
  float last = 0;              // the position of the last pixel
  float low = 0, turn = 0;     // reflection: positions are mirrored at `low`, and repeat after `turn`
  std::int32_t stride = 0;     // elements between neighbours
};

// What is constant for all blocks of a kernel.
struct GridLayout {
  ResizeMode mode = ResizeMode::kBilinear;
  GridPadding padding = GridPadding::kZeros;
  GridAxis x, y;
  std::int32_t origin = 0;  // the offset of pixel (0, 0)
  bool packed = false;
};

inline constexpr std::int32_t kGridOutside = -1;

// The taps of a block.
//
//   nearest            offsets[0]; inside[0] with padding `zeros`
//   bilinear           weights across[k] of the pixels (x, y), (x + 1, y), (x, y + 1), (x + 1, y + 1)
//     packed           offsets[0] is the offset of (x, y)
//     not packed       offsets[0] and offsets[1] belong to the first pixel of each line; inside[k]
//   bicubic            weights across[i] * down[k]
//     packed           offsets[0] is the offset of the first of 4 x 4 adjacent pixels
//     not packed       columns[i] + rows[k]; one of them is kGridOutside if the pixel is outside of the image
//
// A pixel outside of the image is zero: its mask `inside` is 0, and its offset is the offset of another
// pixel.
struct GridTaps {
  union {
    alignas(64) std::int32_t offsets[4][kGridBlock];
    alignas(64) std::int32_t columns[4][kGridBlock];
  };
  union {
    alignas(64) std::int32_t inside[4][kGridBlock];
    alignas(64) std::int32_t rows[4][kGridBlock];
  };
  alignas(64) float across[4][kGridBlock];
  alignas(64) float down[4][kGridBlock];
  bool any_outside = false;
};

struct GridKernels {
  // Reads `count` pairs (x, y). Taps beyond `count`, up to a whole vector, belong to the pair (0, 0).
  void (*positions)(const GridLayout& layout, const float* grid, std::int64_t count,
                    GridTaps& taps) = nullptr;
};

// The planes of an image, and the planes of its samples. Plane c is written to to[c * to_stride + i].
struct GridPlanes {
  const float* from = nullptr;
  float* to = nullptr;
  std::int64_t count = 0, from_stride = 0, to_stride = 0;
};

struct GridSums {
  // For an image that is not packed, with adjacent pixels. Bilinear samples need lines of two pixels or more.
  void (*planes)(const GridLayout& layout, const GridTaps& taps, std::int64_t count,
                 const GridPlanes& planes) = nullptr;
  // A packed image. Writes to[i * channels + c].
  void (*packed)(const GridLayout& layout, const GridTaps& taps, std::int64_t count, const float* image,
                 std::int64_t channels, float* to) = nullptr;
  // An image that is not packed and has its channels innermost, for nearest samples. Writes to[i * channels +
  // c].
  void (*pixels)(const GridTaps& taps, std::int64_t count, const float* image, std::int64_t channels,
                 float* to) = nullptr;
  // to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < cols. If to_stride > rows, elements
  // up to the next multiple of 4 become zero.
  void (*pack)(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t cols, float* to,
               std::int64_t to_stride) = nullptr;
  // to[c * to_stride + i] = from[i * channels + c] for i < count, c < valid.
  void (*unpack)(const float* from, std::int64_t channels, std::int64_t valid, std::int64_t count, float* to,
                 std::int64_t to_stride) = nullptr;
};

TOSAIC_IN_EACH_SET(extern const GridKernels kGridKernels;)
TOSAIC_IN_EACH_SET(extern const GridSums kGridSums;)

}  // namespace tosaic::kernels
