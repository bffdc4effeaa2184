// RESCALE of blocks. rescale_vector.h has the arithmetic.
#include "tosaic/kernels/isa/rescale.h"

#include <cstddef>

#include "tosaic/kernels/isa/masked.h"
#include "tosaic/kernels/isa/narrow.h"
#include "tosaic/kernels/isa/rescale_vector.h"

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
};

// Shifts by a number of bits, which the constructor reads once.
template <RescaleWay kWay>
struct VectorShift {
  V32 input_zp, output_zp, min, max;
  I32 bits;

  explicit VectorShift(const RescaleTables<I32>& t)
      : input_zp(broadcast(t.input_zp)),
        output_zp(broadcast(t.output_zp)),
        min(broadcast(t.min)),
        max(broadcast(t.max)),
        bits(kWay == RescaleWay::kLeft ? -t.right : t.right) {}

  // The bit below those that remain rounds.
  [[gnu::always_inline]] V32 unbounded(V32 value, Index) const {
    value -= input_zp;
    if constexpr (kWay == RescaleWay::kLeft) return value << bits;
    return (value >> bits) + ((value >> (bits - 1)) & 1);
  }
};

template <bool kUniform, RescaleWay kWay>
struct ScaleBy {
  using Type = VectorScale<kUniform, kWay>;
};
template <>
struct ScaleBy<true, RescaleWay::kLeft> {
  using Type = VectorShift<RescaleWay::kLeft>;
};
template <>
struct ScaleBy<true, RescaleWay::kRight> {
  using Type = VectorShift<RescaleWay::kRight>;
};

[[gnu::always_inline]] inline V32 loaded(const I32* at) { return load(at); }
template <class T>
[[gnu::always_inline]] inline V32 loaded(const T* at) {
  return load_widened(at);
}

// Stores whole vectors of results before their zero point and limits. kVectors of them are stored at a time.
template <class Result>
struct Storing {
  static constexpr Index kVectors = 1;
  const V32 output_zp, min, max;
  template <class Scale>
  explicit Storing(const RescaleTables<I32>&, const Scale& by)
      : output_zp(by.output_zp), min(by.min), max(by.max) {}
  template <class At>
  [[gnu::always_inline]] void operator()(Result* to, Index i, const At& at) const {
    const V32 value = clamp<I32>(at(i) + output_zp, min, max);
    if constexpr (sizeof(Result) == sizeof(I32)) {
      store(to, value);
    } else {
      const auto words = __builtin_convertvector(value, Vector<std::int16_t, kLanes<I32>>);
      __builtin_memcpy(to, &words, sizeof words);
    }
  }
};
template <>
struct Storing<std::int8_t> {
  static constexpr Index kVectors = 4;
  const ByteRange range;
  template <class Scale>
  explicit Storing(const RescaleTables<I32>& t, const Scale&) : range(t) {}
  template <class At>
  [[gnu::always_inline]] void operator()(std::int8_t* to, Index i, const At& at) const {
    constexpr Index kWidth = kLanes<I32>;
    const Register low = range.words(at(i), at(i + kWidth)),
                   high = range.words(at(i + 2 * kWidth), at(i + 3 * kWidth));
    store(to, (Vector<std::int8_t>)by_row(range.bytes(low, high)));
  }
};

// If kBounded, returns false if a value is outside of [low, high].
template <bool kUniform, RescaleWay kWay, bool kBounded, class T, class Result>
bool scale_of(const RescaleTables<I32>& t, I32 low, I32 high, const T* values, Result* results, Index count) {
  constexpr Index kWidth = kLanes<I32>;
  const typename ScaleBy<kUniform, kWay>::Type by(t);
  const Storing<Result> stores(t, by);
  constexpr Index kBlock = Storing<Result>::kVectors * kWidth;
  const V32 lowest = broadcast(low), highest = broadcast(high);
  V32 outside{};
  const auto compare = [&](V32 value) {
    if constexpr (kBounded) {
      const V32 moved = value - by.input_zp;
      outside |= (moved < lowest) | (moved > highest);
    }
  };
  const auto at = [&](Index i) {
    const V32 value = loaded(values + i);
    compare(value);
    return by.unbounded(value, i);
  };
  Index i = 0;
  for (; i + kBlock <= count; i += kBlock) stores(results + i, i, at);
  for (; i < count; i += kWidth) {
    const Index left = count - i < kWidth ? count - i : kWidth;
    const V32 value = load_part(values + i, left);
    // Lanes without an element are zero. A value of zero is always inside, since i32 has no zero point.
    compare(value);
    store_part(results + i, clamp<I32>(by.unbounded(value, i) + by.output_zp, by.min, by.max), left);
  }
  if constexpr (!kBounded) return true;
  I32 any = 0;
#pragma GCC unroll 16
  for (Index lane = 0; lane < kWidth; ++lane) any |= outside[lane];
  return any == 0;
}

template <bool kBounded, class T, class Result>
bool scale_by(const RescaleTables<I32>& t, I32 low, I32 high, const T* values, Result* results, Index count) {
  using enum RescaleWay;
  const auto scale = [&]<bool kUniform, RescaleWay kWay>() {
    return scale_of<kUniform, kWay, kBounded>(t, low, high, values, results, count);
  };
  if (t.shifts && t.right <= 0) return scale.template operator()<true, kLeft>();
  if (t.shifts) return scale.template operator()<true, kRight>();
  if (t.double_round)
    return t.uniform ? scale.template operator()<true, kDouble>()
                     : scale.template operator()<false, kDouble>();
  if (t.high_halves)
    return t.uniform ? scale.template operator()<true, kHigh>() : scale.template operator()<false, kHigh>();
  return t.uniform ? scale.template operator()<true, kSingle>() : scale.template operator()<false, kSingle>();
}

void scale_i32(const RescaleTables<I32>& t, const I32* values, I32* results, Index count) {
  scale_by<false>(t, 0, 0, values, results, count);
}

template <class T, class Result>
bool scale_direct(const RescaleTables<I32>& t, I32 low, I32 high, const void* values, void* results,
                  Index count) {
  const auto* from = static_cast<const T*>(values);
  auto* to = static_cast<Result*>(results);
  if constexpr (sizeof(T) == sizeof(I32))
    if (low != INT32_MIN || high != INT32_MAX) return scale_by<true>(t, low, high, from, to, count);
  return scale_by<false>(t, low, high, from, to, count);
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

using I8 = std::int8_t;
using I16 = std::int16_t;
constexpr RescaleKernels<I32> kScalesI32 = {
    .inside = inside<I32>,
    .scale = scale_i32,
    .direct = {{scale_direct<I8, I8>, scale_direct<I8, I16>, scale_direct<I8, I32>},
               {scale_direct<I16, I8>, scale_direct<I16, I16>, scale_direct<I16, I32>},
               {scale_direct<I32, I8>, scale_direct<I32, I16>, scale_direct<I32, I32>}}};

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
