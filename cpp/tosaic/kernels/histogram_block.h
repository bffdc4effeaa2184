// histogram_block: the loops of a histogram of f32 values: the bounds of a block, and the bin of each value.
//
// With the magnitude y = |x| * unit / 2^17 < 2048, the bins of one sign are
//
//   y     2^-11                32      64      65      66                  2047    2048
//   bin   | 0 ... 63 | ...     | 1024  | 1088  | 1089  | ...               | 3071  |
//         64 bins per power of two     one bin per unit: linear bins
//
// A place is bin * 2^17 + offset. The offset is the position in the bin, in units of 2^-17 of its width. It
// is exact. In a linear bin, y is at least 64, so an f32 has at most 17 bits below the unit. The number of
// any other bin consists of the upper bits of the f32, and the offset of its lower 17 bits.
#pragma once

#include <bit>
#include <cstdint>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/isa/each_set.h"

namespace tosaic::kernels {

inline constexpr int kOffsetBits = 17;
inline constexpr std::int32_t kBinsPerOctave = 64;  // also the first linear magnitude
inline constexpr std::int32_t kOctaves = 17;        // of bins below the linear ones
inline constexpr std::int32_t kMagnitudes = 2048;   // all magnitudes in bins are below this
inline constexpr std::int32_t kFirstLinearBin = kBinsPerOctave * kOctaves;
inline constexpr std::int32_t kBinsPerSign = kFirstLinearBin + kMagnitudes - kBinsPerOctave;
// Bins of positive values, then bins of negative values, then several bins of values too small for these,
// which are mostly zeros. A run of zeros is counted in these bins in turn, so that the additions do not
// depend on each other.
inline constexpr std::int32_t kFirstZeroBin = 2 * kBinsPerSign;
inline constexpr std::int32_t kZeroBins = 16;
inline constexpr std::int32_t kTableBins = kFirstZeroBin + kZeroBins;
inline constexpr std::int32_t kSlack = 16;

// Keys are ordered as their values are; the keys of NaN are beyond the keys of the infinities.
// key_of_bits() also converts a key back to the bits of its value.
[[nodiscard]] constexpr std::int32_t key_of_bits(std::int32_t bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
[[nodiscard]] constexpr std::int32_t float_key(float value) {
  return key_of_bits(std::bit_cast<std::int32_t>(value));
}
[[nodiscard]] constexpr float key_value(std::int32_t key) { return std::bit_cast<float>(key_of_bits(key)); }

struct KeyBounds {
  std::int32_t least = INT32_MAX;
  std::int32_t greatest = INT32_MIN;
};

struct HistogramKernels {
  // The least and the greatest key of a block.
  KeyBounds (*bounds)(const float* values, std::int64_t count) = nullptr;
  // The place of each value. `unit` is a power of two, and each |value| * unit is below 2048 * 2^17.
  void (*places)(const float* values, std::int64_t count, float unit, std::int32_t* places) = nullptr;
  // The places of the values that are not in a bin of zeros. Returns their number. `places` has room for
  // kSlack places more than values. Null for instruction sets for which places() is faster.
  std::int64_t (*nonzero_places)(const float* values, std::int64_t count, float unit,
                                 std::int32_t* places) = nullptr;
};

// The loops that were compiled for an instruction set.
[[nodiscard]] const HistogramKernels& histogram_kernels(Isa isa);

TOSAIC_IN_EACH_SET(extern const HistogramKernels kHistogramKernels;)

}  // namespace tosaic::kernels
