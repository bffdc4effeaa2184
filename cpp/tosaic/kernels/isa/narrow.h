// Narrows vectors of sums to bytes, with saturation. Only files of kernels/isa/ include this header.
//
// The instructions of x86 that narrow a whole register work on each 128 bits of it.
#pragma once

#include "tosaic/kernels/isa/rescale_vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

#if defined(TOSAIC_RESCALES_VECTORS)

// to_words() narrows 32 to 16 bits, to_bytes() 16 to 8 bits. add_words() adds with saturation. to_bytes()
// mixes the bytes of four vectors of sums; by_row() makes the bytes of each vector adjacent.
#if TOSAIC_VECTOR_BYTES == 64
using Register = __m512i;
[[gnu::always_inline]] inline Register to_words(V32 a, V32 b) {
  return _mm512_packs_epi32((Register)a, (Register)b);
}
[[gnu::always_inline]] inline Register to_bytes(Register a, Register b) { return _mm512_packs_epi16(a, b); }
[[gnu::always_inline]] inline Register add_words(Register a, Register b) { return _mm512_adds_epi16(a, b); }
[[gnu::always_inline]] inline Register limited(Register x, Register low, Register high) {
  return _mm512_max_epi8(_mm512_min_epi8(x, high), low);
}
[[gnu::always_inline]] inline Register by_row(Register x) {
  const Register order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_maskz_permutexvar_epi32(0xffff, order, x);
}
#elif defined(__AVX2__)
using Register = __m256i;
[[gnu::always_inline]] inline Register to_words(V32 a, V32 b) {
  return _mm256_packs_epi32((Register)a, (Register)b);
}
[[gnu::always_inline]] inline Register to_bytes(Register a, Register b) { return _mm256_packs_epi16(a, b); }
[[gnu::always_inline]] inline Register add_words(Register a, Register b) { return _mm256_adds_epi16(a, b); }
[[gnu::always_inline]] inline Register limited(Register x, Register low, Register high) {
  return _mm256_max_epi8(_mm256_min_epi8(x, high), low);
}
[[gnu::always_inline]] inline Register by_row(Register x) {
  return _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#else
using Register = Vector<std::int8_t>;
[[gnu::always_inline]] inline Register to_words(V32 a, V32 b) {
  return (Register)vqmovn_high_s32(vqmovn_s32((int32x4_t)a), (int32x4_t)b);
}
[[gnu::always_inline]] inline Register to_bytes(Register a, Register b) {
  return (Register)vqmovn_high_s16(vqmovn_s16((int16x8_t)a), (int16x8_t)b);
}
[[gnu::always_inline]] inline Register add_words(Register a, Register b) {
  return (Register)vqaddq_s16((int16x8_t)a, (int16x8_t)b);
}
[[gnu::always_inline]] inline Register limited(Register x, Register low, Register high) {
  return clamp<std::int8_t>(x, low, high);
}
[[gnu::always_inline]] inline Register by_row(Register x) { return x; }
#endif

// The zero point and the limits of elements of i8.
struct ByteRange {
  Register output_zp, low, high;

  [[gnu::always_inline]] explicit ByteRange(const RescaleTables<std::int32_t>& t)
      : output_zp((Register)broadcast(static_cast<std::int16_t>(t.output_zp))),
        low((Register)broadcast(static_cast<std::int8_t>(t.min))),
        high((Register)broadcast(static_cast<std::int8_t>(t.max))) {}

  // Saturation of 32 to 16 bits, of the sum with the zero point, and of 16 to 8 bits gives the same byte as
  // one saturation of the exact sum.
  [[gnu::always_inline]] Register words(V32 a, V32 b) const { return add_words(to_words(a, b), output_zp); }
  [[gnu::always_inline]] Register bytes(Register first, Register second) const {
    return limited(to_bytes(first, second), low, high);
  }
};

#endif

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
