// Loads and stores the first lanes of vectors of i32: the ends of rows. Only files of kernels/isa/ include
// this header.
//
// Sets with masks need no copies. The others go through memory, like load_first() and store_first().
#pragma once

#include "tosaic/kernels/isa/widen.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

#if TOSAIC_VECTOR_BYTES == 64

[[gnu::always_inline]] inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1U << count) - 1U);
}

// The first `count` elements, 0 <= count <= 16, as i32; the other lanes are zero.
[[gnu::always_inline]] inline Vector<std::int32_t> load_part(const std::int32_t* at, std::int64_t count) {
  return (Vector<std::int32_t>)_mm512_maskz_loadu_epi32(first_lanes(count), at);
}
[[gnu::always_inline]] inline Vector<std::int32_t> load_part(const std::int16_t* at, std::int64_t count) {
  return (Vector<std::int32_t>)_mm512_maskz_cvtepi16_epi32(0xffff,
                                                           _mm256_maskz_loadu_epi16(first_lanes(count), at));
}
[[gnu::always_inline]] inline Vector<std::int32_t> load_part(const std::int8_t* at, std::int64_t count) {
  return (Vector<std::int32_t>)_mm512_maskz_cvtepi8_epi32(0xffff,
                                                          _mm_maskz_loadu_epi8(first_lanes(count), at));
}

// Stores the low bits of the first `count` lanes.
[[gnu::always_inline]] inline void store_part(std::int32_t* at, Vector<std::int32_t> value,
                                              std::int64_t count) {
  _mm512_mask_storeu_epi32(at, first_lanes(count), (__m512i)value);
}
[[gnu::always_inline]] inline void store_part(std::int16_t* at, Vector<std::int32_t> value,
                                              std::int64_t count) {
  _mm512_mask_cvtepi32_storeu_epi16(at, first_lanes(count), (__m512i)value);
}
[[gnu::always_inline]] inline void store_part(std::int8_t* at, Vector<std::int32_t> value,
                                              std::int64_t count) {
  _mm512_mask_cvtepi32_storeu_epi8(at, first_lanes(count), (__m512i)value);
}

#else

[[gnu::always_inline]] inline Vector<std::int32_t> load_part(const std::int32_t* at, std::int64_t count) {
  return load_first(at, count);
}
template <class T>
[[gnu::always_inline]] inline Vector<std::int32_t> load_part(const T* at, std::int64_t count) {
  return load_widened_first(at, count);
}

[[gnu::always_inline]] inline void store_part(std::int32_t* at, Vector<std::int32_t> value,
                                              std::int64_t count) {
  store_first(at, value, count);
}
template <class T>
[[gnu::always_inline]] inline void store_part(T* at, Vector<std::int32_t> value, std::int64_t count) {
  std::int32_t lanes[kLanes<std::int32_t>];
  store(lanes, value);
  for (std::int64_t i = 0; i < count; ++i) at[i] = static_cast<T>(lanes[i]);
}

#endif

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
