#include "tosaic/kernels/isa/integer_grid.h"

#include "tosaic/ir/integer_sampler.h"

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
  for (Index i = 0; i < count; ++i) {
    const std::int64_t q = bounded(grid[2 * i + axis], low, high) - zp;
    to[i] = static_cast<Int>((q * a.multiplier + a.round) >> a.shift) + a.centre;
  }
}

// Mirrors numbers with `bits` fractional bits until they are in the image.
[[gnu::always_inline]] inline Int reflected(Int x, const IntegerGridAxis& a, int bits) {
  if (a.period == 0) return 0;
  const Int shifted = x + (a.mirror << bits >> 1);
  const Int away = shifted < 0 ? -shifted : shifted, turn = a.period << bits;
  const Int extra = away < turn ? away : away % turn;
  return low_of(extra, turn - extra) - (a.mirror << bits >> 1);
}

template <GridPadding P>
[[gnu::always_inline]] inline Int padded(Int x, const IntegerGridAxis& a, int bits) {
  if constexpr (P == GridPadding::kZeros) return x;
  if constexpr (P == GridPadding::kReflection) x = reflected(x, a, bits);
  return bounded(x, 0, a.last << bits);
}

template <GridPadding P>
[[gnu::always_inline]] inline bool is_inside(Int whole, const IntegerGridAxis& a) {
  return P != GridPadding::kZeros || (whole >= 0 && whole <= a.last);
}

template <GridPadding P>
void nearest_line(const IntegerGridAxis& a, Index count, Line& line) {
  const Int half = (1 << (a.fraction - 1)) - 1;
  for (Index i = 0; i < count; ++i) {
    const Int x = padded<P>(line.at[i], a, a.fraction);
    line.whole[0][i] = (x + half + ((x >> a.fraction) & 1)) >> a.fraction;
  }
}

template <GridPadding P>
void bilinear_line(const IntegerGridAxis& a, int weight_bits, Index count, Line& line) {
  const Int mask = (1 << a.fraction) - 1;
  for (Index i = 0; i < count; ++i) {
    const Int x = padded<P>(line.at[i], a, a.fraction);
    line.whole[0][i] = x >> a.fraction;
    line.weight[0][i] = (x & mask) << (weight_bits - a.fraction);
  }
}

// The pixel of a tap of a bicubic sample. With reflection, whole positions are mirrored at -mirror / 2.
template <GridPadding P>
[[gnu::always_inline]] inline Int padded_pixel(Int x, const IntegerGridAxis& a) {
  if constexpr (P == GridPadding::kZeros) return x;
  if constexpr (P == GridPadding::kBorder) return bounded(x, 0, a.last);
  if (a.period == 0) return 0;
  const Int mirrored = -x - a.mirror, away = high_of(x, mirrored);
  const Int extra = away < a.period ? away : away % a.period;
  return low_of(extra, a.period - a.mirror - extra);
}

template <GridPadding P>
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
      const Int pixel = padded_pixel<P>(whole + k - 1, a);
      const bool inside = is_inside<P>(pixel, a);
      line.whole[k][i] = inside ? pixel : 0;
      line.weight[k][i] = inside ? weights[k] : 0;
    }
  }
}

template <GridPadding P>
void nearest_taps(const IntegerGridLayout& layout, Index count, Line (&lines)[2], IntegerTaps& taps) {
  const IntegerGridAxis x = layout.axes[0], y = layout.axes[1];
  nearest_line<P>(x, count, lines[0]);
  nearest_line<P>(y, count, lines[1]);
  for (Index i = 0; i < count; ++i) {
    const Int column = lines[0].whole[0][i], row = lines[1].whole[0][i];
    const bool inside = is_inside<P>(column, x) & is_inside<P>(row, y);
    taps.offsets[0][i] = inside ? column * x.stride + row * y.stride : 0;
    taps.weights[0][i] = inside ? 1 : 0;
  }
}

template <GridPadding P>
void bilinear_taps(const IntegerGridLayout& layout, Index count, Line (&lines)[2], IntegerTaps& taps) {
  const IntegerGridAxis x = layout.axes[0], y = layout.axes[1];
  const int bits = layout.weight_bits;
  bilinear_line<P>(x, bits, count, lines[0]);
  bilinear_line<P>(y, bits, count, lines[1]);
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
  bicubic_line<P>(x, count, lines[0]);
  bicubic_line<P>(y, count, lines[1]);
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

template <int kTaps, class T>
void sums_of(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const T* plane, Int* to,
             Index step) {
  const Int zp = layout.input_zp, low = layout.input_low;
  const int shift = layout.product_shift;
  for (Index i = 0; i < count; ++i) {
    Int sum = 0;
#pragma GCC unroll 16
    for (int k = 0; k < kTaps; ++k) {
      const Int v = high_of(plane[taps.offsets[k][i]], low) - zp, w = taps.weights[k][i];
      if constexpr (sizeof(T) == 1)
        sum += v * w;
      else
        sum += times(v, w, shift);
    }
    to[i * step] = sum;
  }
}

template <class T>
void sums(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const T* plane, Int* to,
          Index step) {
  if (layout.mode == ResizeMode::kBilinear)
    sums_of<4>(layout, taps, count, plane, to, step);
  else
    sums_of<16>(layout, taps, count, plane, to, step);
}

template <class T>
void nearest(const IntegerGridLayout& layout, const IntegerTaps& taps, Index count, const T* plane, T* to,
             Index step) {
  for (Index i = 0; i < count; ++i) {
    const Int v = high_of(plane[taps.offsets[0][i]], layout.input_low);
    to[i * step] = static_cast<T>(taps.weights[0][i] != 0 ? v : layout.input_zp);
  }
}

}  // namespace

extern const IntegerGridKernels kIntegerGridKernels;
const IntegerGridKernels kIntegerGridKernels = {taps, sums<std::int8_t>, sums<std::int16_t>,
                                                nearest<std::int8_t>, nearest<std::int16_t>};

}  // namespace tosaic::kernels::TOSAIC_ISA
