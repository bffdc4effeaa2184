// RESCALE on blocks, equal to apply_scale() of ir/apply_scale.h on every value for which it is defined.
//
// Products need 64 bits, so a vector of 32-bit values has two vectors of products: of its even lanes and of
// its odd lanes. The multiplication reads the low half of each 64-bit lane, so odd lanes are first shifted
// there. At the end, a shift and a bitwise or interleave the two vectors of results. AVX2 has only a logical
// shift of 64-bit lanes, so a bias of 2^63 makes the sums non-negative, and the shifted bias is subtracted
// after the shift.
#include "tosaic/kernels/isa/rescale.h"

#include "tosaic/kernels/isa/vector.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Index = std::int64_t;
using I32 = std::int32_t;
using I64 = std::int64_t;
using U64 = std::uint64_t;

[[gnu::always_inline]] inline I32 clamped(I64 value, I32 low, I32 high) {
  return value < low ? low : value > high ? high : static_cast<I32>(value);
}

template <class T>
void scale_one(const RescaleTables<T>& t, T value, I32* result, Index i) {
  const Index at = t.uniform ? 0 : i;
  const I64 shift = t.shift[at], moved = I64{value} - t.input_zp;
  I64 round = I64{1} << (shift - 1);
  if (t.double_round && shift > 31) round += moved >= 0 ? I64{1} << 30 : -(I64{1} << 30);
  result[i] = clamped(((moved * t.multiplier[at] + round) >> shift) + t.output_zp, t.min, t.max);
}

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

#if defined(__AVX2__)

using V32 = Vector<I32>;
using V64 = Vector<I64>;
using W64 = Vector<U64>;

// The products of the low halves of 64-bit lanes, as signed numbers.
[[gnu::always_inline]] inline V64 product_of_low_halves(W64 a, W64 b) {
#if defined(__AVX512F__)
  return (V64)_mm512_maskz_mul_epi32(0xff, (__m512i)a, (__m512i)b);  // GCC 12 warns about the unmasked one
#else
  return (V64)_mm256_mul_epi32((__m256i)a, (__m256i)b);
#endif
}

// An arithmetic right shift of each lane of `sum`.
[[gnu::always_inline]] inline W64 shifted(V64 sum, W64 shift) {
#if defined(__AVX512F__)
  return (W64)(sum >> (V64)shift);
#else
  const W64 bias = broadcast(U64{1} << 63);
  return (((W64)sum + bias) >> shift) - (bias >> shift);
#endif
}

template <bool kDouble>
[[gnu::always_inline]] inline W64 scaled(V64 product, W64 shift) {
  W64 sum = (W64)product + (broadcast(U64{1}) << (shift - 1));
  if constexpr (kDouble) {
    const W64 extra = (W64)(shift > 31) & (U64{1} << 30);
    const auto negative = (W64)(product < 0);  // sign of the value; a product of 0 becomes 0 with either sign
    sum += (extra ^ negative) - negative;
  }
  return shifted((V64)sum, shift);
}

// Reads a table element by element. If kUniform, the table has one entry, which is read once in advance: in
// the loop, the compiler could not rule out that a store to the results changes the entry.
template <bool kUniform, class T>
struct Entries {
  const T* table;
  Vector<T> only;
  explicit Entries(const T* from) : table(from), only(broadcast(from[0])) {}
  [[gnu::always_inline]] Vector<T> operator[](Index i) const { return kUniform ? only : load(table + i); }
};

// The zero points and bounds, each in all lanes of a vector.
struct Limits {
  V32 input_zp, output_zp, min, max;
};

template <bool kDouble>
[[gnu::always_inline]] inline V32 scale_vector(const Limits& limits, V32 value, V32 by, V32 shifts) {
  const auto moved = (W64)(value - limits.input_zp);
  const auto multiplier = (W64)by;
  const auto shift = (W64)shifts;
  constexpr U64 kLow = 0xffffffff;
  const W64 even = scaled<kDouble>(product_of_low_halves(moved, multiplier), shift & kLow);
  const W64 odd = scaled<kDouble>(product_of_low_halves(moved >> 32, multiplier >> 32), shift >> 32);
  const auto result = (V32)((even & kLow) | (odd << 32));
  return clamp<I32>(result + limits.output_zp, limits.min, limits.max);
}

template <bool kUniform, bool kDouble>
void scale_i32_of(const RescaleTables<I32>& t, const I32* values, I32* results, Index count) {
  constexpr Index kWidth = kLanes<I32>;
  const Limits limits{broadcast(t.input_zp), broadcast(t.output_zp), broadcast(t.min), broadcast(t.max)};
  const Entries<kUniform, I32> multiplier(t.multiplier), shift(t.shift);
  Index i = 0;
  for (; i + kWidth <= count; i += kWidth)
    store(results + i, scale_vector<kDouble>(limits, load(values + i), multiplier[i], shift[i]));
  if (i < count)
    store_first(results + i,
                scale_vector<kDouble>(limits, load_first(values + i, count - i), multiplier[i], shift[i]),
                count - i);
}

void scale_i32(const RescaleTables<I32>& t, const I32* values, I32* results, Index count) {
  if (t.uniform)
    return t.double_round ? scale_i32_of<true, true>(t, values, results, count)
                          : scale_i32_of<true, false>(t, values, results, count);
  return t.double_round ? scale_i32_of<false, true>(t, values, results, count)
                        : scale_i32_of<false, false>(t, values, results, count);
}

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
  for (; i < count; ++i) scale_one(t, values[i], results, i);
}

void scale_i64(const RescaleTables<I64>& t, const I64* values, I32* results, Index count) {
  return t.uniform ? scale_i64_of<true>(t, values, results, count)
                   : scale_i64_of<false>(t, values, results, count);
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

#else

template <class T>
void scale_all(const RescaleTables<T>& t, const T* values, I32* results, Index count) {
  const RescaleTables<T> tables = t;
  for (Index i = 0; i < count; ++i) scale_one(tables, values[i], results, i);
}

void scale_i32(const RescaleTables<I32>& t, const I32* values, I32* results, Index count) {
  scale_all(t, values, results, count);
}

void scale_i64(const RescaleTables<I64>& t, const I64* values, I32* results, Index count) {
  scale_all(t, values, results, count);
}

template <class T>
bool inside(const RescaleTables<T>& t, const T* values, Index count) {
  return inside_from(t, values, 0, count);
}

#endif

}  // namespace

extern const RescaleKernels<I32> kRescaleI32;
const RescaleKernels<I32> kRescaleI32 = {inside<I32>, scale_i32};
extern const RescaleKernels<I64> kRescaleI64;
const RescaleKernels<I64> kRescaleI64 = {inside<I64>, scale_i64};

}  // namespace tosaic::kernels::TOSAIC_ISA
