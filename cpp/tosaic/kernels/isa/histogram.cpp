// Loops of a histogram, written so that compilers vectorise them: integers, one multiplication by a power of
// two, and selections instead of branches.
#include "tosaic/kernels/histogram_block.h"

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

void places(const float* values, int64_t count, float unit, int32_t* places) {
  constexpr int32_t kBin = 1 << kOffsetBits;
  constexpr auto kFirstLinear = static_cast<float>(kBinsPerOctave * kBin);
  // A linear place is the magnitude itself. Below, a place is the bits of the magnitude. Both are shifted.
  constexpr int32_t kLinearShift = (kFirstLinearBin - kBinsPerOctave) * kBin;
  constexpr int32_t kBitsShift = kFirstLinearBin * kBin - __builtin_bit_cast(int32_t, kFirstLinear);
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

}  // namespace

const HistogramKernels kHistogramKernels{bounds, places};

}  // namespace tosaic::kernels::TOSAIC_ISA
