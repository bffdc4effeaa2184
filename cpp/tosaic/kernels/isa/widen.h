// Loads narrow integers into vectors of wider ones. Only files of kernels/isa/ include this header.
//
// Whole vectors are widened by intrinsics. __builtin_convertvector is slower in GCC 12, which widens the
// halves of a vector separately, and widens elements one by one if they become four times as wide.
#pragma once

#include "tosaic/kernels/isa/vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

// Loads kCount adjacent elements and widens them: i8 to i16, or i16 to i32.
template <class From, class T, std::int64_t kCount>
struct Widened {
  using Narrow [[gnu::vector_size(kCount * sizeof(From))]] = From;
  using Wide [[gnu::vector_size(kCount * sizeof(T))]] = T;
  [[gnu::always_inline]] static Wide load(const From* at) {
    Narrow narrow;
    __builtin_memcpy(&narrow, at, sizeof narrow);
#if TOSAIC_VECTOR_BYTES == 64
    if constexpr (sizeof(Wide) == 64)
      return sizeof(From) == 1 ? (Wide)_mm512_maskz_cvtepi8_epi16(~__mmask32{0}, (__m256i)narrow)
                               : (Wide)_mm512_maskz_cvtepi16_epi32(0xffff, (__m256i)narrow);
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(Wide) == 32)
      return sizeof(From) == 1 ? (Wide)_mm256_cvtepi8_epi16((__m128i)narrow)
                               : (Wide)_mm256_cvtepi16_epi32((__m128i)narrow);
#endif
    return __builtin_convertvector(narrow, Wide);
  }
};

// Loads a vector of elements, widened to 32 bits.
[[gnu::always_inline]] inline Vector<std::int32_t> load_widened(const std::int8_t* at) {
#if TOSAIC_VECTOR_BYTES == 64
  __m128i narrow;
  __builtin_memcpy(&narrow, at, sizeof narrow);
  return (Vector<std::int32_t>)_mm512_maskz_cvtepi8_epi32(0xffff, narrow);
#elif defined(__AVX2__)
  std::int64_t narrow;
  __builtin_memcpy(&narrow, at, sizeof narrow);
  return (Vector<std::int32_t>)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(narrow));
#elif defined(__SSE2__)
  std::int32_t narrow;
  __builtin_memcpy(&narrow, at, sizeof narrow);
  const __m128i bytes = _mm_cvtsi32_si128(narrow), words = _mm_unpacklo_epi8(bytes, bytes);
  return (Vector<std::int32_t>)_mm_srai_epi32(_mm_unpacklo_epi16(words, words), 24);
#elif defined(__aarch64__)
  using Bytes = Vector<std::int8_t, 8>;
  std::int32_t narrow;
  __builtin_memcpy(&narrow, at, sizeof narrow);
  const int16x8_t words = vmovl_s8((int8x8_t)(Bytes)Vector<std::int32_t, 2>{narrow, 0});
  return (Vector<std::int32_t>)vmovl_s16(vget_low_s16(words));
#else
  Vector<std::int32_t> wide;
  for (std::int64_t i = 0; i < kLanes<std::int32_t>; ++i) wide[i] = at[i];
  return wide;
#endif
}
[[gnu::always_inline]] inline Vector<std::int32_t> load_widened(const std::int16_t* at) {
  return Widened<std::int16_t, std::int32_t, kLanes<std::int32_t>>::load(at);
}

// Does the same as load_widened() for the first `count` elements; the other lanes are zero.
template <class T>
[[gnu::always_inline]] inline Vector<std::int32_t> load_widened_first(const T* at, std::int64_t count) {
  T lanes[kLanes<std::int32_t>] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = at[i];
  return load_widened(lanes);
}

// The first `count` bytes, 0 <= count <= kLanes; the other lanes are zero.
[[gnu::always_inline]] inline Vector<std::int8_t> load_bytes(const std::int8_t* at, std::int64_t count) {
#if TOSAIC_VECTOR_BYTES == 64
  const auto mask = count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
  return (Vector<std::int8_t>)_mm512_maskz_loadu_epi8(mask, at);
#else
  return load_first(at, count);
#endif
}

// Stores the first `count` bytes, 0 <= count <= kLanes.
[[gnu::always_inline]] inline void store_bytes(std::int8_t* at, Vector<std::int8_t> bytes,
                                               std::int64_t count) {
#if TOSAIC_VECTOR_BYTES == 64
  const auto mask = count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
  _mm512_mask_storeu_epi8(at, mask, (__m512i)bytes);
#else
  store_first(at, bytes, count);
#endif
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
