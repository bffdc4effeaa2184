// Arithmetic on arrays of i32 for the rules of composites: sums whose terms have 30 bits, positive numbers as
// mantissa and exponent, and functions by straight lines between the entries of a table.
#pragma once

#include <functional>

#include "tosaic/passes/integer_lowering.h"

namespace tosaic::passes {

class IntegerMath {
 public:
  explicit IntegerMath(IntegerLowering& l) : l_(l) {}

  [[nodiscard]] ValueId number(ValueId like, std::int64_t value) const {
    return l_.number(value, l_.type(like).rank());
  }
  ValueId add(ValueId a, ValueId b) { return l_.binary(Op::kTosaAdd, a, b); }
  ValueId add(ValueId a, std::int64_t b) { return b == 0 ? a : add(a, number(a, b)); }
  ValueId sub(ValueId a, ValueId b) { return l_.binary(Op::kTosaSub, a, b); }
  ValueId sub(std::int64_t a, ValueId b) { return sub(number(b, a), b); }
  ValueId maximum(ValueId a, std::int64_t b) { return l_.binary(Op::kTosaMaximum, a, number(a, b)); }
  ValueId minimum(ValueId a, std::int64_t b) { return l_.binary(Op::kTosaMinimum, a, number(a, b)); }
  ValueId bits(ValueId a, std::int64_t mask) { return l_.binary(Op::kTosaBitwiseAnd, a, number(a, mask)); }
  // (a * b + 2^(shift - 1)) >> shift, the product in 64 bits; the result has to fit.
  ValueId mul(ValueId a, ValueId b, int shift);
  ValueId left(ValueId a, ValueId by) { return l_.binary(Op::kTosaLogicalLeftShift, a, by); }
  ValueId left(ValueId a, std::int64_t by) { return by == 0 ? a : left(a, number(a, by)); }
  // Floor of a / 2^by, or half up.
  ValueId right(ValueId a, ValueId by, bool round = false);
  ValueId right(ValueId a, std::int64_t by, bool round = false) {
    return by == 0 ? a : right(a, number(a, by), round);
  }
  ValueId clz(ValueId a) { return l_.emit(Op::kTosaClz, NoAttrs{}, {a}); }
  ValueId sum(ValueId a, std::int64_t axis) { return l_.emit(Op::kTosaReduceSum, AxisAttrs{axis}, {a}); }
  ValueId max(ValueId a, std::int64_t axis) {
    return l_.emit(Op::kTosaReduceMax, TosaAxisNanAttrs{axis, NanMode::kPropagate}, {a});
  }

  // entries[index], elementwise; index i32 in [0, size).
  ValueId lookup(ValueId index, const std::vector<std::int64_t>& entries, DType dtype = DType::kI32);

  // The sum along an axis of `count` numbers in [0, 2^30], divided by 2^bits_to(count): at most 2^30. Many
  // are summed by halves of 15 bits, so that rounding happens once.
  ValueId sum30(ValueId a, std::int64_t axis, std::int64_t count);
  // The sum of numbers of either sign within 30 bits, divided by 2^fewer, which has to leave it as many.
  ValueId sum_less(ValueId a, std::int64_t axis, std::int64_t count, int fewer);

  // A function by straight lines between its values at 0, 1, 2 ..; `at` has that many bits behind the point.
  ValueId on_lines(ValueId at, int fraction_bits, const std::vector<std::int64_t>& knots);

  // exp of numbers that are not positive, in units of 2^-30. Few different ones are tabulated; of others, the
  // powers of two within an octave are, and shifted.
  static constexpr int kExpBits = 30;
  ValueId exp30(const Real& d);

  // v = mantissa / 2^shift with the mantissa in [2^30, 2^31), or with an even shift in [2^29, 2^31); v >= 1.
  struct Scaled {
    ValueId mantissa, shift;
  };
  Scaled normalized(ValueId v, bool even = false);

  // f(mantissa), by straight lines over steps of 2^-11 (even: 2^-10) of the least one: within h^2 / 8 times
  // the second derivative, of a reciprocal 2^-24 of it, of a logarithm 2^-25, of 1 / sqrt (even) 2^-23.
  using Function = std::function<double(double)>;
  ValueId of_mantissa(ValueId mantissa, const Function& f, bool even = false);

 private:
  IntegerLowering& l_;
};

}  // namespace tosaic::passes
