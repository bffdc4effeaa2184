#include "tosaic/passes/lower_to_integer/whole_numbers.h"

#include <algorithm>
#include <cmath>

#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rule_result.h"

namespace tosaic::passes {
namespace {

// A number in a unit of 2^-n, with n as large as 30 bits allow. For numbers below 1/8, n is above 31.
struct Binary {
  ScaledInteger scaled;
  int bits;  // n, at most 31: a right shift by 31 leaves only the sign
  // The distance, in units, that the number may have from torch's f32. A number within this distance of a
  // step counts as being at the step.
  std::int64_t near;
};

Binary in_binary(IntegerBuilder& build, const ScaledInteger& x) {
  const double size = static_cast<double>(x.magnitude()) * x.scale();
  const int bits = std::max(28 - (size == 0 ? 0 : std::ilogb(size)), 0);
  const double unit = std::ldexp(1.0, -bits);
  ScaledInteger fine = rescaled(build, x, DType::kI32, unit);
  const double error = std::max(fine.error, std::ldexp(size, -25));
  const auto near = static_cast<std::int64_t>(std::min(error, 0.25) / unit);
  return {std::move(fine), std::min(bits, 31), near};
}

}  // namespace

ScaledInteger in_whole_numbers(IntegerBuilder& build, const ScaledInteger& x, Op op) {
  // If x may reach 2^30, in a unit of at least 1, x is returned: its integers are off by more than their
  // distance from whole numbers.
  if (static_cast<double>(x.magnitude()) * x.scale() >= 0x1p30) {
    if (x.scale() < 1) throw NoIntegerForm("its operand has too many bits");
    return x;
  }
  IntegerMath m(build);
  const auto [fine, bits, near] = in_binary(build, x);
  const std::int64_t most = (fine.magnitude() >> bits) + 1;
  const auto floor = [&](ValueId id) { return m.right(id, bits); };
  ValueId made;
  if (op == Op::kFloor) {
    made = floor(m.add(fine.id, near));
  } else if (op == Op::kCeil) {
    made = m.sub(0, floor(m.sub(near, fine.id)));
  } else if (op == Op::kRound) {  // half to even: near a half, up if the integer below is odd
    made = fine.id;
    if (bits > 0) {
      const ValueId odd = m.bits(floor(made), 1);
      const ValueId up = near == 0 ? odd : build.binary(Op::kTosaMul, odd, m.number(odd, 2 * near + 1));
      made = floor(m.add(m.add(made, (std::int64_t{1} << (bits - 1)) - 1 - near), up));
    }
  } else {
    const ValueId negative = build.binary(Op::kTosaGreater, m.number(fine.id, 0), fine.id);
    made = m.with_sign(floor(m.add(build.emit(Op::kTosaAbs, NoAttrs{}, {fine.id}), near)), negative);
  }
  return {made, {1.0}, 0, {-most, most}};
}

}  // namespace tosaic::passes
