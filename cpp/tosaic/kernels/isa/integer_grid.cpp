#include "tosaic/kernels/isa/integer_grid.h"

#include "tosaic/ir/integer_sampler.h"
#include "tosaic/kernels/isa/vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;
using Int = std::int32_t;

inline constexpr Index kBlock = kIntegerGridBlock;

// One axis of a block. The padding has been applied to `whole`.
struct alignas(64) Line {
  Int at[kBlock];         // the position
  Int whole[4][kBlock];   // the pixels of the taps
  Int weight[4][kBlock];  // bicubic: their weights; else weight[0] is the fraction of the position
};

[[gnu::always_inline]] inline Int low_of(Int a, Int b) { return a < b ? a : b; }
[[gnu::always_inline]] inline Int high_of(Int a, Int b) { return a > b ? a : b; }
[[gnu::always_inline]] inline Int bounded(Int x, Int low, Int high) { return low_of(high_of(x, low), high); }
// multiply_shifted() of ir/integer_sampler.h.
[[gnu::always_inline]] inline Int times(Int a, Int b, int shift) {
  return static_cast<Int>((static_cast<std::int64_t>(a) * b + (std::int64_t{1} << (shift - 1))) >> shift);
}

void positions(const IntegerGridLayout& layout, int axis, const Int* grid, Index count, Int* to) {
  const IntegerGridAxis a = layout.axes[axis];
  const Int low = layout.grid_low, high = layout.grid_high, zp = layout.grid_zp;
  const auto multiplier = static_cast<Int>(a.multiplier);  // products of 32 bits are one instruction
  for (Index i = 0; i < count; ++i) {
    const Int q = bounded(grid[2 * i + axis], low, high) - zp;
    to[i] = static_cast<Int>((Index{q} * multiplier + a.round) >> a.shift) + a.centre;
  }
}

// The distance from the edge at which positions are mirrored.
[[gnu::always_inline]] inline Int away_of(Int x, const IntegerGridAxis& a, int bits) {
  const Int shifted = x + (a.mirror << bits >> 1);
  return shifted < 0 ? -shifted : shifted;
}

// True if a position is a period or more away from the edge. Most blocks have none and skip the slow
// division.
bool any_turns(const IntegerGridAxis& a, const Int* at, Index count) {
  Int most = 0;
  for (Index i = 0; i < count; ++i) most = high_of(most, away_of(at[i], a, a.fraction));
  return most >= a.period << a.fraction;
}

// Mirrors numbers with `bits` fractional bits until they are in the image.
template <bool kTurns>
[[gnu::always_inline]] inline Int reflected(Int x, const IntegerGridAxis& a, int bits) {
  if (a.period == 0) return 0;
  const Int away = away_of(x, a, bits), turn = a.period << bits;
  const Int extra = kTurns ? away % turn : away;
  return low_of(extra, turn - extra) - (a.mirror << bits >> 1);
}

template <GridPadding P, bool kTurns>
[[gnu::always_inline]] inline Int padded(Int x, const IntegerGridAxis& a, int bits) {
  if constexpr (P == GridPadding::kZeros) return x;
  if constexpr (P == GridPadding::kReflection) x = reflected<kTurns>(x, a, bits);
  return bounded(x, 0, a.last << bits);
}

template <GridPadding P>
[[gnu::always_inline]] inline bool is_inside(Int whole, const IntegerGridAxis& a) {
  return P != GridPadding::kZeros || (whole >= 0 && whole <= a.last);
}

template <GridPadding P, bool kTurns>
void nearest_line(const IntegerGridAxis& a, Index count, Line& line) {
  const Int half = (1 << (a.fraction - 1)) - 1;
  for (Index i = 0; i < count; ++i) {
    const Int x = padded<P, kTurns>(line.at[i], a, a.fraction);
    line.whole[0][i] = (x + half + ((x >> a.fraction) & 1)) >> a.fraction;
  }
}

template <GridPadding P, bool kTurns>
void bilinear_line(const IntegerGridAxis& a, int weight_bits, Index count, Line& line) {
  const Int mask = (1 << a.fraction) - 1;
  for (Index i = 0; i < count; ++i) {
    const Int x = padded<P, kTurns>(line.at[i], a, a.fraction);
    line.whole[0][i] = x >> a.fraction;
    line.weight[0][i] = (x & mask) << (weight_bits - a.fraction);
  }
}

// The pixel of a tap of a bicubic sample. With reflection, whole positions are mirrored at -mirror / 2.
template <GridPadding P, bool kTurns>
[[gnu::always_inline]] inline Int padded_pixel(Int x, const IntegerGridAxis& a) {
  if constexpr (P == GridPadding::kZeros) return x;
  if constexpr (P == GridPadding::kBorder) return bounded(x, 0, a.last);
  if (a.period == 0) return 0;
  const Int mirrored = -x - a.mirror, away = high_of(x, mirrored);
  const Int extra = kTurns ? away % a.period : away;
  return low_of(extra, a.period - a.mirror - extra);
}

template <GridPadding P, bool kTurns>
void bicubic_line(const IntegerGridAxis& a, Index count, Line& line) {
  constexpr int bits = kAxisWeightBits;
  constexpr Int one = Int{1} << bits;
  const Int mask = (1 << a.fraction) - 1;
  for (Index i = 0; i < count; ++i) {
    const Int t = (line.at[i] & mask) << (bits - a.fraction), u = one - t;
    const Int both = times(t, u, bits);
    const Int first = -times(times(both, u, bits), 3, 2), last = -times(times(both, t, bits), 3, 2);
    const Int second = one - times(times(t, t, bits), (9 << (bits - 2)) - times(t, 5, 2), bits);
    const Int weights[4] = {first, second, one - first - second - last, last};
    const Int whole = line.at[i] >> a.fraction;
    for (int k = 0; k < 4; ++k) {
      const Int pixel = padded_pixel<P, kTurns>(whole + k - 1, a);
      const bool inside = is_inside<P>(pixel, a);
      line.whole[k][i] = inside ? pixel : 0;
      line.weight[k][i] = inside ? weights[k] : 0;
    }
  }
}

template <GridPadding P>
[[gnu::always_inline]] inline bool turns(const IntegerGridAxis& a, const Line& line, Index count) {
  if constexpr (P == GridPadding::kReflection) return any_turns(a, line.at, count);
  return false;
}

template <GridPadding P>
void nearest_taps(const IntegerGridLayout& layout, Index count, Line (&lines)[2], IntegerTaps& taps) {
  const IntegerGridAxis x = layout.axes[0], y = layout.axes[1];
  for (int axis = 0; axis < 2; ++axis) {
    const IntegerGridAxis& a = layout.axes[axis];
    if (turns<P>(a, lines[axis], count))
      nearest_line<P, true>(a, count, lines[axis]);
    else
      nearest_line<P, false>(a, count, lines[axis]);
  }
  Int all_inside = 1;
  for (Index i = 0; i < count; ++i) {
    const Int column = lines[0].whole[0][i], row = lines[1].whole[0][i];
    const Int inside = is_inside<P>(column, x) & is_inside<P>(row, y);
    taps.offsets[0][i] = inside != 0 ? column * x.stride + row * y.stride : 0;
    taps.weights[0][i] = inside;
    all_inside &= inside;
  }
  taps.any_outside = all_inside == 0;
}

template <GridPadding P>
void bilinear_taps(const IntegerGridLayout& layout, Index count, Line (&lines)[2], IntegerTaps& taps) {
  const IntegerGridAxis x = layout.axes[0], y = layout.axes[1];
  const int bits = layout.weight_bits;
  for (int axis = 0; axis < 2; ++axis) {
    const IntegerGridAxis& a = layout.axes[axis];
    if (turns<P>(a, lines[axis], count))
      bilinear_line<P, true>(a, bits, count, lines[axis]);
    else
      bilinear_line<P, false>(a, bits, count, lines[axis]);
  }
  for (Index i = 0; i < count; ++i) {
    const Int west = lines[0].whole[0][i], north = lines[1].whole[0][i];
    const Int fx = lines[0].weight[0][i], fy = lines[1].weight[0][i];
    const Int both = times(fx, fy, bits);
    const Int weights[4] = {(Int{1} << bits) - fx - fy + both, fx - both, fy - both, both};
    for (int k = 0; k < 4; ++k) {
      const Int column = west + (k & 1), row = north + (k >> 1);
      const bool inside = (column >= 0) & (column <= x.last) & (row >= 0) & (row <= y.last);
      taps.offsets[k][i] = inside ? column * x.stride + row * y.stride : 0;
      taps.weights[k][i] = inside ? weights[k] : 0;
    }
  }
}

template <GridPadding P>
void bicubic_taps(const IntegerGridLayout& layout, Index count, Line (&lines)[2], IntegerTaps& taps) {
  const IntegerGridAxis x = layout.axes[0], y = layout.axes[1];
  const int shift = 2 * kAxisWeightBits - layout.weight_bits;
  for (int axis = 0; axis < 2; ++axis) {
    const IntegerGridAxis& a = layout.axes[axis];
    // The taps are up to two pixels away from the position.
    IntegerGridAxis nearer = a;
    nearer.period -= 3;
    if (turns<P>(nearer, lines[axis], count))
      bicubic_line<P, true>(a, count, lines[axis]);
    else
      bicubic_line<P, false>(a, count, lines[axis]);
  }
  for (int k = 0; k < 16; ++k) {
    const int j = k & 3, r = k >> 2;
    for (Index i = 0; i < count; ++i) {
      taps.offsets[k][i] = lines[0].whole[j][i] * x.stride + lines[1].whole[r][i] * y.stride;
      taps.weights[k][i] = times(lines[0].weight[j][i], lines[1].weight[r][i], shift);
    }
  }
}

template <GridPadding P>
void taps_of(const IntegerGridLayout& layout, const Int* grid, Index count, IntegerTaps& taps) {
  Line lines[2];
  for (int axis = 0; axis < 2; ++axis) positions(layout, axis, grid, count, lines[axis].at);
  switch (layout.mode) {
    case ResizeMode::kNearest:
      return nearest_taps<P>(layout, count, lines, taps);
    case ResizeMode::kBilinear:
      return bilinear_taps<P>(layout, count, lines, taps);
    case ResizeMode::kBicubic:
      return bicubic_taps<P>(layout, count, lines, taps);
  }
}

void taps(const IntegerGridLayout& layout, const Int* grid, Index count, IntegerTaps& found) {
  switch (layout.padding) {
    case GridPadding::kZeros:
      return taps_of<GridPadding::kZeros>(layout, grid, count, found);
    case GridPadding::kBorder:
      return taps_of<GridPadding::kBorder>(layout, grid, count, found);
    case GridPadding::kReflection:
      return taps_of<GridPadding::kReflection>(layout, grid, count, found);
  }
}

// The product of a pixel and a weight. P is i16 for images of i8, whose products are exact.
template <class P>
[[gnu::always_inline]] inline Int product(P v, Int w, int shift) {
  if constexpr (sizeof(P) == 2) return v * w;
  return times(v, w, shift);
}

template <class T, class P>
void prepare(const IntegerGridLayout& layout, const T* from, Index count, P* to) {
  const Int zp = layout.input_zp, low = layout.input_low;
  for (Index i = 0; i < count; ++i) to[i] = static_cast<P>(high_of(from[i], low) - zp);
}

template <int kTaps, class P>
void plane_of(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const P* plane,
              Int* to) {
  const int shift = layout.product_shift;
  for (Index i = 0; i < count; ++i) {
    Int sum = 0;
#pragma GCC unroll 16
    for (int k = 0; k < kTaps; ++k) sum += product(plane[taps.offsets[k][i]], taps.weights[k][i], shift);
    to[i] = sum;
  }
}

template <class P>
void plane(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const P* from, Int* to) {
  return layout.mode == ResizeMode::kBilinear ? plane_of<4>(layout, taps, count, from, to)
                                              : plane_of<16>(layout, taps, count, from, to);
}

template <Index kCount>
using Ints = Vector<Int, kCount>;

// The products of kCount channels of a pixel and the weight.
template <Index kCount>
[[gnu::always_inline]] inline Ints<kCount> products(const std::int16_t* pixel, Int w, int) {
  return __builtin_convertvector(load<std::int16_t, kCount>(pixel), Ints<kCount>) * w;
}
template <Index kCount>
[[gnu::always_inline]] inline Ints<kCount> products(const Int* pixel, Int w, int shift) {
  using Longs = Vector<Index, kCount>;
  const Longs exact = __builtin_convertvector(load<Int, kCount>(pixel), Longs) * Index{w};
  return __builtin_convertvector((exact + (Index{1} << (shift - 1))) >> shift, Ints<kCount>);
}

template <int kTaps, Index kCount, class P>
[[gnu::always_inline]] inline void channels_at(const IntegerTaps& taps, Index i, const P* image,
                                               Index channels, int shift, Int* to) {
  Ints<kCount> sum{};
#pragma GCC unroll 16
  for (int k = 0; k < kTaps; ++k)
    sum += products<kCount>(image + taps.offsets[k][i] * channels, taps.weights[k][i], shift);
  store<Int, kCount>(to, sum);
}

template <int kTaps, class P>
void pixels_of(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const P* image,
               Index channels, Int* to) {
  const int shift = layout.product_shift;
  for (Index i = 0; i < count; ++i, to += channels) {
    Index c = 0;
    if constexpr (kLanes<Int> >= 16)
      for (; c + 16 <= channels; c += 16) channels_at<kTaps, 16>(taps, i, image + c, channels, shift, to + c);
    if constexpr (kLanes<Int> >= 8)
      for (; c + 8 <= channels; c += 8) channels_at<kTaps, 8>(taps, i, image + c, channels, shift, to + c);
    for (; c < channels; c += 4) channels_at<kTaps, 4>(taps, i, image + c, channels, shift, to + c);
  }
}

template <class P>
void pixels(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const P* image,
            Index channels, Int* to) {
  return layout.mode == ResizeMode::kBilinear ? pixels_of<4>(layout, taps, count, image, channels, to)
                                              : pixels_of<16>(layout, taps, count, image, channels, to);
}

template <int kPlanes, class T>
void nearest_planes(const IntegerTaps& taps, Index count, const T* from, Index from_stride, T* to,
                    Index to_stride) {
  for (Index i = 0; i < count; ++i) {
    const Int at = taps.offsets[0][i];
#pragma GCC unroll 4
    for (int k = 0; k < kPlanes; ++k) to[k * to_stride + i] = from[k * from_stride + at];
  }
}

// Reads the pixels of all taps, inside the image or not. Two more passes over the block, which is in the
// first-level cache, replace values below `low` and pixels outside of the image.
template <class T>
void nearest(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const T* from,
             Index from_stride, Index num_planes, T* to, Index to_stride) {
  const auto low = static_cast<T>(layout.input_low), zp = static_cast<T>(layout.input_zp);
  const T least = sizeof(T) == 1 ? INT8_MIN : INT16_MIN;
  Index c = 0;
  for (; c + 4 <= num_planes; c += 4)
    nearest_planes<4>(taps, count, from + c * from_stride, from_stride, to + c * to_stride, to_stride);
  for (; c < num_planes; ++c)
    nearest_planes<1>(taps, count, from + c * from_stride, from_stride, to + c * to_stride, to_stride);
  for (c = 0; c < num_planes; ++c) {
    T* line = to + c * to_stride;
    if (low > least)
      for (Index i = 0; i < count; ++i) line[i] = line[i] > low ? line[i] : low;
    if (taps.any_outside)
      for (Index i = 0; i < count; ++i) line[i] = taps.weights[0][i] != 0 ? line[i] : zp;
  }
}

template <class T>
constexpr IntegerGridSums<T> sums() {
  using P = typename PreparedPixel<T>::Type;
  return {prepare<T, P>, plane<P>, pixels<P>, nearest<T>};
}

}  // namespace

extern const IntegerGridKernels kIntegerGridKernels;
const IntegerGridKernels kIntegerGridKernels = {taps, sums<std::int8_t>(), sums<std::int16_t>()};

}  // namespace tosaic::kernels::TOSAIC_ISA
