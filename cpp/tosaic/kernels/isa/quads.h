// Quads of bytes: interleaves the bytes of four vectors. Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/widen.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using Bytes16 = Vector<std::int8_t, 16>;

// quads[v] has the elements 4v to 4v + 3 of row[0] to row[3], element by element.
[[gnu::always_inline]] inline void interleave(const Bytes16 (&row)[4], Bytes16 (&quads)[4]) {
  const Bytes16 a = __builtin_shufflevector(row[0], row[1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                            7, 23),
                b = __builtin_shufflevector(row[0], row[1], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                            30, 15, 31),
                c = __builtin_shufflevector(row[2], row[3], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                            7, 23),
                d = __builtin_shufflevector(row[2], row[3], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                            30, 15, 31);
  using Pairs16 = Vector<std::int16_t, 8>;
  const auto low = [](Bytes16 x, Bytes16 y) {
    return (Bytes16)__builtin_shufflevector((Pairs16)x, (Pairs16)y, 0, 8, 1, 9, 2, 10, 3, 11);
  };
  const auto high = [](Bytes16 x, Bytes16 y) {
    return (Bytes16)__builtin_shufflevector((Pairs16)x, (Pairs16)y, 4, 12, 5, 13, 6, 14, 7, 15);
  };
  quads[0] = low(a, c);
  quads[1] = high(a, c);
  quads[2] = low(b, d);
  quads[3] = high(b, d);
}

#if TOSAIC_VECTOR_BYTES == 32
// Interleaves each 16 bytes of the vectors in the same way.
[[gnu::always_inline]] inline void interleave(const Vector<std::int8_t> (&row)[4],
                                              Vector<std::int8_t> (&quads)[4]) {
  using Bytes = Vector<std::int8_t>;
  const auto x = [&](int i) { return (__m256i)row[i]; };
  const __m256i low_a = _mm256_unpacklo_epi8(x(0), x(1)), high_a = _mm256_unpackhi_epi8(x(0), x(1)),
                low_b = _mm256_unpacklo_epi8(x(2), x(3)), high_b = _mm256_unpackhi_epi8(x(2), x(3));
  quads[0] = (Bytes)_mm256_unpacklo_epi16(low_a, low_b);
  quads[1] = (Bytes)_mm256_unpackhi_epi16(low_a, low_b);
  quads[2] = (Bytes)_mm256_unpacklo_epi16(high_a, high_b);
  quads[3] = (Bytes)_mm256_unpackhi_epi16(high_a, high_b);
}
#elif TOSAIC_VECTOR_BYTES == 64
// Interleaves each 16 bytes of the vectors in the same way.
[[gnu::always_inline]] inline void interleave(const Vector<std::int8_t> (&row)[4],
                                              Vector<std::int8_t> (&quads)[4]) {
  using Bytes = Vector<std::int8_t>;
  const auto x = [&](int i) { return (__m512i)row[i]; };
  const __m512i low_a = _mm512_unpacklo_epi8(x(0), x(1)), high_a = _mm512_unpackhi_epi8(x(0), x(1)),
                low_b = _mm512_unpacklo_epi8(x(2), x(3)), high_b = _mm512_unpackhi_epi8(x(2), x(3));
  quads[0] = (Bytes)_mm512_unpacklo_epi16(low_a, low_b);
  quads[1] = (Bytes)_mm512_unpackhi_epi16(low_a, low_b);
  quads[2] = (Bytes)_mm512_unpacklo_epi16(high_a, high_b);
  quads[3] = (Bytes)_mm512_unpackhi_epi16(high_a, high_b);
}
#endif

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
