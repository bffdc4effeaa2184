// Loops of a histogram, written so that compilers vectorise them: integers, one multiplication by a power of
// two, and selections instead of branches.
//
// In many activations, half of the values are zeros. AVX-512 omits the places of zeros, because the time of
// counting is that of one store per place.
#include "tosaic/kernels/histogram_block.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using std::int32_t;
using std::int64_t;

KeyBounds bounds(const float* values, int64_t count) {
  int32_t least = INT32_MAX, greatest = INT32_MIN;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = __builtin_bit_cast(int32_t, values[i]);
    const int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
    least = key < least ? key : least;
    greatest = key > greatest ? key : greatest;
  }
  return {least, greatest};
}

constexpr int32_t kBin = 1 << kOffsetBits;
constexpr auto kFirstLinear = static_cast<float>(kBinsPerOctave * kBin);
// A linear place is the magnitude plus a constant. Other places are the magnitude's bits plus a constant.
constexpr int32_t kLinearShift = (kFirstLinearBin - kBinsPerOctave) * kBin;
constexpr int32_t kBitsShift = kFirstLinearBin * kBin - __builtin_bit_cast(int32_t, kFirstLinear);

void places(const float* values, int64_t count, float unit, int32_t* places) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = __builtin_bit_cast(int32_t, values[i]);
    const float magnitude = __builtin_bit_cast(float, bits & 0x7fffffff) * unit;
    const int32_t linear = static_cast<int32_t>(magnitude) + kLinearShift;
    const int32_t below = __builtin_bit_cast(int32_t, magnitude) + kBitsShift;
    const int32_t place = magnitude >= kFirstLinear ? linear : below;
    const int32_t signed_place = place + ((bits >> 31) & (kBinsPerSign * kBin));
    const int32_t zero = (kFirstZeroBin + (static_cast<int32_t>(i) & (kZeroBins - 1))) * kBin;
    places[i] = place < 0 ? zero : signed_place;
  }
}

#if defined(__AVX512F__)
// Like places(), but omits the places of zeros. Vector lanes beyond the last value are zeros.
int64_t nonzero_places(const float* values, int64_t count, float unit, int32_t* places) {
  const __m512 units = _mm512_set1_ps(unit), first_linear = _mm512_set1_ps(kFirstLinear);
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff),
                negative = _mm512_set1_epi32(kBinsPerSign * kBin);
  const __m512i linear_shift = _mm512_set1_epi32(kLinearShift), bits_shift = _mm512_set1_epi32(kBitsShift);
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const auto inside = static_cast<__mmask16>(count - i >= 16 ? 0xffffU : (1U << (count - i)) - 1);
    const __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(inside, values + i));
    const __m512 magnitude =
        _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(bits, magnitude_bits)), units);
    const __m512i linear = _mm512_add_epi32(_mm512_maskz_cvttps_epi32(0xffff, magnitude), linear_shift);
    const __m512i below = _mm512_add_epi32(_mm512_castps_si512(magnitude), bits_shift);
    const __mmask16 is_linear = _mm512_cmp_ps_mask(magnitude, first_linear, _CMP_GE_OQ);
    const __m512i place = _mm512_mask_blend_epi32(is_linear, below, linear);
    const __mmask16 is_found = _mm512_cmpge_epi32_mask(place, _mm512_setzero_si512());
    const __mmask16 is_negative = _mm512_movepi32_mask(bits);
    const __m512i signed_place = _mm512_mask_add_epi32(place, is_negative, place, negative);
    _mm512_storeu_si512(places + found, _mm512_maskz_compress_epi32(is_found, signed_place));
    found += __builtin_popcount(is_found);
  }
  return found;
}
#else
constexpr decltype(HistogramKernels::nonzero_places) nonzero_places = nullptr;
#endif

}  // namespace

const HistogramKernels kHistogramKernels{bounds, places, nonzero_places};

}  // namespace tosaic::kernels::TOSAIC_ISA
