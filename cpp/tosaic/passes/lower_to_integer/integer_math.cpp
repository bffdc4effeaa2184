#include "tosaic/passes/lower_to_integer/integer_math.h"

#include <algorithm>
#include <cmath>

#include "tosaic/passes/lower_to_integer/rescaling.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kFewTerms = 256;     // up to this count, each term may be rounded to 22 of its 30 bits
constexpr std::int64_t kManyTerms = 65535;  // up to this count, the sum of halves of 15 bits fits in i32
constexpr int kHalfBits = 15;
constexpr double kLn2 = 0.69314718055994530942;

}  // namespace

ValueId IntegerMath::mul(ValueId a, ValueId b, int shift) {
  return build_.elementwise(Op::kTosaMul, TosaMulAttrs{shift}, {a, b});
}

ValueId IntegerMath::right(ValueId a, ValueId by, bool round) {
  return build_.emit(Op::kTosaArithmeticRightShift, TosaShiftAttrs{round}, {a, by});
}

ValueId IntegerMath::lookup(ValueId index, const std::vector<std::int64_t>& entries, DType dtype) {
  const Shape shape = build_.type(index).shape;
  const ValueId table = build_.constant(dtype, {static_cast<std::int64_t>(entries.size()), 1}, entries);
  const ValueId list = build_.reshape(index, {num_elements(shape)});
  return build_.reshape(build_.emit(Op::kEmbedding, NoAttrs{}, {table, list}), shape);
}

ValueId IntegerMath::sum30(ValueId a, std::int64_t axis, std::int64_t count) {
  return sum_less(a, axis, count, bits_to(count));
}

ValueId IntegerMath::sum_less(ValueId a, std::int64_t axis, std::int64_t count, int fewer) {
  if (count == 1) return right(a, fewer, true);
  if (fewer == 0) return sum(a, axis);
  if (count <= kFewTerms && fewer <= bits_to(kFewTerms)) return sum(right(a, fewer, true), axis);
  if (count > kManyTerms) {  // the sums of halves would not fit in i32
    const ValueId first = build_.emit(Op::kSlice, SliceAttrs{axis, 0, kManyTerms, 1}, {a});
    const ValueId rest = build_.emit(Op::kSlice, SliceAttrs{axis, kManyTerms, count, 1}, {a});
    return add(sum_less(first, axis, kManyTerms, fewer), sum_less(rest, axis, count - kManyTerms, fewer));
  }
  const std::int64_t mask = (std::int64_t{1} << kHalfBits) - 1;
  const ValueId upper = sum(right(a, kHalfBits), axis), lower = sum(bits(a, mask), axis);
  const ValueId carried = add(upper, right(lower, kHalfBits));
  if (fewer >= kHalfBits) return right(carried, fewer - kHalfBits);
  return add(left(carried, kHalfBits - fewer), right(bits(lower, mask), fewer));
}

ValueId IntegerMath::on_lines(ValueId at, int fraction_bits, const std::vector<std::int64_t>& knots) {
  std::vector<std::int64_t> rises;
  for (std::size_t k = 0; k < knots.size(); ++k)
    rises.push_back(k + 1 < knots.size() ? knots[k + 1] - knots[k] : 0);
  const Shape shape = build_.type(at).shape;
  const ValueId list = build_.reshape(at, {num_elements(shape)});
  const ValueId knot = right(list, fraction_bits);
  const ValueId from = lookup(knot, knots), rise = lookup(knot, rises);
  const ValueId behind = bits(list, (std::int64_t{1} << fraction_bits) - 1);
  return build_.reshape(add(from, mul(rise, behind, fraction_bits)), shape);
}

ValueId IntegerMath::exp30(const ScaledInteger& d) {
  constexpr std::int64_t kFew = 256;
  constexpr int kFraction = 24, kKnotBits = 10;
  constexpr std::int64_t kLeast = -31;  // 2^-31 is rounded to 0
  ScaledInteger near = d;
  if (-d.range.low >= kFew) {  // bound numbers whose exp is rounded to 0, so that few integers may remain
    const double least = std::ceil(-static_cast<double>(kLeast) * kLn2 / d.scale()) + 1;
    if (least < -static_cast<double>(d.range.low)) {
      near.range = {-static_cast<std::int64_t>(least), 0};
      near.id = build_.bounded(d.id, d.range, near.range);
    }
  }
  if (-near.range.low < kFew) {
    std::vector<std::int64_t> entries;
    for (std::int64_t q = near.range.low; q <= 0; ++q)
      entries.push_back(std::llround(std::ldexp(std::exp(static_cast<double>(q) * d.scale()), kExpBits)));
    return lookup(add(near.id, -near.range.low), entries);
  }
  ScaledInteger octaves = rescaled(build_, near, DType::kI32, std::ldexp(kLn2, -kFraction));
  octaves.id = build_.bounded(octaves.id, octaves.range, {kLeast * (std::int64_t{1} << kFraction), 0});
  std::vector<std::int64_t> knots;
  for (int k = 0; k <= 1 << kKnotBits; ++k)
    knots.push_back(std::llround(std::ldexp(std::exp2(std::ldexp(k, -kKnotBits)), kExpBits - 1)));
  const ValueId within = bits(octaves.id, (std::int64_t{1} << kFraction) - 1);
  const ValueId mantissa = on_lines(within, kFraction - kKnotBits, knots);  // in [2^29, 2^30)
  const ValueId shift = sub(0, right(octaves.id, kFraction));               // 0 .. 31
  return left(right(mantissa, shift, true), 1);
}

IntegerMath::Scaled IntegerMath::normalized(ValueId v, bool even) {
  ValueId shift = add(clz(v), -1);
  if (even) shift = bits(shift, 30);
  return {left(v, shift), shift};
}

IntegerMath::Positive IntegerMath::positive(const ScaledInteger& x, bool even) {
  const std::int64_t least = std::max<std::int64_t>(x.range.low, 1);
  const ValueId v = x.range.low >= 1 ? x.id : maximum(x.id, 1);
  int most = 30;
  while (most > 0 && (least >> (31 - most)) != 0) --most;  // clz(least) - 1
  return {normalized(v, even), even ? most & ~1 : most};
}

ValueId IntegerMath::with_sign(ValueId size, ValueId negative) {
  if (!negative.valid()) return size;
  return build_.elementwise(Op::kTosaSelect, NoAttrs{}, {negative, sub(0, size), size});
}

ValueId IntegerMath::of_mantissa(ValueId mantissa, const Function& f, bool even) {
  constexpr int kFraction = 19;
  const std::int64_t least = std::int64_t{1} << (even ? 29 : 30);
  std::vector<std::int64_t> knots;
  for (std::int64_t at = least; at <= std::int64_t{1} << 31; at += std::int64_t{1} << kFraction)
    knots.push_back(std::llround(f(static_cast<double>(at))));
  return on_lines(add(mantissa, -least), kFraction, knots);
}

}  // namespace tosaic::passes
