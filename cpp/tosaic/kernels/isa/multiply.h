// One step of a contraction: a vector of the right operand times an element of the left one (or times a pair
// or four of them) is added to a vector of sums. Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/widen.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

// The factor of the vectors of B in a step: an element of A or, for int16, a pair of elements in every lane.
template <class T>
[[gnu::always_inline]] inline T left_at(const T* a) {
  return *a;
}
[[gnu::always_inline]] inline Vector<std::int32_t> left_at(const std::int16_t* a) {
  std::int32_t pair;
  __builtin_memcpy(&pair, a, sizeof pair);
  return broadcast(pair);
}

[[gnu::always_inline]] inline Vector<std::int32_t> left_at(const std::int8_t* a) {
  std::int32_t quad;
  __builtin_memcpy(&quad, a, sizeof quad);
  return broadcast(quad);
}

[[gnu::always_inline]] inline void add_product(Vector<float>& sum, Vector<float> right, float left) {
  sum += right * left;
}
[[gnu::always_inline]] inline void add_product(Vector<float>& sum, Vector<float> right, Vector<float> left) {
  sum += right * left;
}
[[gnu::always_inline]] inline void add_product(Vector<double>& sum, Vector<double> right, double left) {
  sum += right * left;
}
[[gnu::always_inline]] inline void add_product(Vector<double>& sum, Vector<double> right,
                                               Vector<double> left) {
  sum += right * left;
}

// sum[i] += right[2i] * left[2i] + right[2i + 1] * left[2i + 1], with factors of 16 bits, modulo 2^32.
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int16_t> right,
                                               Vector<std::int32_t> left) {
  using Words = Vector<std::uint32_t>;
#if defined(__AVX512VNNI__)
  sum = (Words)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)right, (__m512i)left);
#elif defined(__AVX512BW__)
  sum += (Words)_mm512_madd_epi16((__m512i)right, (__m512i)left);
#elif defined(__AVX2__)
  sum += (Words)_mm256_madd_epi16((__m256i)right, (__m256i)left);
#elif defined(__SSE2__)
  sum += (Words)_mm_madd_epi16((__m128i)right, (__m128i)left);
#else
  const auto low = [](Words pairs) { return (Words)((Vector<std::int32_t>)(pairs << 16) >> 16); };
  const auto high = [](Words pairs) { return (Words)((Vector<std::int32_t>)pairs >> 16); };
  sum += low((Words)right) * low((Words)left) + high((Words)right) * high((Words)left);
#endif
}

#if defined(__AVX512VNNI__)
// sum[i] += the four products of right[4i + k], with sign, and left[4i + k], without sign, modulo 2^32.
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int8_t> right,
                                               Vector<std::int32_t> left) {
  sum = (Vector<std::uint32_t>)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)left, (__m512i)right);
}
#endif

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
