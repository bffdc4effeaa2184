// RESCALE of vectors, equal to apply_scale() of ir/apply_scale.h on every value for which it is defined. Only
// files of kernels/isa/ include this header.
//
// Products need 64 bits, so a vector of 32-bit values has two vectors of products: of its even lanes and of
// its odd lanes. The multiplication reads the low half of each 64-bit lane, so odd lanes are first shifted
// there. At the end, the two vectors of results are interleaved. AVX2 has only a logical shift of 64-bit
// lanes, so a bias of 2^63 makes the sums non-negative, and the shifted bias is subtracted after the shift.
//
// NEON multiplies the low and the high half of a vector, and rounds while it shifts.
//
// If a shift is at least 33, the low half of the product cannot change the result: the constant that rounds
// is a multiple of 2^32. Then only the high halves are rounded and shifted, as 32-bit lanes.
#pragma once

#include "tosaic/kernels/isa/rescale.h"
#include "tosaic/kernels/isa/vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX2__) || defined(__aarch64__)
#define TOSAIC_RESCALES_VECTORS 1
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

[[gnu::always_inline]] inline std::int32_t clamped(std::int64_t value, std::int32_t low, std::int32_t high) {
  return value < low ? low : value > high ? high : static_cast<std::int32_t>(value);
}

template <class T>
[[gnu::always_inline]] inline std::int32_t scaled_one(const RescaleTables<T>& t, T value, std::int64_t i) {
  const std::int64_t at = t.uniform ? 0 : i;
  const std::int64_t shift = t.shift[at], moved = std::int64_t{value} - t.input_zp;
  std::int64_t round = std::int64_t{1} << (shift - 1);
  if (t.double_round && shift > 31) round += moved >= 0 ? std::int64_t{1} << 30 : -(std::int64_t{1} << 30);
  return clamped(((moved * t.multiplier[at] + round) >> shift) + t.output_zp, t.min, t.max);
}

#if defined(TOSAIC_RESCALES_VECTORS)

using V32 = Vector<std::int32_t>;
using V64 = Vector<std::int64_t>;
using W64 = Vector<std::uint64_t>;

// Reads a table element by element. If kUniform, the table has one entry, which is read once in advance: in
// the loop, the compiler could not rule out that a store to the results changes the entry.
template <bool kUniform, class T>
struct Entries {
  const T* table;
  Vector<T> only;
  explicit Entries(const T* from) : table(from), only(broadcast(from[0])) {}
  [[gnu::always_inline]] Vector<T> operator[](std::int64_t i) const {
    return kUniform ? only : load(table + i);
  }
};

enum class RescaleWay {
  kSingle,  // any shifts, single rounding
  kDouble,  // any shifts, double rounding
  kHigh,    // shifts of at least 33, single rounding
  kLeft,    // only shifts to the left: RescaleTables::shifts
  kRight    // only shifts to the right
};

#if defined(__AVX2__)

// The products of the low halves of 64-bit lanes, as signed numbers.
[[gnu::always_inline]] inline V64 product_of_low_halves(W64 a, W64 b) {
#if TOSAIC_VECTOR_BYTES == 64
  return (V64)_mm512_maskz_mul_epi32(0xff, (__m512i)a, (__m512i)b);  // GCC 12 warns about the unmasked one
#else
  return (V64)_mm256_mul_epi32((__m256i)a, (__m256i)b);
#endif
}

// An arithmetic right shift of each lane of `sum`.
[[gnu::always_inline]] inline W64 shifted(V64 sum, W64 shift) {
#if TOSAIC_VECTOR_BYTES == 64
  return (W64)(sum >> (V64)shift);
#else
  const W64 bias = broadcast(std::uint64_t{1} << 63);
  return (((W64)sum + bias) >> shift) - (bias >> shift);
#endif
}

template <bool kDouble>
[[gnu::always_inline]] inline W64 scaled(V64 product, W64 shift) {
  W64 sum = (W64)product + (broadcast(std::uint64_t{1}) << (shift - 1));
  if constexpr (kDouble) {
    const W64 extra = (W64)(shift > 31) & (std::uint64_t{1} << 30);
    const auto negative = (W64)(product < 0);  // sign of the value; a product of 0 becomes 0 with either sign
    sum += (extra ^ negative) - negative;
  }
  return shifted((V64)sum, shift);
}

// The high halves of the products of the odd lanes, and of the even lanes at their places.
[[gnu::always_inline]] inline V32 high_halves_of(V64 even, V64 odd) {
#if TOSAIC_VECTOR_BYTES == 64
  return (V32)_mm512_mask_shuffle_epi32((__m512i)odd, 0x5555, (__m512i)even, _MM_PERM_DDBB);
#else
  return (V32)_mm256_blend_epi32(_mm256_srli_epi64((__m256i)even, 32), (__m256i)odd, 0xaa);
#endif
}

// The multiplier and the shift of each lane, in the form in which rescale_vector() reads them.
template <RescaleWay kWay>
struct LaneScale {
  W64 even, odd;  // multipliers
  V32 shift, round{};
  [[gnu::always_inline]] LaneScale(V32 multiplier, V32 shifts)
      : even((W64)multiplier), odd((W64)multiplier >> 32), shift(shifts) {
    if constexpr (kWay == RescaleWay::kHigh) {
      shift = shifts - 32;
      round = (V32{} + 1) << (shifts - 33);
    }
  }
};

// The low halves of `even` have the values of the even lanes, the low halves of `odd` the values of the odd
// lanes.
[[gnu::always_inline]] inline V32 rescale_halves(W64 even, W64 odd, const LaneScale<RescaleWay::kHigh>& by) {
  const V32 high = high_halves_of(product_of_low_halves(even, by.even), product_of_low_halves(odd, by.odd));
  return (high + by.round) >> by.shift;
}

// (value * multiplier + rounding) >> shift
template <RescaleWay kWay>
[[gnu::always_inline]] inline V32 rescale_vector(V32 value, const LaneScale<kWay>& by) {
  if constexpr (kWay == RescaleWay::kHigh) {
    return rescale_halves((W64)value, (W64)value >> 32, by);
  } else {
    const V64 even = product_of_low_halves((W64)value, by.even);
    const V64 odd = product_of_low_halves((W64)value >> 32, by.odd);
    constexpr bool kDouble = kWay == RescaleWay::kDouble;
    constexpr std::uint64_t kLow = 0xffffffff;
    const auto shift = (W64)by.shift;
    const W64 low = scaled<kDouble>(even, shift & kLow), high = scaled<kDouble>(odd, shift >> 32);
    return (V32)((low & kLow) | (high << 32));
  }
}

#else

template <RescaleWay kWay>
struct LaneScale {
  V32 multiplier, left;  // `left`: minus the shift, since NEON shifts by variables to the left
  [[gnu::always_inline]] LaneScale(V32 factors, V32 shifts)
      : multiplier(factors), left(kWay == RescaleWay::kHigh ? 32 - shifts : -shifts) {}
};

// The low halves of two rounded and shifted products.
template <bool kDouble>
[[gnu::always_inline]] inline int32x2_t scaled(int64x2_t product, int64x2_t left) {
  if constexpr (kDouble) {
    const V64 extra = ((V64)left < -31) & (std::int64_t{1} << 30);
    const V64 negative = (V64)product < 0;  // sign of the value; a product of 0 becomes 0 with either sign
    product = (int64x2_t)((V64)product + ((extra ^ negative) - negative));
  }
  return vmovn_s64(vrshlq_s64(product, left));
}

// (value * multiplier + rounding) >> shift
template <RescaleWay kWay>
[[gnu::always_inline]] inline V32 rescale_vector(V32 value, const LaneScale<kWay>& by) {
  const auto v = (int32x4_t)value, m = (int32x4_t)by.multiplier, left = (int32x4_t)by.left;
  const int64x2_t low = vmull_s32(vget_low_s32(v), vget_low_s32(m)), high = vmull_high_s32(v, m);
  if constexpr (kWay == RescaleWay::kHigh) {
    const int32x4_t upper = vuzp2q_s32((int32x4_t)low, (int32x4_t)high);
    return (V32)vrshlq_s32(upper, left);
  } else {
    constexpr bool kDouble = kWay == RescaleWay::kDouble;
    return (V32)vcombine_s32(scaled<kDouble>(low, vmovl_s32(vget_low_s32(left))),
                             scaled<kDouble>(high, vmovl_high_s32(left)));
  }
}

#endif
#endif

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
