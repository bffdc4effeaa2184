// Weighted sums of the pixels of grid samples.
#include "tosaic/kernels/isa/grid_sample.h"

#include "tosaic/kernels/isa/vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;

template <Index kCount>
using Floats = Vector<float, kCount>;
using Ints4 = Vector<std::int32_t, 4>;

// Stores the first `count` elements, at most four.
[[gnu::always_inline]] inline void store_some(float* to, Floats<4> value, Index count) {
  if (count >= 4)
    store<float, 4>(to, value);
  else
    for (Index k = 0; k < count; ++k) to[k] = value[k];
}

// ---- one plane of an image that is not packed ----

// The offsets of four pixels. Two 64-bit loads are faster than four of 32 bits.
struct Places {
  std::uint64_t at[4];
};
[[gnu::always_inline]] inline Places places(const std::int32_t* at) {
  std::uint64_t pairs[2];
  __builtin_memcpy(pairs, at, sizeof pairs);
  return {{pairs[0] & 0xffffffff, pairs[0] >> 32, pairs[1] & 0xffffffff, pairs[1] >> 32}};
}

template <int kPlanes, bool kOutside>
[[gnu::always_inline]] inline void nearest_four(const GridTaps& taps, Index i, Index count,
                                                const float* plane, Index from_stride, float* to,
                                                Index to_stride) {
  const Places four = places(taps.offsets[0] + i);
#pragma GCC unroll 2
  for (Index k = 0; k < kPlanes; ++k, plane += from_stride, to += to_stride) {
    Floats<4> value{plane[four.at[0]], plane[four.at[1]], plane[four.at[2]], plane[four.at[3]]};
    if constexpr (kOutside) value = (Floats<4>)((Ints4)value & load<std::int32_t, 4>(taps.inside[0] + i));
    store_some(to + i, value, count);
  }
}

template <int kPlanes, bool kOutside>
void nearest_planes(const GridTaps& taps, Index count, const float* plane, Index from_stride, float* to,
                    Index to_stride) {
  Index i = 0;
  for (; i + 4 <= count; i += 4)
    nearest_four<kPlanes, kOutside>(taps, i, 4, plane, from_stride, to, to_stride);
  if (i < count) nearest_four<kPlanes, kOutside>(taps, i, count - i, plane, from_stride, to, to_stride);
}

// Samples two planes at once: offsets and masks are read once for both.
template <bool kOutside>
void nearest(const GridTaps& taps, Index count, const float* plane, Index planes, Index from_stride,
             float* to, Index to_stride) {
  for (; planes >= 2; planes -= 2, plane += 2 * from_stride, to += 2 * to_stride)
    nearest_planes<2, kOutside>(taps, count, plane, from_stride, to, to_stride);
  if (planes > 0) nearest_planes<1, kOutside>(taps, count, plane, from_stride, to, to_stride);
}

// Two neighbours of each of four outputs.
struct Neighbours {
  Floats<4> west, east;
};
[[gnu::always_inline]] inline Floats<4> two_pairs(const float* a, const float* b) {
  double pair[2];
  __builtin_memcpy(&pair[0], a, 8);
  __builtin_memcpy(&pair[1], b, 8);
  return (Floats<4>)Vector<double, 2>{pair[0], pair[1]};
}
[[gnu::always_inline]] inline Neighbours neighbours(const float* image, const std::int32_t* at) {
  const Floats<4> low = two_pairs(image + at[0], image + at[1]),
                  high = two_pairs(image + at[2], image + at[3]);
  return {__builtin_shufflevector(low, high, 0, 2, 4, 6), __builtin_shufflevector(low, high, 1, 3, 5, 7)};
}
[[gnu::always_inline]] inline Floats<4> masked(Floats<4> x, const std::int32_t* mask) {
  return (Floats<4>)((Ints4)x & load<std::int32_t, 4>(mask));
}

template <bool kOutside>
void bilinear_plane(const GridTaps& taps, Index count, const float* plane, float* to) {
  for (Index i = 0; i < count; i += 4) {
    Floats<4> sum{};
#pragma GCC unroll 2
    for (int k = 0; k < 4; k += 2) {
      Neighbours two = neighbours(plane, taps.offsets[k / 2] + i);
      if constexpr (kOutside) {
        two.west = masked(two.west, taps.inside[k] + i);
        two.east = masked(two.east, taps.inside[k + 1] + i);
      }
      sum +=
          two.west * load<float, 4>(taps.across[k] + i) + two.east * load<float, 4>(taps.across[k + 1] + i);
    }
    store_some(to + i, sum, count - i);
  }
}

struct Square {
  Floats<4> rows[4];
};
[[gnu::always_inline]] inline Square transposed(const Square& s) {
  const Floats<4> a = __builtin_shufflevector(s.rows[0], s.rows[2], 0, 4, 1, 5),
                  b = __builtin_shufflevector(s.rows[0], s.rows[2], 2, 6, 3, 7),
                  c = __builtin_shufflevector(s.rows[1], s.rows[3], 0, 4, 1, 5),
                  d = __builtin_shufflevector(s.rows[1], s.rows[3], 2, 6, 3, 7);
  return {{__builtin_shufflevector(a, c, 0, 4, 1, 5), __builtin_shufflevector(a, c, 2, 6, 3, 7),
           __builtin_shufflevector(b, d, 0, 4, 1, 5), __builtin_shufflevector(b, d, 2, 6, 3, 7)}};
}

// The weights of four outputs times the four columns of each.
[[gnu::always_inline]] inline Floats<4> across(const GridTaps& taps, Index i, const Square& columns) {
  const Square by_tap = transposed(columns);
  Floats<4> sum = by_tap.rows[0] * load<float, 4>(taps.across[0] + i);
#pragma GCC unroll 3
  for (int k = 1; k < 4; ++k) sum += by_tap.rows[k] * load<float, 4>(taps.across[k] + i);
  return sum;
}

float bicubic_beside(const GridTaps& taps, Index i, const float* plane) {
  float sum = 0;
  for (int k = 0; k < 4; ++k) {
    const std::int32_t row = taps.rows[k][i];
    float line = 0;
    for (int j = 0; j < 4; ++j) {
      const std::int32_t column = taps.columns[j][i];
      line += ((row | column) < 0 ? 0.0F : plane[row + column]) * taps.across[j][i];
    }
    sum += line * taps.down[k][i];
  }
  return sum;
}

// Four outputs are computed together if all their taps are inside the image.
void bicubic_plane(const GridTaps& taps, Index count, const float* plane, float* to) {
  for (Index i = 0; i < count; i += 4) {
    const Ints4 first = load<std::int32_t, 4>(taps.columns[0] + i);
    Ints4 beside = (load<std::int32_t, 4>(taps.columns[3] + i) - first != 3) | (first < 0);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) beside |= load<std::int32_t, 4>(taps.rows[k] + i) < 0;
    if ((beside[0] | beside[1] | beside[2] | beside[3]) != 0) {
      for (Index k = i; k < i + 4 && k < count; ++k) to[k] = bicubic_beside(taps, k, plane);
      continue;
    }
    Square columns;
#pragma GCC unroll 4
    for (int o = 0; o < 4; ++o) {
      const float* at = plane + taps.columns[0][i + o];
      Floats<4> sum = load<float, 4>(at + taps.rows[0][i + o]) * taps.down[0][i + o];
#pragma GCC unroll 3
      for (int k = 1; k < 4; ++k) sum += load<float, 4>(at + taps.rows[k][i + o]) * taps.down[k][i + o];
      columns.rows[o] = sum;
    }
    store_some(to + i, across(taps, i, columns), count - i);
  }
}

void planes(const GridLayout& layout, const GridTaps& taps, Index count, const GridPlanes& p) {
  if (layout.mode == ResizeMode::kNearest)
    return taps.any_outside ? nearest<true>(taps, count, p.from, p.count, p.from_stride, p.to, p.to_stride)
                            : nearest<false>(taps, count, p.from, p.count, p.from_stride, p.to, p.to_stride);
  for (Index c = 0; c < p.count; ++c) {
    const float* from = p.from + c * p.from_stride;
    float* to = p.to + c * p.to_stride;
    if (layout.mode == ResizeMode::kBicubic)
      bicubic_plane(taps, count, from, to);
    else if (taps.any_outside)
      bilinear_plane<true>(taps, count, from, to);
    else
      bilinear_plane<false>(taps, count, from, to);
  }
}

// ---- packed images ----

// One channel, four outputs at a time.
void bilinear_one(const GridLayout& layout, const GridTaps& taps, Index count, const float* image,
                  float* to) {
  const Index line = layout.y.stride;
  for (Index i = 0; i < count; i += 4) {
    const std::int32_t* at = taps.offsets[0] + i;
    const Neighbours north = neighbours(image, at), south = neighbours(image + line, at);
    const Floats<4> sum =
        north.west * load<float, 4>(taps.across[0] + i) + north.east * load<float, 4>(taps.across[1] + i) +
        south.west * load<float, 4>(taps.across[2] + i) + south.east * load<float, 4>(taps.across[3] + i);
    store_some(to + i, sum, count - i);
  }
}

void bicubic_one(const GridLayout& layout, const GridTaps& taps, Index count, const float* image, float* to) {
  const Index line = layout.y.stride;
  for (Index i = 0; i < count; i += 4) {
    Square columns;
#pragma GCC unroll 4
    for (int o = 0; o < 4; ++o) {
      const float* at = image + taps.offsets[0][i + o];
      Floats<4> sum = load<float, 4>(at) * taps.down[0][i + o];
#pragma GCC unroll 3
      for (int k = 1; k < 4; ++k) sum += load<float, 4>(at + k * line) * taps.down[k][i + o];
      columns.rows[o] = sum;
    }
    store_some(to + i, across(taps, i, columns), count - i);
  }
}

template <Index kCount>
[[gnu::always_inline]] inline Floats<kCount> bilinear_pixel(const GridTaps& taps, Index i, Index line,
                                                            Index channels, const float* at) {
  Floats<kCount> sum = load<float, kCount>(at) * taps.across[0][i];
  sum += load<float, kCount>(at + channels) * taps.across[1][i];
  sum += load<float, kCount>(at + line) * taps.across[2][i];
  sum += load<float, kCount>(at + line + channels) * taps.across[3][i];
  return sum;
}

template <Index kCount>
[[gnu::always_inline]] inline Floats<kCount> bicubic_pixel(const GridTaps& taps, Index i, Index line,
                                                           Index channels, const float* at) {
  Floats<kCount> sum{};
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    Floats<kCount> across{};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      across += load<float, kCount>(at + k * line + j * channels) * taps.across[j][i];
    sum += across * taps.down[k][i];
  }
  return sum;
}

template <ResizeMode M, Index kCount>
[[gnu::always_inline]] inline void channels_at(const GridTaps& taps, Index i, Index line, Index channels,
                                               const float* image, Index c, float* to) {
  const float* at = image + taps.offsets[0][i] + c;
  store<float, kCount>(to + c, M == ResizeMode::kBilinear
                                   ? bilinear_pixel<kCount>(taps, i, line, channels, at)
                                   : bicubic_pixel<kCount>(taps, i, line, channels, at));
}

template <ResizeMode M>
void packed_of(const GridLayout& layout, const GridTaps& taps, Index count, const float* image,
               Index channels, float* to) {
  const Index line = layout.y.stride;
  if (channels == 4) {
    for (Index i = 0; i < count; ++i) channels_at<M, 4>(taps, i, line, 4, image, 0, to + i * 4);
    return;
  }
  for (Index i = 0; i < count; ++i, to += channels) {
    Index c = 0;
    if constexpr (kLanes<float> >= 16)
      for (; c + 16 <= channels; c += 16) channels_at<M, 16>(taps, i, line, channels, image, c, to);
    if constexpr (kLanes<float> >= 8)
      for (; c + 8 <= channels; c += 8) channels_at<M, 8>(taps, i, line, channels, image, c, to);
    for (; c < channels; c += 4) channels_at<M, 4>(taps, i, line, channels, image, c, to);
  }
}

void packed(const GridLayout& layout, const GridTaps& taps, Index count, const float* image, Index channels,
            float* to) {
  if (layout.mode == ResizeMode::kBicubic)
    return channels == 1 ? bicubic_one(layout, taps, count, image, to)
                         : packed_of<ResizeMode::kBicubic>(layout, taps, count, image, channels, to);
  return channels == 1 ? bilinear_one(layout, taps, count, image, to)
                       : packed_of<ResizeMode::kBilinear>(layout, taps, count, image, channels, to);
}

void pixels(const GridTaps& taps, Index count, const float* image, Index channels, float* to) {
  for (Index i = 0; i < count; ++i, to += channels) {
    if (taps.any_outside && taps.inside[0][i] == 0)
      zero(to, channels);
    else
      copy(to, image + taps.offsets[0][i], channels);
  }
}

// ---- packing: transpositions of four rows ----

void pack(const float* from, Index from_stride, Index rows, Index cols, float* to, Index to_stride) {
  if (to_stride == 1) {
    copy(to, from, cols);
    return;
  }
  for (Index i = 0; i < rows; i += 4) {
    const Index valid = rows - i < 4 ? rows - i : 4;
    const float* at = from + i * from_stride;
    Index j = 0;
    for (; j + 4 <= cols; j += 4) {
      Square square{};
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        if (k < valid) square.rows[k] = load<float, 4>(at + k * from_stride + j);
      square = transposed(square);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) store<float, 4>(to + (j + k) * to_stride + i, square.rows[k]);
    }
    for (; j < cols; ++j)
      for (Index k = 0; k < 4; ++k) to[j * to_stride + i + k] = k < valid ? at[k * from_stride + j] : 0.0F;
  }
}

void unpack(const float* from, Index channels, Index valid, Index count, float* to, Index to_stride) {
  for (Index c = 0; c < valid; c += 4) {
    const Index some = valid - c < 4 ? valid - c : 4;
    Index i = 0;
    for (; i + 4 <= count; i += 4) {
      Square square;
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) square.rows[k] = load<float, 4>(from + (i + k) * channels + c);
      square = transposed(square);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        if (k < some) store<float, 4>(to + (c + k) * to_stride + i, square.rows[k]);
    }
    for (; i < count; ++i)
      for (Index k = 0; k < some; ++k) to[(c + k) * to_stride + i] = from[i * channels + c + k];
  }
}

}  // namespace

extern const GridSums kGridSums;
const GridSums kGridSums = {planes, packed, pixels, pack, unpack};

}  // namespace tosaic::kernels::TOSAIC_ISA
