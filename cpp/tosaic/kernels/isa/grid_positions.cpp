// The taps of grid samples. This file is compiled without fused multiply-adds: see isa/grid_sample.h.
#include "tosaic/kernels/isa/grid_sample.h"
#include "tosaic/kernels/isa/vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;
using Floats = Vector<float>;
using Ints = Vector<std::int32_t>;
using Bits = Vector<std::uint32_t>;

// These comparisons compile to one instruction each. If x is NaN, the result is the bound.
[[gnu::always_inline]] inline Floats at_most(Floats x, float high) {
  const Floats bound = broadcast(high);
  return x < bound ? x : bound;
}
[[gnu::always_inline]] inline Floats at_least(Floats x, float low) {
  const Floats bound = broadcast(low);
  return bound < x ? x : bound;
}
[[gnu::always_inline]] inline Ints to_int(Floats x) { return __builtin_convertvector(x, Ints); }

// Floats of at least this magnitude have no fraction bits.
inline constexpr float kWhole = 8388608.0F;

// Rounds down. Infinities and NaN do not change.
[[gnu::always_inline]] inline Floats floor(Floats x) {
#if TOSAIC_VECTOR_BYTES == 64
  // GCC 12 warns about the form without a mask.
  return (Floats)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif defined(__AVX__)
  return (Floats)_mm256_floor_ps((__m256)x);
#else
  const Floats bounded = at_most(at_least(x, -kWhole), kWhole);
  const Floats near = __builtin_convertvector(to_int(bounded), Floats);
  return bounded == x ? (near > bounded ? near - 1.0F : near) : x;
#endif
}

struct Split {
  Floats whole, fraction;
};
[[gnu::always_inline]] inline Split split(Floats x) {
  const Floats whole = floor(x);
  return {whole, x - whole};
}

// Clips positions to the image. NaN becomes 0.
[[gnu::always_inline]] inline Floats clipped(Floats x, const GridAxis& axis) {
  return at_most(at_least(x, 0.0F), axis.last);
}

// False if a lane is NaN.
[[gnu::always_inline]] inline bool all_below(Floats x, float high) {
#if TOSAIC_VECTOR_BYTES == 64
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(high), _CMP_LT_OQ) == 0xffff;
#elif defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(high), _CMP_LT_OQ)) == 0xff;
#else
  const Ints below = x < broadcast(high);
  std::int32_t all = -1;
  for (Index i = 0; i < kLanes<float>; ++i) all &= below[i];
  return all != 0;
#endif
}

// Mirrors positions at the edges of the image until they are inside.
[[gnu::always_inline]] inline Floats reflected(Floats x, const GridAxis& axis) {
  if (axis.turn == 0) return x * 0.0F;
  Floats away = x - axis.low;
  away = away < 0.0F ? -away : away;
  // Most positions are less than a turn away: the slow division would return 0, and is skipped.
  Floats extra = away;
  if (!all_below(away, axis.turn)) extra -= floor(away / broadcast(axis.turn)) * axis.turn;
  const Floats rest = axis.turn - extra;
  return (extra < rest ? extra : rest) + axis.low;
}

template <GridPadding P>
[[gnu::always_inline]] inline Floats padded(Floats x, const GridAxis& axis) {
  if constexpr (P == GridPadding::kZeros) return x;
  if constexpr (P == GridPadding::kReflection) x = reflected(x, axis);
  return clipped(x, axis);
}

[[gnu::always_inline]] inline Floats unnormalized(Floats x, const GridAxis& axis) {
  const Floats scaled = (x + 1.0F) * axis.scale;
  return axis.shift == 0 ? scaled : scaled + axis.shift;
}

// True where a position, which is a whole number, is outside of the image.
[[gnu::always_inline]] inline Ints beside(Ints at, const GridAxis& axis) {
  return (at | (static_cast<std::int32_t>(axis.last) - at)) >> 31;  // the sign bit
}
// True where a position, which is a whole number without a sign, is a pixel.
[[gnu::always_inline]] inline Ints within(Ints at, const GridAxis& axis) {
  return (Ints)((Bits)at <= broadcast(static_cast<std::uint32_t>(axis.last)));
}

[[gnu::always_inline]] inline Ints place(Ints x, Ints y, const GridLayout& layout) {
  const Ints column = layout.x.stride == 1 ? x : x * layout.x.stride;
  return column + y * layout.y.stride + layout.origin;
}

// Whole positions as integers; positions outside of the image become -1 or last + 1.
[[gnu::always_inline]] inline Ints near_image(Floats whole, const GridAxis& axis) {
  return to_int(at_most(at_least(whole, -1.0F), axis.last + 1.0F));
}

[[gnu::always_inline]] inline bool any(Ints mask) {
  std::int32_t all = 0;
  for (Index i = 0; i < kLanes<std::int32_t>; ++i) all |= mask[i];
  return all != 0;
}

struct Position {
  Floats x, y;
};

template <GridPadding P>
[[gnu::always_inline]] inline void nearest(const GridLayout& layout, Position p, Index i, GridTaps& taps,
                                           Ints& outside) {
  // The sum with 1.5 * 2^23 has no fraction bits: it is rounded half to even, and its low bits are the
  // integer. Positions beyond 2^22 and NaN become integers that, without a sign, are beyond 2^22 too: outside
  // of the image.
  const auto rounded = [](Floats at) { return (Ints)((Bits)(at + 1.5F * kWhole) - 0x4B400000U); };
  Ints x = rounded(padded<P>(p.x, layout.x)), y = rounded(padded<P>(p.y, layout.y));
  if constexpr (P == GridPadding::kZeros) {
    const Ints inside = within(x, layout.x) & within(y, layout.y);
    x &= inside;
    y &= inside;
    store(taps.inside[0] + i, inside);
    outside |= ~inside;
  }
  store(taps.offsets[0] + i, place(x, y, layout));
}

[[gnu::always_inline]] inline void store_products(GridTaps& taps, Index i, Floats west, Floats east,
                                                  Floats north, Floats south) {
  store(taps.across[0] + i, west * north);
  store(taps.across[1] + i, east * north);
  store(taps.across[2] + i, west * south);
  store(taps.across[3] + i, east * south);
}

template <GridPadding P>
[[gnu::always_inline]] inline void bilinear(const GridLayout& layout, Position p, Index i, GridTaps& taps,
                                            Ints& outside) {
  const Split x = split(padded<P>(p.x, layout.x)), y = split(padded<P>(p.y, layout.y));
  const Floats west = 1.0F - x.fraction, north = 1.0F - y.fraction;
  if (layout.packed) {
    store_products(taps, i, west, x.fraction, north, y.fraction);
    const auto first = [](Floats whole, const GridAxis& axis) {  // far outside: both taps in the margin
      return to_int(at_most(at_least(whole, P == GridPadding::kZeros ? -2.0F : 0.0F), axis.last + 1.0F));
    };
    store(taps.offsets[0] + i, place(first(x.whole, layout.x), first(y.whole, layout.y), layout));
    return;
  }
  // Both pixels of a loaded pair are inside the image. At the left edge, the first one is the second tap; at
  // the right edge, the second one is the first tap; the other pixel does not count. With paddings other than
  // zeros, a tap is outside of the image only if its weight is zero.
  const Ints column = to_int(at_most(at_least(x.whole, -2.0F), layout.x.last + 1.0F));
  const Ints last = Ints{} + static_cast<std::int32_t>(layout.x.last) - 1;
  Ints start = column < 0 ? Ints{} : column;
  start = start > last ? last : start;
  const Ints shift = column - start;
  const Ints first_counts = (shift == 0) | (shift == -1), second_counts = (shift == 0) | (shift == 1);
  store_products(taps, i, shift == -1 ? x.fraction : west, shift == 1 ? west : x.fraction, north, y.fraction);
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k) {
    Ints row = near_image(y.whole + static_cast<float>(k), layout.y);
    const Ints row_counts = ~beside(row, layout.y);
    row = row_counts & row;
    store(taps.offsets[k] + i, place(start, row, layout));
    store(taps.inside[2 * k] + i, first_counts & row_counts);
    store(taps.inside[2 * k + 1] + i, second_counts & row_counts);
    outside |= ~(first_counts & second_counts & row_counts);
  }
}

// The weights of four taps by Keys' cubic kernel with a = -0.75. t is the distance from the second tap. Where
// `mirrored`, they are stored in reverse order.
[[gnu::always_inline]] inline void cubic_weights(Floats t, Ints mirrored, float (&weights)[4][kGridBlock],
                                                 Index i) {
  constexpr float a = -0.75F;
  const auto outer = [](Floats d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  const auto inner = [](Floats d) { return ((a + 2) * d - (a + 3)) * d * d + 1.0F; };
  const Floats made[4] = {outer(t + 1.0F), inner(t), inner(1.0F - t), outer(2.0F - t)};
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) store(weights[k] + i, mirrored ? made[3 - k] : made[k]);
}

// The first of the four pixels of a window, and whether the window is read from its end.
struct Window {
  Floats first;
  Ints mirrored;
};
template <GridPadding P>
[[gnu::always_inline]] inline Window window(Floats whole, const GridAxis& axis) {
  if constexpr (P != GridPadding::kReflection) return {whole - 1.0F, Ints{}};
  if (axis.turn == 0) return {Floats{}, Ints{}};  // one pixel, and a margin that is equal to it
  const Floats within = whole - floor(whole / broadcast(axis.turn)) * axis.turn;
  const Ints mirrored = within > axis.last;
  // Pixel i of the second half of a turn is pixel turn - i of the first half, or one less for low = -0.5.
  const Floats reverse = (axis.turn + 2.0F * axis.low - 2.0F) - within;
  return {mirrored ? reverse : within - 1.0F, mirrored};
}

template <GridPadding P>
[[gnu::always_inline]] inline void bicubic(const GridLayout& layout, Position p, Index i, GridTaps& taps,
                                           Ints& outside) {
  const Split x = split(p.x), y = split(p.y);
  if (layout.packed) {
    const auto first = [](Floats at, const GridAxis& axis) {
      return to_int(at_most(at_least(at, -4.0F), axis.last + 1.0F));
    };
    const Window columns = window<P>(x.whole, layout.x), rows = window<P>(y.whole, layout.y);
    cubic_weights(x.fraction, columns.mirrored, taps.across, i);
    cubic_weights(y.fraction, rows.mirrored, taps.down, i);
    store(taps.offsets[0] + i, place(first(columns.first, layout.x), first(rows.first, layout.y), layout));
    return;
  }
  cubic_weights(x.fraction, Ints{}, taps.across, i);
  cubic_weights(y.fraction, Ints{}, taps.down, i);
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const float step = static_cast<float>(k - 1);
    const auto along = [&](Floats whole, const GridAxis& axis) {
      const Ints at = near_image(padded<P>(whole + step, axis), axis);
      return beside(at, axis) ? Ints{} + kGridOutside : at * axis.stride;
    };
    const Ints column = along(x.whole, layout.x), row = along(y.whole, layout.y);
    store(taps.columns[k] + i, column);
    store(taps.rows[k] + i, row);
    outside |= (column < 0) | (row < 0);
  }
}

// 2 * kLanes adjacent floats.
struct Pairs {
  Floats low, high;
};
[[gnu::always_inline]] inline Floats every_second(const Pairs& pairs, int first) {
#if defined(__clang__)
  Floats made{};
  for (Index i = 0; i < kLanes<float>; ++i) {
    const Index at = 2 * i + first;
    made[i] = at < kLanes<float> ? pairs.low[at] : pairs.high[at - kLanes<float>];
  }
  return made;
#else
  Ints places{};
  for (std::int32_t i = 0; i < kLanes<float>; ++i) places[i] = 2 * i + first;
  return __builtin_shuffle(pairs.low, pairs.high, places);
#endif
}

template <ResizeMode M, GridPadding P>
void block_of(const GridLayout& layout, const float* grid, Index count, GridTaps& taps) {
  constexpr Index lanes = kLanes<float>;
  const GridLayout own = layout;  // the compiler cannot know that `taps` does not overlap it
  Ints outside{};
  for (Index i = 0; i < count; i += lanes) {
    const float* at = grid + 2 * i;
    const Index left = 2 * (count - i);
    const Pairs pairs = left >= 2 * lanes ? Pairs{load(at), load(at + lanes)}
                        : left > lanes    ? Pairs{load(at), load_first(at + lanes, left - lanes)}
                                          : Pairs{load_first(at, left), Floats{}};
    const Position p{unnormalized(every_second(pairs, 0), own.x),
                     unnormalized(every_second(pairs, 1), own.y)};
    Ints found{};
    if constexpr (M == ResizeMode::kNearest) nearest<P>(own, p, i, taps, found);
    if constexpr (M == ResizeMode::kBilinear) bilinear<P>(own, p, i, taps, found);
    if constexpr (M == ResizeMode::kBicubic) bicubic<P>(own, p, i, taps, found);
    outside |= found;
  }
  taps.any_outside = any(outside);
}

template <ResizeMode M>
void block(const GridLayout& layout, const float* grid, Index count, GridTaps& taps) {
  switch (layout.padding) {
    case GridPadding::kZeros:
      return block_of<M, GridPadding::kZeros>(layout, grid, count, taps);
    case GridPadding::kBorder:
      return block_of<M, GridPadding::kBorder>(layout, grid, count, taps);
    case GridPadding::kReflection:
      return block_of<M, GridPadding::kReflection>(layout, grid, count, taps);
  }
}

void positions(const GridLayout& layout, const float* grid, Index count, GridTaps& taps) {
  switch (layout.mode) {
    case ResizeMode::kNearest:
      return block<ResizeMode::kNearest>(layout, grid, count, taps);
    case ResizeMode::kBilinear:
      return block<ResizeMode::kBilinear>(layout, grid, count, taps);
    case ResizeMode::kBicubic:
      return block<ResizeMode::kBicubic>(layout, grid, count, taps);
  }
}

}  // namespace

extern const GridKernels kGridKernels;
const GridKernels kGridKernels = {positions};

}  // namespace tosaic::kernels::TOSAIC_ISA
