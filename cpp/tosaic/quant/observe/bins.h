// bins: what the numbers of a histogram mean.
#pragma once

#include <cmath>
#include <cstdint>

#include "tosaic/kernels/histogram_block.h"
#include "tosaic/quant/observe/observe.h"

namespace tosaic::quant {

// Values times this power of two are places in a histogram with this exponent.
[[nodiscard]] inline float unit_of(int exponent) {
  return std::ldexp(static_cast<float>(kernels::kMagnitudes << kernels::kOffsetBits), -exponent);
}

// The value of magnitude 1 in a histogram with this exponent: the width of a linear bin.
[[nodiscard]] inline double magnitude_unit(int exponent) {
  return std::ldexp(1.0 / kernels::kMagnitudes, exponent);
}

// The magnitudes of a bin other than the zero bin: low <= mean < high.
struct Magnitudes {
  double low = 0;
  double high = 0;
  double mean = 0;
};

[[nodiscard]] inline Magnitudes magnitudes_of(const Histogram::Bin& bin) {
  using namespace kernels;
  const std::int32_t number = std::abs(bin.place) - 1;
  double low = number - kFirstLinearBin + kBinsPerOctave, width = 1;
  if (number < kFirstLinearBin) {
    const int octave = number / kBinsPerOctave;
    width = std::ldexp(1.0, octave - kOctaves);
    low = width * (kBinsPerOctave + number % kBinsPerOctave);
  }
  const double offset =
      std::ldexp(static_cast<double>(bin.offsets) / static_cast<double>(bin.count), -kOffsetBits);
  return {low, low + width, low + width * offset};
}

}  // namespace tosaic::quant
