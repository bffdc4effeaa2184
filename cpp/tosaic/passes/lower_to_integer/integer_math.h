// integer_math: emits i32 arithmetic for the rules of lower-to-integer. It has sums of terms of 30 bits,
// positive numbers as mantissa and exponent, and linear interpolation between the entries of a table.
#pragma once

#include <functional>

#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

class IntegerMath {
 public:
  explicit IntegerMath(IntegerBuilder& build) : build_(build) {}

  [[nodiscard]] ValueId number(ValueId like, std::int64_t value) const {
    return build_.number(value, build_.type(like).rank());
  }
  ValueId add(ValueId a, ValueId b) { return build_.binary(Op::kTosaAdd, a, b); }
  ValueId add(ValueId a, std::int64_t b) { return b == 0 ? a : add(a, number(a, b)); }
  ValueId sub(ValueId a, ValueId b) { return build_.binary(Op::kTosaSub, a, b); }
  ValueId sub(std::int64_t a, ValueId b) { return sub(number(b, a), b); }
  ValueId maximum(ValueId a, std::int64_t b) { return build_.binary(Op::kTosaMaximum, a, number(a, b)); }
  ValueId minimum(ValueId a, std::int64_t b) { return build_.binary(Op::kTosaMinimum, a, number(a, b)); }
  ValueId bits(ValueId a, std::int64_t mask) {
    return build_.binary(Op::kTosaBitwiseAnd, a, number(a, mask));
  }
  // (a * b + 2^(shift - 1)) >> shift, or a * b for shift 0. The product has 64 bits; the result must fit in
  // i32.
  ValueId mul(ValueId a, ValueId b, int shift);
  ValueId left(ValueId a, ValueId by) { return build_.binary(Op::kTosaLogicalLeftShift, a, by); }
  ValueId left(ValueId a, std::int64_t by) { return by == 0 ? a : left(a, number(a, by)); }
  // a / 2^by, rounded down; with `round`, rounded half up.
  ValueId right(ValueId a, ValueId by, bool round = false);
  ValueId right(ValueId a, std::int64_t by, bool round = false) {
    return by == 0 ? a : right(a, number(a, by), round);
  }
  ValueId clz(ValueId a) { return build_.emit(Op::kTosaClz, NoAttrs{}, {a}); }
  ValueId sum(ValueId a, std::int64_t axis) { return build_.emit(Op::kTosaReduceSum, AxisAttrs{axis}, {a}); }
  ValueId max(ValueId a, std::int64_t axis) {
    return build_.emit(Op::kTosaReduceMax, TosaAxisNanAttrs{axis, NanMode::kPropagate}, {a});
  }
  ValueId min(ValueId a, std::int64_t axis) {
    return build_.emit(Op::kTosaReduceMin, TosaAxisNanAttrs{axis, NanMode::kPropagate}, {a});
  }
  ValueId abs(ValueId a) { return build_.emit(Op::kTosaAbs, NoAttrs{}, {a}); }

  // entries[index], elementwise. Each index is in [0, entries.size()).
  ValueId lookup(ValueId index, const std::vector<std::int64_t>& entries, DType dtype = DType::kI32);

  // The sum along `axis`, of extent `count`, of numbers in [0, 2^30], divided by 2^bits_to(count). It is at
  // most 2^30. Long sums add the upper and the lower 15 bits of the terms separately, so that only the total
  // is rounded.
  ValueId sum30(ValueId a, std::int64_t axis, std::int64_t count);
  // The sum as above, but of numbers of either sign and at most 30 bits, and divided by 2^fewer. `fewer` must
  // be large enough for the result to have at most 30 bits.
  ValueId sum_less(ValueId a, std::int64_t axis, std::int64_t count, int fewer);

  // Linear interpolation: knots[k] is the function at k = 0, 1, 2, .. and `at` is a fixed-point position with
  // `fraction_bits` fractional bits.
  ValueId on_lines(ValueId at, int fraction_bits, const std::vector<std::int64_t>& knots);

  // exp(d) in units of 2^-30, for d <= 0 with zero point 0. If at most 256 different integers occur, a table
  // has an entry for each. Otherwise exp(d) = 2^o * 2^f with an integer o and 0 <= f < 1: 2^f is interpolated
  // in a table and shifted right by -o.
  static constexpr int kExpBits = 30;
  ValueId exp30(const ScaledInteger& d);

  // v = mantissa / 2^shift, for v >= 1. The mantissa is in [2^30, 2^31). With `even` the shift is even, and
  // the mantissa is in [2^29, 2^31).
  struct Scaled {
    ValueId mantissa, shift;
  };
  Scaled normalized(ValueId v, bool even = false);

  // x, clamped to at least one unit, as mantissa and shift. `most_shift` is the largest shift that can occur.
  struct Positive {
    Scaled scaled;
    int most_shift = 30;
  };
  Positive positive(const ScaledInteger& x, bool even = false);

  // -size where the mask `negative` is true, and size elsewhere. An invalid mask is false everywhere.
  ValueId with_sign(ValueId size, ValueId negative);

  // f(mantissa) by linear interpolation. The distance of the knots is 2^19, which is h times the least
  // mantissa, with h = 2^-11, or 2^-10 if `even`. The error is at most h^2 / 8 times the second derivative of
  // f. It is relative 2^-24 for a reciprocal, relative 2^-23 for 1 / sqrt (with `even`), and absolute 2^-25
  // for a logarithm.
  using Function = std::function<double(double)>;
  ValueId of_mantissa(ValueId mantissa, const Function& f, bool even = false);

 private:
  IntegerBuilder& build_;
};

}  // namespace tosaic::passes
