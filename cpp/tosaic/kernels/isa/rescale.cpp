// RESCALE of blocks. rescale_vector.h has the arithmetic.
#include "tosaic/kernels/isa/rescale.h"

#include <cstddef>

#include "tosaic/kernels/isa/narrow.h"
#include "tosaic/kernels/isa/rescale_vector.h"
#include "tosaic/kernels/isa/widen.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;
using I32 = std::int32_t;
using I64 = std::int64_t;

template <class T>
bool inside_from(const RescaleTables<T>& t, const T* values, Index begin, Index count) {
  bool inside = true;
  for (Index i = begin; i < count; ++i) {
    const Index at = t.uniform ? 0 : i;
    const I64 moved = I64{values[i]} - t.input_zp;
    inside &= moved >= t.low[at] && moved <= t.high[at];
  }
  return inside;
}

template <class T>
[[maybe_unused]] void scale_all(const RescaleTables<T>& t, const T* values, I32* results, Index count) {
  const RescaleTables<T> tables = t;
  for (Index i = 0; i < count; ++i) results[i] = scaled_one(tables, values[i], i);
}

#if defined(TOSAIC_RESCALES_VECTORS)

// RESCALE of vectors. unbounded() leaves out the zero point and the limits of the result.
template <bool kUniform, RescaleWay kWay>
struct VectorScale {
  V32 input_zp, output_zp, min, max;
  Entries<kUniform, I32> multiplier, shift;

  explicit VectorScale(const RescaleTables<I32>& t)
      : input_zp(broadcast(t.input_zp)),
        output_zp(broadcast(t.output_zp)),
        min(broadcast(t.min)),
        max(broadcast(t.max)),
        multiplier(t.multiplier),
        shift(t.shift) {}

  [[gnu::always_inline]] V32 unbounded(V32 value, Index i) const {
    return rescale_vector(value - input_zp, LaneScale<kWay>(multiplier[i], shift[i]));
  }
  [[gnu::always_inline]] V32 operator()(V32 value, Index i) const {
    return clamp<I32>(unbounded(value, i) + output_zp, min, max);
  }
};

// T is I32 or std::int8_t.
template <bool kUniform, RescaleWay kWay, class T>
void scale_of(const RescaleTables<I32>& t, const T* values, I32* results, Index count) {
  constexpr Index kWidth = kLanes<I32>;
  constexpr bool kBytes = sizeof(T) == 1;
  const VectorScale<kUniform, kWay> scaled(t);
  const auto loaded = [](const T* at) {
    if constexpr (kBytes)
      return load_widened(at);
    else
      return load(at);
  };
  const auto first = [](const T* at, Index number) {
    if constexpr (kBytes)
      return load_widened_first(at, number);
    else
      return load_first(at, number);
  };
  Index i = 0;
  for (; i + kWidth <= count; i += kWidth) store(results + i, scaled(loaded(values + i), i));
  if (i < count) store_first(results + i, scaled(first(values + i, count - i), i), count - i);
}

template <bool kUniform, RescaleWay kWay>
void scale_of(const RescaleTables<I32>& t, const I32* values, std::int8_t* results, Index count) {
  constexpr Index kWidth = kLanes<I32>, kBlock = 4 * kWidth;
  const VectorScale<kUniform, kWay> scaled(t);
  const ByteRange range(t);
  const auto at = [&](Index i) { return scaled.unbounded(load(values + i), i); };
  Index i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    const Register low = range.words(at(i), at(i + kWidth)),
                   high = range.words(at(i + 2 * kWidth), at(i + 3 * kWidth));
    store(results + i, (Vector<std::int8_t>)by_row(range.bytes(low, high)));
  }
  for (; i < count; i += kWidth) {
    const Index left = count - i < kWidth ? count - i : kWidth;
    const V32 words = scaled(load_first(values + i, left), i);
    I32 lanes[kWidth];
    store(lanes, words);
    for (Index k = 0; k < left; ++k) results[i + k] = static_cast<std::int8_t>(lanes[k]);
  }
}

template <bool kUniform, class T, class Result>
void scale_by(const RescaleTables<I32>& t, const T* values, Result* results, Index count) {
  if (t.double_round) return scale_of<kUniform, RescaleWay::kDouble>(t, values, results, count);
  if (t.high_halves) return scale_of<kUniform, RescaleWay::kHigh>(t, values, results, count);
  return scale_of<kUniform, RescaleWay::kSingle>(t, values, results, count);
}

template <class T, class Result>
void scale_i32(const RescaleTables<I32>& t, const T* values, Result* results, Index count) {
  return t.uniform ? scale_by<true>(t, values, results, count) : scale_by<false>(t, values, results, count);
}

template <bool kUniform, class T>
bool inside_of(const RescaleTables<T>& t, const T* values, Index count) {
  constexpr Index kWidth = kLanes<T>;
  const Entries<kUniform, T> low(t.low), high(t.high);
  const Vector<T> input_zp = broadcast(t.input_zp);
  Vector<T> outside{};
  Index i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const Vector<T> value = load(values + i) - input_zp;
    outside |= (value < low[i]) | (value > high[i]);
  }
  T any = 0;
#pragma GCC unroll 16
  for (Index lane = 0; lane < kWidth; ++lane) any |= outside[lane];
  return any == 0 && inside_from(t, values, i, count);
}

template <class T>
bool inside(const RescaleTables<T>& t, const T* values, Index count) {
  return t.uniform ? inside_of<true>(t, values, count) : inside_of<false>(t, values, count);
}

constexpr RescaleKernels<I32> kScalesI32 = {inside<I32>, scale_i32<I32, I32>, nullptr,
                                            scale_i32<std::int8_t, I32>, scale_i32<I32, std::int8_t>};

#else

template <class T>
bool inside(const RescaleTables<T>& t, const T* values, Index count) {
  return inside_from(t, values, 0, count);
}

constexpr RescaleKernels<I32> kScalesI32 = {inside<I32>, scale_all<I32>};

#endif

#if defined(__AVX2__)

using Half = Vector<I32, kLanes<I64>>;

[[gnu::always_inline]] inline V64 widened(const I32* table) {
  return __builtin_convertvector(load<I32, kLanes<I64>>(table), V64);
}

template <bool kUniform>
void scale_i64_of(const RescaleTables<I64>& t, const I64* values, I32* results, Index count) {
  constexpr Index kWidth = kLanes<I64>;
  const V64 only_multiplier = broadcast(I64{t.multiplier[0]}), only_shift = broadcast(I64{t.shift[0]});
  const V64 input_zp = broadcast(t.input_zp);
  const Half output_zp = Half{} + t.output_zp, min = Half{} + t.min, max = Half{} + t.max;
  Index i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const V64 multiplier = kUniform ? only_multiplier : widened(t.multiplier + i);
    const V64 shift = kUniform ? only_shift : widened(t.shift + i);
    const W64 result = scaled<false>((load(values + i) - input_zp) * multiplier, (W64)shift);
    Half half = __builtin_convertvector(result, Half) + output_zp;
    half = half < min ? min : half;
    half = half > max ? max : half;
    __builtin_memcpy(results + i, &half, sizeof half);
  }
  for (; i < count; ++i) results[i] = scaled_one(t, values[i], i);
}

void scale_i64(const RescaleTables<I64>& t, const I64* values, I32* results, Index count) {
  return t.uniform ? scale_i64_of<true>(t, values, results, count)
                   : scale_i64_of<false>(t, values, results, count);
}

#if TOSAIC_VECTOR_BYTES == 64

[[gnu::always_inline]] inline Half lower(V32 x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
}
[[gnu::always_inline]] inline Half upper(V32 x) {
  return __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
}
[[gnu::always_inline]] inline V32 joined(Half low, Half high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// A vector of results as words, from two vectors of values.
template <bool kUniform>
bool scale_to_words_of(const RescaleTables<I64>& t, I64 low, I64 high, const I64* values,
                       std::int16_t* results, Index count) {
  constexpr Index kHalf = kLanes<I64>, kWidth = kLanes<I32>;
  using Words = Vector<std::int16_t, kWidth>;
  const Entries<kUniform, I32> multipliers(t.multiplier), shifts(t.shift);
  const V64 input_zp = broadcast(t.input_zp);
  const V32 output_zp = broadcast(t.output_zp), min = broadcast(t.min), max = broadcast(t.max);
  const V64 lowest = broadcast(low), highest = broadcast(high);
  V64 outside{};
  const auto half = [&](V64 value, Half multiplier, Half shift) {
    outside |= (value < lowest) | (value > highest);
    return __builtin_convertvector(scaled<false>(value * __builtin_convertvector(multiplier, V64),
                                                 (W64) __builtin_convertvector(shift, V64)),
                                   Half);
  };
  const auto words_at = [&](V64 first, V64 second, Index i) {
    const V32 multiplier = multipliers[i], shift = shifts[i];
    const Half low_half = half(first - input_zp, lower(multiplier), lower(shift));
    const Half high_half = half(second - input_zp, upper(multiplier), upper(shift));
    return __builtin_convertvector(clamp<I32>(joined(low_half, high_half) + output_zp, min, max), Words);
  };
  Index i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const Words words = words_at(load(values + i), load(values + i + kHalf), i);
    __builtin_memcpy(results + i, &words, sizeof words);
  }
  if (i < count) {
    const Index left = count - i, first = left < kHalf ? left : kHalf;
    const Words words = words_at(load_first(values + i, first),
                                 left > kHalf ? load_first(values + i + kHalf, left - kHalf) : input_zp, i);
    std::int16_t lanes[kWidth];
    __builtin_memcpy(lanes, &words, sizeof words);
    for (Index k = 0; k < left; ++k) results[i + k] = lanes[k];
  }
  I64 any = 0;
#pragma GCC unroll 8
  for (Index lane = 0; lane < kHalf; ++lane) any |= outside[lane];
  return any == 0;
}

bool scale_to_words(const RescaleTables<I64>& t, I64 low, I64 high, const I64* values, std::int16_t* results,
                    Index count) {
  return t.uniform ? scale_to_words_of<true>(t, low, high, values, results, count)
                   : scale_to_words_of<false>(t, low, high, values, results, count);
}

constexpr auto kScaleToWords = scale_to_words;

#else

constexpr std::nullptr_t kScaleToWords = nullptr;

#endif

#else  // NEON does not multiply 64-bit lanes

void scale_i64(const RescaleTables<I64>& t, const I64* values, I32* results, Index count) {
  scale_all(t, values, results, count);
}

constexpr std::nullptr_t kScaleToWords = nullptr;

#endif

}  // namespace

extern const RescaleKernels<I32> kRescaleI32;
const RescaleKernels<I32> kRescaleI32 = kScalesI32;
extern const RescaleKernels<I64> kRescaleI64;
const RescaleKernels<I64> kRescaleI64 = {inside<I64>, scale_i64, kScaleToWords};

}  // namespace tosaic::kernels::TOSAIC_ISA
