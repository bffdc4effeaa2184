// One step of a contraction: a vector of the right operand times an element of the left one (or times a pair
// or four of them) is added to a vector of sums. Only files of kernels/isa/ include this header.
#pragma once

#include "tosaic/kernels/isa/gemm.h"
#include "tosaic/kernels/isa/widen.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

// The instructions that add products of quads of bytes, or of pairs of 16-bit integers, to sums. For vectors
// of 32 bytes, they exist in two encodings.
#if TOSAIC_VECTOR_BYTES == 64 && defined(__AVX512VNNI__)
#define TOSAIC_ADD_QUADS _mm512_dpbusd_epi32
#define TOSAIC_ADD_PAIRS _mm512_dpwssd_epi32
#elif TOSAIC_VECTOR_BYTES == 32 && defined(__AVXVNNI__)
#define TOSAIC_ADD_QUADS _mm256_dpbusd_avx_epi32
#define TOSAIC_ADD_PAIRS _mm256_dpwssd_avx_epi32
#elif TOSAIC_VECTOR_BYTES == 32 && defined(__AVX512VNNI__)
#define TOSAIC_ADD_QUADS _mm256_dpbusd_epi32
#define TOSAIC_ADD_PAIRS _mm256_dpwssd_epi32
#endif
#if TOSAIC_VECTOR_BYTES == 64
using IntegerRegister = __m512i;
#elif TOSAIC_VECTOR_BYTES == 32
using IntegerRegister = __m256i;
#elif defined(__SSE2__)
using IntegerRegister = __m128i;
#endif

// An estimate of GemmKernels::multiply_add. It assumes that one instruction multiplies and adds a vector, and
// that a core executes 4.5e9 such instructions per second.
template <class T>
constexpr double multiply_add_time() {
  return 1 / (4.5 * kLanes<Partial<T>> * Arithmetic<T>::kStep);
}

// The factor of the vectors of B in a step: an element of A or, for integers, a pair or quad of elements. Arm
// has instructions that multiply a vector by lane 0 of another one; the other sets have the elements in every
// lane.
template <class T>
[[gnu::always_inline]] inline T left_at(const T* a) {
  return *a;
}
#if defined(__aarch64__)
using PairFactor = int16x4_t;
using QuadFactor = int8x8_t;
#else
using PairFactor = Vector<std::int32_t>;
using QuadFactor = Vector<std::int32_t>;
#endif
[[gnu::always_inline]] inline auto step_factor(const void* a) {
  std::int32_t elements;
  __builtin_memcpy(&elements, a, sizeof elements);
#if defined(__aarch64__)
  return Vector<std::int32_t, 2>{elements, 0};
#else
  return broadcast(elements);
#endif
}
[[gnu::always_inline]] inline PairFactor left_at(const std::int16_t* a) { return (PairFactor)step_factor(a); }
[[gnu::always_inline]] inline QuadFactor left_at(const std::int8_t* a) { return (QuadFactor)step_factor(a); }

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

// The place, in a step of a panel, of element `k` of the pair of column `column`. On x86 the two elements are
// adjacent. Arm cannot add adjacent products, so they are in two half vectors.
[[gnu::always_inline]] constexpr std::int64_t pair_place(std::int64_t column, std::int64_t k) {
#if defined(__aarch64__)
  constexpr std::int64_t lanes = kLanes<std::uint32_t>;
  return column / lanes * 2 * lanes + k * lanes + column % lanes;
#else
  return 2 * column + k;
#endif
}

#if defined(__aarch64__)

// sum[i] += right[i] * left[0] + right[i + 4] * left[1], with factors of 16 bits, modulo 2^32.
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int16_t> right,
                                               PairFactor left) {
  const int32x4_t first = vmlal_lane_s16((int32x4_t)sum, vget_low_s16((int16x8_t)right), left, 0);
  sum = (Vector<std::uint32_t>)vmlal_high_lane_s16(first, (int16x8_t)right, left, 1);
}

#else

// sum[i] += right[2i] * left[2i] + right[2i + 1] * left[2i + 1], with factors of 16 bits, modulo 2^32.
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int16_t> right,
                                               Vector<std::int32_t> left) {
  using Words = Vector<std::uint32_t>;
#if defined(TOSAIC_ADD_PAIRS)
  sum = (Words)TOSAIC_ADD_PAIRS((IntegerRegister)sum, (IntegerRegister)right, (IntegerRegister)left);
#elif TOSAIC_VECTOR_BYTES == 64
  sum += (Words)_mm512_madd_epi16((IntegerRegister)right, (IntegerRegister)left);
#elif defined(__AVX2__)
  sum += (Words)_mm256_madd_epi16((IntegerRegister)right, (IntegerRegister)left);
#elif defined(__SSE2__)
  sum += (Words)_mm_madd_epi16((IntegerRegister)right, (IntegerRegister)left);
#else
  const auto low = [](Words pairs) { return (Words)((Vector<std::int32_t>)(pairs << 16) >> 16); };
  const auto high = [](Words pairs) { return (Words)((Vector<std::int32_t>)pairs >> 16); };
  sum += low((Words)right) * low((Words)left) + high((Words)right) * high((Words)left);
#endif
}

#endif

// One tap of a depthwise convolution: sum[i] += weight[i] * left[i]. Weights of 16 bits belong to pairs whose
// second weight is zero, and only the low 16 bits of the lanes of `left` are multiplied.
template <class S, class W, class L>
[[gnu::always_inline]] inline void add_tap(S& sum, W weight, L left) {
  add_product(sum, weight, left);
}
#if defined(__aarch64__)
[[gnu::always_inline]] inline void add_tap(Vector<std::uint32_t>& sum, Vector<std::int16_t> weight,
                                           Vector<std::int32_t> left) {
  sum = (Vector<std::uint32_t>)vmlal_s16((int32x4_t)sum, vmovn_s32((int32x4_t)weight),
                                         vmovn_s32((int32x4_t)left));
}
#endif

#if defined(TOSAIC_ADD_QUADS)
// sum[i] += the four products of right[4i + k], with sign, and left[4i + k], without sign, modulo 2^32.
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int8_t> right,
                                               Vector<std::int32_t> left) {
  sum = (Vector<std::uint32_t>)TOSAIC_ADD_QUADS((IntegerRegister)sum, (IntegerRegister)left,
                                                (IntegerRegister)right);
}
#elif TOSAIC_VECTOR_BYTES == 32
// Without VNNI, no instruction multiplies quads. This widens bytes 0 and 2 of each quad to a pair of words
// and multiplies them, and then bytes 1 and 3.
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int8_t> right,
                                               Vector<std::int32_t> left) {
  using Words = Vector<std::int16_t>;
  add_product(sum, ((Words)right << 8) >> 8, left & 0x00ff00ff);
  add_product(sum, (Words)right >> 8, (Vector<std::int32_t>)((Vector<std::uint16_t>)left >> 8));
}
#elif defined(__ARM_FEATURE_DOTPROD)
// For k from 0 to 3: sum[i] += right[4i + k] * left[4i + k], both with sign, modulo 2^32.
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int8_t> right,
                                               Vector<std::int32_t> left) {
  sum = (Vector<std::uint32_t>)vdotq_s32((int32x4_t)sum, (int8x16_t)right, (int8x16_t)left);
}
[[gnu::always_inline]] inline void add_product(Vector<std::uint32_t>& sum, Vector<std::int8_t> right,
                                               QuadFactor left) {
  sum = (Vector<std::uint32_t>)vdotq_lane_s32((int32x4_t)sum, (int8x16_t)right, left, 0);
}
#endif

#if defined(__AVX2__) && TOSAIC_VECTOR_BYTES == 32
// Like add_product() for quads. The sums of the first two and of the last two products of a quad must fit 16
// bits, as with CappedQuads.
[[gnu::always_inline]] inline void add_capped_product(Vector<std::uint32_t>& sum, Vector<std::int8_t> right,
                                                      Vector<std::int32_t> left) {
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)left, (__m256i)right);
  sum += (Vector<std::uint32_t>)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Adds the product of two rows of eight bytes, `left`, and two columns of eight bytes, `right`, row by row.
[[gnu::always_inline]] inline void add_matrix_product(Vector<std::uint32_t>& sum, Vector<std::int8_t> right,
                                                      Vector<std::int8_t> left) {
  sum = (Vector<std::uint32_t>)vmmlaq_s32((int32x4_t)sum, (int8x16_t)left, (int8x16_t)right);
}
#endif

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
