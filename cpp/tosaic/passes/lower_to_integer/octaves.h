// octaves: knots whose distance grows with the magnitude. Each of the first 2^(bits + 1) magnitudes is a
// knot, and each octave above has 2^bits knots. Powers, logarithms, arc tangents and poles are interpolated
// between such knots.
//
//   magnitude m = a * 2^shift + rest,  a in [2^bits, 2^(bits + 1)) or shift 0
//   knot number   shift * 2^bits + a
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "tosaic/passes/lower_to_integer/integer_math.h"

namespace tosaic::passes {

class Octaves {
 public:
  // For magnitudes of at most 2^magnitude_bits, with 2^bits knots in each octave.
  Octaves(int bits, int magnitude_bits)
      : bits_(bits), most_shift_(magnitude_bits - bits), fraction_bits_(std::min(most_shift_, 15)) {}

  [[nodiscard]] int fraction_bits() const { return fraction_bits_; }
  [[nodiscard]] std::int64_t count() const { return (std::int64_t{most_shift_ + 1} << bits_) + 1; }
  [[nodiscard]] int shift_of(std::int64_t magnitude) const {
    return std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(magnitude))) - 1 - bits_);
  }
  // The number of a magnitude's knot, as a fixed-point number with fraction_bits(): between two knots, the
  // fraction is how far the magnitude is from the lower one.
  [[nodiscard]] std::int64_t position(std::int64_t magnitude) const {
    const int shift = shift_of(magnitude);
    const std::int64_t a = magnitude >> shift, rest = magnitude - (a << shift);
    const std::int64_t fraction = (rest << (most_shift_ - shift)) >> (most_shift_ - fraction_bits_);
    return (((std::int64_t{shift} << bits_) + a) << fraction_bits_) + fraction;
  }
  [[nodiscard]] std::int64_t magnitude(std::int64_t knot) const {
    const std::int64_t shift = std::max<std::int64_t>(0, (knot >> bits_) - 1);
    return (knot - (shift << bits_)) << shift;
  }
  // Emits position() for i32.
  [[nodiscard]] ValueId position(IntegerMath& math, ValueId magnitude) const {
    const ValueId shift = math.maximum(math.sub(31 - bits_, math.clz(magnitude)), 0);
    const ValueId a = math.right(magnitude, shift), rest = math.sub(magnitude, math.left(a, shift));
    const ValueId knot = math.add(math.left(shift, bits_), a);
    const ValueId fraction =
        math.right(math.left(rest, math.sub(most_shift_, shift)), most_shift_ - fraction_bits_);
    return math.add(math.left(knot, fraction_bits_), fraction);
  }
  // Emits position() of the magnitude of x, in i32. The positions of negative numbers come after all others.
  [[nodiscard]] ValueId signed_position(IntegerBuilder& build, ValueId x) const {
    IntegerMath math(build);
    const ValueId negative = build.binary(Op::kTosaGreater, math.number(x, 0), x);
    const ValueId first = build.elementwise(
        Op::kTosaSelect, NoAttrs{}, {negative, math.number(x, count() << fraction_bits_), math.number(x, 0)});
    return math.add(position(math, math.with_sign(x, negative)), first);
  }

 private:
  int bits_;
  int most_shift_;
  int fraction_bits_;
};

}  // namespace tosaic::passes
