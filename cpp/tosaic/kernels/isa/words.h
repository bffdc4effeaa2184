// How 32-bit sums become elements of i16: the RESCALE of 48-bit sums with 16-bit multipliers, and CLAMPs,
// while the sums are in registers. The value is the sum plus a bias of 64 bits, so that
//
//   (value * multiplier + 2^(shift - 1)) >> shift = (sum * multiplier + added) >> shift
//
// with added = bias * multiplier + 2^(shift - 1), which WordTables has. Only files of kernels/isa/ include
// this header.
#pragma once

#include "tosaic/kernels/isa/rescale_vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

// Rescales vectors of sums. Their lanes are adjacent columns, the first of which is `column`.
class WordLanes {
 public:
  using Value = Vector<std::int32_t>;
  using Words = Vector<std::int16_t, kLanes<std::int32_t>>;

  [[gnu::always_inline]] WordLanes(const WordTables& t, std::int64_t column)
      : multiplier_(entries(t, t.multiplier, column)),
        shift_(entries(t, t.shift, column)),
        output_zp_(broadcast(t.output_zp)),
        min_(broadcast(t.min)),
        max_(broadcast(t.max)) {
    for (int half = 0; half < 2; ++half) added_[half] = load(t.added + column + half * kLanes<std::int64_t>);
  }

  // Stores the results of the first `count` lanes.
  [[gnu::always_inline]] void store_words(std::int16_t* to, Vector<std::uint32_t> sum,
                                          std::int64_t count) const {
    const Words words =
        __builtin_convertvector(clamp<std::int32_t>(scaled_sums((Value)sum) + output_zp_, min_, max_), Words);
    if (count >= kLanes<std::int32_t>) {
      __builtin_memcpy(to, &words, sizeof words);
      return;
    }
    std::int16_t lanes[kLanes<std::int32_t>];
    __builtin_memcpy(lanes, &words, sizeof words);
    for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
  }

 private:
  using Products = Vector<std::int64_t>;

  [[gnu::always_inline]] static Value entries(const WordTables& t, const std::int32_t* table,
                                              std::int64_t at) {
    return t.uniform ? broadcast(table[0]) : load(table + at);
  }

#if defined(__AVX2__)
  [[gnu::always_inline]] Value scaled_sums(Value sum) const {
    constexpr std::uint64_t kLow = 0xffffffff;
    const auto value = (W64)sum, multiplier = (W64)multiplier_, shift = (W64)shift_;
    const W64 even = shifted(product_of_low_halves(value, multiplier) + added_[0], shift & kLow);
    const W64 odd = shifted(product_of_low_halves(value >> 32, multiplier >> 32) + added_[1], shift >> 32);
    return (Value)((even & kLow) | (odd << 32));
  }
#elif defined(__aarch64__)
  [[gnu::always_inline]] Value scaled_sums(Value sum) const {
    const auto value = (int32x4_t)sum, multiplier = (int32x4_t)multiplier_, left = (int32x4_t)-shift_;
    const int64x2_t low = vmlal_s32((int64x2_t)added_[0], vget_low_s32(value), vget_low_s32(multiplier));
    const int64x2_t high = vmlal_high_s32((int64x2_t)added_[1], value, multiplier);
    return (Value)vcombine_s32(vmovn_s64(vshlq_s64(low, vmovl_s32(vget_low_s32(left)))),
                               vmovn_s64(vshlq_s64(high, vmovl_high_s32(left))));
  }
#else
  [[gnu::always_inline]] Value scaled_sums(Value sum) const {
    Value result;
    for (std::int64_t i = 0; i < kLanes<std::int32_t>; ++i) {
      const std::int64_t place = word_place(i, kLanes<std::int32_t>);
      const std::int64_t added = added_[place / kLanes<std::int64_t>][place % kLanes<std::int64_t>];
      result[i] = static_cast<std::int32_t>((std::int64_t{sum[i]} * multiplier_[i] + added) >> shift_[i]);
    }
    return result;
  }
#endif

  Value multiplier_, shift_;
  Products added_[2];
  Value output_zp_, min_, max_;
};

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
