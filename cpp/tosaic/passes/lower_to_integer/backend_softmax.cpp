// backend_softmax: softmax as CMSIS-NN's arm_softmax_s8 computes it, bit for bit.
//
//   x - max                at most 256 different integers, so exp is a table, computed at compile time
//   exp                    in units of 2^-31; 0 below -31 (5 integer bits)
//   sum                    of exp / 2^12
//   1 / sum                sum = (1 + f) * 2^e; three steps of Newton's method for 1 / (1 + f)
//   result                 exp * (1 / sum) in units of 1/256
//
// Every product is (a * b + 2^30) >> 31, which MUL with shift 31 computes. The library rounds halves of
// negative products up too.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/passes/lower_to_integer/backend_forms.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

constexpr int kIntegerBits = 5, kFractionBits = 31 - kIntegerBits, kSumBits = 12;
constexpr std::int64_t kOne = std::numeric_limits<std::int32_t>::max();  // 1, in units of 2^-31

std::int64_t times(std::int64_t a, std::int64_t b) { return (a * b + (std::int64_t{1} << 30)) >> 31; }

// a / 2^by, rounded half away from zero.
std::int64_t divided(std::int64_t a, int by) {
  const std::int64_t half = std::int64_t{1} << (by - 1);
  return (a + half - (a < 0 ? 1 : 0)) >> by;
}

// exp(x) in units of 2^-31, for x <= 0 in units of 2^-26: a polynomial over [-1/4, 0), then one factor
// exp(-2^(k - 2)) for each set bit k of the rest.
std::int64_t exp_of(std::int64_t x) {
  constexpr std::int64_t kQuarter = std::int64_t{1} << (kFractionBits - 2);
  constexpr std::int64_t kEighth = 1895147668;  // exp(-1/8)
  constexpr std::int64_t kThird = 715827883;
  constexpr std::int64_t kFactors[] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
  if (x == 0) return kOne;
  const std::int64_t within = (x & (kQuarter - 1)) - kQuarter, rest = within - x;
  const std::int64_t y = within * (1 << kIntegerBits) + (std::int64_t{1} << 28);  // from the centre -1/8
  const std::int64_t y2 = times(y, y);
  const std::int64_t higher = times(divided(times(y2, y2), 2) + times(y2, y), kThird);
  std::int64_t result = kEighth + times(kEighth, y + divided(higher + y2, 1));
  for (int k = 0; k < static_cast<int>(std::size(kFactors)); ++k)
    if ((rest >> (kFractionBits - 2 + k) & 1) != 0) result = times(result, kFactors[k]);
  return result;
}

// exp(d * scale) for d = -count + 1 .. 0.
std::vector<std::int64_t> exp_table(double scale, std::int64_t count) {
  const double units = std::min(scale * std::ldexp(1.0, kFractionBits), static_cast<double>(kOne));
  int shift = 0;
  auto multiplier = static_cast<std::int64_t>(std::nearbyint(std::ldexp(std::frexp(units, &shift), 31)));
  if (multiplier == std::int64_t{1} << 31) {
    multiplier /= 2;
    ++shift;
  }
  const double farthest = std::ldexp((1 << kIntegerBits) - 1, kFractionBits - shift);
  std::vector<std::int64_t> entries;
  for (std::int64_t d = 1 - count; d <= 0; ++d) {
    const bool is_near = static_cast<double>(-d) <= std::floor(farthest);
    entries.push_back(is_near ? exp_of(times(d * (std::int64_t{1} << std::max(shift, 0)), multiplier)) : 0);
  }
  return entries;
}

// 1 / (1 + f) in units of 2^-31, for 0 <= f < 1 in units of 2^-31.
ValueId reciprocal_of_one_plus(IntegerMath& m, ValueId f) {
  const ValueId half = m.add(m.right(f, 1), std::int64_t{1} << 30);             // (1 + f) / 2
  ValueId x = m.add(m.mul(half, m.number(half, -1010580540), 31), 1515870810);  // 48/17 - 32/17 * half
  for (int step = 0; step < 3; ++step) {
    const ValueId rest = m.sub(std::int64_t{1} << 29, m.mul(half, x, 31));
    x = m.add(x, m.left(m.mul(x, rest, 31), 2));
  }
  return x;  // in units of 2^-30
}

}  // namespace

std::optional<ScaledInteger> fixed_point_softmax(IntegerBuilder& build, const ScaledInteger& x,
                                                 std::int64_t axis) {
  constexpr std::int64_t kMostTerms = 4095;  // the sum of more terms of 2^19 may leave i32
  constexpr std::int64_t kFewTerms = 511;    // the sum of these is below 2^28, so that no shift is above 31
  const std::int64_t terms = build.type(x.id).shape[static_cast<std::size_t>(axis)];
  if (terms > kMostTerms || x.scale() < std::ldexp(1.0, -kFractionBits - 1)) return std::nullopt;
  IntegerMath m(build);
  const std::int64_t count = x.range.high - x.range.low + 1;
  const ValueId top = in_32_bits(build, m.max(x.id, axis));
  const ValueId below = m.sub(in_32_bits(build, x.id), top);
  const ValueId exps = m.lookup(m.add(below, count - 1), exp_table(x.scale(), count));
  const ValueId sum = m.sum(m.right(exps, kSumBits, true), axis);
  const ValueId headroom = m.clz(sum);
  const ValueId fraction = m.bits(m.left(sum, headroom), kOne);
  const ValueId half_reciprocal = reciprocal_of_one_plus(m, fraction);
  const std::int64_t most = (std::int64_t{1} << 30) - 1;
  const ValueId saturates = build.binary(Op::kTosaGreater, half_reciprocal, m.number(sum, most));
  const ValueId reciprocal =
      build.emit(Op::kTosaSelect, NoAttrs{}, {saturates, m.number(sum, kOne), m.left(half_reciprocal, 1)});
  ValueId product = m.mul(exps, reciprocal, 31);
  ValueId shift = m.sub(kSumBits + 23, headroom);
  if (terms >
      kFewTerms) {  // shifts above 31 take two steps; the first drops bits that do not decide the rounding
    product = m.right(product, m.maximum(m.add(shift, -31), 0));
    shift = m.minimum(shift, 31);
  }
  return ScaledInteger{m.right(product, shift, true), {1.0 / 256}, 0, {0, 256}};
}

}  // namespace tosaic::passes
