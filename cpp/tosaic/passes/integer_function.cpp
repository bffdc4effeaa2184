// Functions of one number of more than 16 bits, as sums and products within expansions have it.
//
//   sqrt, rsqrt, reciprocal, log   by mantissa and exponent: as good near zero as far from it
//   exp                            relative to the largest result that there can be
//   floor, ceil, trunc, round      exact, but within 2^-29 of the largest number of where they step; so are
//                                  quotients and remainders of divisions by constants
//   any other                      by straight lines between 4097 points of the range within which it is not
//                                  constant; where it is not that smooth, its value at the nearest of 65537
//
// Results have about 30 bits below their largest magnitude; those of log are good to 2^-22. The last row is
// good to 2^-18 of the largest, or half a step times the slope.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/passes/integer_math.h"

namespace tosaic::passes {
namespace {

// A positive number as it is normalised, at least one unit; how far its shift can go.
struct Positive {
  IntegerMath::Scaled scaled;
  int most_shift = 30;
};

Positive positive(IntegerLowering& l, const Real& x, bool even) {
  IntegerMath m(l);
  const std::int64_t least = std::max<std::int64_t>(x.range.low, 1);
  const ValueId v = x.range.low >= 1 ? x.id : m.maximum(x.id, 1);
  int most = 30;
  while (most > 0 && (least >> (31 - most)) != 0) --most;  // clz(least) - 1
  return {m.normalized(v, even), even ? most & ~1 : most};
}

// A pole at zero: operands of few units, which may be off by one, have to saturate in the reader.
void require_distance(const IntegerLowering& l, const Real& x, const IntegerMath::Function& f) {
  constexpr int kFewUnits = 8;
  if (x.range.low >= kFewUnits) return;
  const std::optional<QParams> to = l.goal();
  if (!to || std::abs(f(kFewUnits * x.scale())) < largest_number(*to))
    throw NoIntegerForm("its operand may be closer to zero than its bits can tell");
}

// 2^30 over the square root of v, relative to that of the least v.
Real rsqrt(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  require_distance(l, x, [](double v) { return 1 / std::sqrt(v); });
  const Positive v = positive(l, x, true);
  const ValueId root = m.of_mantissa(
      v.scaled.mantissa, [](double at) { return std::ldexp(std::sqrt(0x1p29 / at), 30); }, true);
  const ValueId made = m.right(root, m.right(m.sub(v.most_shift, v.scaled.shift), 1), true);
  const int half = v.most_shift / 2;
  const double scale = std::pow(2.0, half - 44.5) / std::sqrt(x.scale());
  return {made, {scale}, 0, {0, std::int64_t{1} << 30}};
}

Real sqrt(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  const Positive v = positive(l, x, true);
  const ValueId root = m.of_mantissa(
      v.scaled.mantissa, [](double at) { return std::ldexp(std::sqrt(at / 0x1p31), 30); }, true);
  ValueId made = m.right(root, m.right(v.scaled.shift, 1), true);
  if (x.range.low < 1) {
    const ValueId is_positive = l.binary(Op::kTosaGreater, x.id, m.number(x.id, 0));
    made = l.emit(Op::kTosaSelect, NoAttrs{}, {is_positive, made, m.number(made, 0)});
  }
  const double scale = std::pow(2.0, 15.5 - 30) * std::sqrt(x.scale());
  return {made, {scale}, 0, {0, std::int64_t{1} << 30}};
}

Real log(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  constexpr int kBits = 23;
  require_distance(l, x, [](double v) { return std::log(v); });
  const Positive v = positive(l, x, false);
  const double unit = std::ldexp(1.0, -kBits);
  const double base = std::log(x.scale()) + 30 * std::log(2.0);
  if (std::abs(base) > 100) throw NoIntegerForm("its operand has an extreme scale");
  const ValueId mantissa =
      m.of_mantissa(v.scaled.mantissa, [&](double at) { return (std::log(at / 0x1p30) + base) / unit; });
  const ValueId octaves =
      l.binary(Op::kTosaMul, v.scaled.shift, m.number(v.scaled.shift, std::llround(std::log(2.0) / unit)));
  const auto most = static_cast<std::int64_t>((std::abs(base) + 22) / unit);
  return {m.sub(mantissa, octaves), {unit}, 0, {-most, most}};
}

Real exp(IntegerLowering& l, const Real& x) {
  IntegerMath m(l);
  std::int64_t top = x.range.high;
  if (const std::optional<QParams> to = l.goal()) {  // what saturates need not be told apart
    const double enough = std::ceil(std::log(2 * largest_number(*to)) / x.scale());
    if (enough < static_cast<double>(top))
      top = std::max(x.range.low, static_cast<std::int64_t>(std::max(enough, -0x1p31)));
  }
  const double largest = std::exp(static_cast<double>(top) * x.scale());
  if (!std::isfinite(largest)) throw NoIntegerForm("it may be infinite");
  Real below = x;
  below.id = m.add(top < x.range.high ? m.minimum(x.id, top) : x.id, -top);
  below.range = {x.range.low - top, 0};
  return {m.exp30(below), {std::ldexp(largest, -IntegerMath::kExpBits)}, 0, {0, std::int64_t{1} << 30}};
}

// ---- any other ----

struct Interval {
  double low = 0, high = 0;
};

constexpr std::int64_t kSamples = 65537;  // and the intervals between them
constexpr std::int64_t kKnots = 4097, kSamplesApart = (kSamples - 1) / (kKnots - 1);
constexpr int kFractionBits = 16;  // between knots

// f at the samples of an interval, in f32 as the float kernels have it.
std::vector<double> sampled(IntegerLowering& l, FunctionOperands& operands, Interval over) {
  std::vector<float> points(kSamples);
  for (std::int64_t i = 0; i < kSamples; ++i)
    points[static_cast<std::size_t>(i)] =
        static_cast<float>(over.low + (over.high - over.low) * static_cast<double>(i) / (kSamples - 1));
  auto argument = std::make_shared<Constant>();
  argument->dtype = DType::kF32;
  argument->shape = {kSamples};
  argument->storage = Storage::of(points);
  for (ConstantRef& constant : operands.constants)
    if (constant && is_float(constant->dtype)) constant = converted(constant, DType::kF32);
  operands.set(0, argument, nullptr);
  const ConstantRef f = l.evaluate(operands.constants, operands.labels);
  const Elements elements(*f);
  std::vector<double> out(elements.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = elements.as_double(i);
  return out;
}

// Where the function, up to a size that saturates, is not constant but for 2^-20 of its size.
Interval relevant(const std::vector<double>& f, double most, Interval over) {
  const auto at = [&](std::size_t i) { return std::clamp(f[i], -most, most); };
  double size = 0;
  for (std::size_t i = 0; i < f.size(); ++i) size = std::max(size, std::abs(at(i)));
  const double close = std::ldexp(size, -20);
  std::size_t first = 0, last = f.size() - 1;
  while (first + 1 < last && std::abs(at(first + 1) - at(0)) <= close) ++first;
  while (last > first + 1 && std::abs(at(last - 1) - at(f.size() - 1)) <= close) --last;
  const double step = (over.high - over.low) / (kSamples - 1);
  return {over.low + step * static_cast<double>(first), over.low + step * static_cast<double>(last)};
}

// Straight lines between knots are within 2^-18 of the largest result that counts.
bool is_smooth(const std::vector<std::int64_t>& f, std::int64_t most) {
  std::int64_t size = 0, error = 0;
  for (const std::int64_t y : f) size = std::max(size, std::min(std::abs(y), most));
  for (std::size_t i = 0; i < f.size(); ++i) {
    const std::size_t knot = i / kSamplesApart * kSamplesApart, rest = i - knot;
    if (rest == 0 || std::abs(f[i]) > most) continue;
    const std::int64_t rise = f[knot + kSamplesApart] - f[knot];
    const std::int64_t line = f[knot] + rise * static_cast<std::int64_t>(rest) / kSamplesApart;
    error = std::max(error, std::abs(line - f[i]));
  }
  return error <= size >> 18;
}

Lowered by_samples(IntegerLowering& l, FunctionOperands operands, const Real& x) {
  Interval over{static_cast<double>(x.range.low) * x.scale(), static_cast<double>(x.range.high) * x.scale()};
  std::vector<double> f = sampled(l, operands, over);
  const std::optional<QParams> to = l.goal();
  const double most = to ? 2 * largest_number(*to) : std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < 4; ++turn) {
    const Interval less = relevant(f, most, over);
    if (less.high - less.low > 0.75 * (over.high - over.low)) break;
    over = less;
    f = sampled(l, operands, over);
  }
  double size = 0;
  for (double& y : f) {
    y = std::clamp(y, -2 * most, 2 * most);
    if (!std::isfinite(y)) throw NoIntegerForm("it is not finite everywhere");
    size = std::max(size, std::abs(y));
  }
  const double unit = unit_for(size);
  std::vector<std::int64_t> entries;
  for (const double y : f) entries.push_back(std::llround(y / unit));
  // The number in steps from the first sample on.
  IntegerMath m(l);
  const std::int64_t shift = std::llround(over.low / x.scale());
  Real from_first{m.add(x.id, -shift), x.scales, 0, {x.range.low - shift, x.range.high - shift}};
  if (from_first.range.low < -(std::int64_t{1} << 31) || from_first.range.high >= std::int64_t{1} << 31)
    throw NoIntegerForm("its operand has too many bits");
  const auto last = static_cast<std::int64_t>(std::ceil((over.high - over.low) / x.scale()));
  from_first.id = l.bounded(from_first.id, from_first.range, {0, last});
  from_first.range = {std::max<std::int64_t>(from_first.range.low, 0), std::min(from_first.range.high, last)};
  const auto steps = [&](std::int64_t count) {
    const double step = (over.high - over.low) / static_cast<double>(count);
    const Real found = step == 0 ? from_first : l.rescaled(from_first, DType::kI32, step);
    return l.bounded(found.id, found.range, {0, count});
  };
  const auto [low, high] = std::minmax_element(entries.begin(), entries.end());
  const ValueRange range{*low, *high};
  const auto counts = static_cast<std::int64_t>(std::min(most / unit, 0x1p62));
  if (!is_smooth(entries, counts)) return Real{m.lookup(steps(kSamples - 1), entries), {unit}, 0, range};
  std::vector<std::int64_t> knots;
  for (std::size_t k = 0; k < entries.size(); k += kSamplesApart) knots.push_back(entries[k]);
  const ValueId fine = steps((kKnots - 1) << kFractionBits);
  return Real{m.on_lines(fine, kFractionBits, knots), {unit}, 0, {range.low - 1, range.high + 1}};
}

// ---- quotients ----

struct Magnitude {
  Real size;
  ValueId negative;  // none where there are no negative numbers
};

Magnitude magnitude_of(IntegerLowering& l, const Real& x) {
  if (x.range.low >= 0) return {x, ValueId()};
  IntegerMath m(l);
  Magnitude out{x, l.binary(Op::kTosaGreater, m.number(x.id, 0), x.id)};
  out.size.id = l.emit(Op::kTosaAbs, NoAttrs{}, {x.id});
  out.size.range = {x.range.high < 0 ? -x.range.high : 0, x.magnitude()};
  return out;
}

// 2^60 over the mantissa, by table and one step of Newton's: r (2 - m r)
ValueId inverse_of(IntegerLowering& l, ValueId mantissa) {
  IntegerMath m(l);
  const ValueId coarse = m.of_mantissa(mantissa, [](double at) { return 0x1p60 / at; });
  const ValueId one = m.mul(mantissa, coarse, 30);  // 2^30, nearly
  return m.mul(coarse, m.sub(m.number(one, 2147483647), one), 30);
}

ValueId with_sign(IntegerLowering& l, ValueId size, ValueId negative) {
  if (!negative.valid()) return size;
  IntegerMath m(l);
  return l.elementwise(Op::kTosaSelect, NoAttrs{}, {negative, m.sub(0, size), size});
}

}  // namespace

// With one unit for all results, small ones keep few bits: as many as there are orders of magnitude less.
Real reciprocal_of(IntegerLowering& l, const Real& x) {
  constexpr int kFewest = 16;
  IntegerMath m(l);
  const auto [size, negative] = magnitude_of(l, x);
  const Positive v = positive(l, size, false);
  if (30 - v.most_shift < kFewest) throw NoIntegerForm("its results span too many orders of magnitude");
  const ValueId made = m.right(inverse_of(l, v.scaled.mantissa), m.sub(v.most_shift, v.scaled.shift), true);
  const std::int64_t most = std::int64_t{1} << 30;
  return {with_sign(l, made, negative),
          {std::ldexp(1.0, v.most_shift - 60) / x.scale()},
          0,
          {negative.valid() ? -most : 0, most}};
}

// Both as mantissas and exponents; the quotient in a unit for the largest result: of the target, or that can
// be.
Real quotient_of(IntegerLowering& l, const Real& a, const Real& b) {
  IntegerMath m(l);
  const auto [dividend, a_negative] = magnitude_of(l, a);
  const auto [divisor, b_negative] = magnitude_of(l, b);
  const Positive v = positive(l, divisor, false);
  const ValueId room = m.add(m.clz(m.maximum(dividend.id, 1)), -2);
  const ValueId filled = m.left(dividend.id, m.maximum(room, 0));  // up to 30 bits, of 31 as they are
  const ValueId product = m.mul(filled, inverse_of(l, v.scaled.mantissa), 31);
  const double ratio = a.scale() / b.scale();
  double top = static_cast<double>(a.magnitude()) * a.scale() /
               (static_cast<double>(std::max<std::int64_t>(divisor.range.low, 1)) * b.scale());
  if (const std::optional<QParams> to = l.goal()) {
    top = std::min(top, 2 * largest_number(*to));
  } else if (30 - v.most_shift < 16) {
    throw NoIntegerForm("its results span too many orders of magnitude");
  }
  if (top == 0) top = ratio;  // nothing but zeros
  // product = filled * 2^29 / mantissa: quotient = product 2^(shift - room - 29)
  const int unit = static_cast<int>(std::ceil(std::log2(top / ratio))) - 27;
  const ValueId drop = m.sub(m.add(m.maximum(room, 0), 29 + unit), v.scaled.shift);
  ValueId made = m.right(product, m.minimum(m.maximum(drop, 0), 31), true);
  made = with_sign(l, with_sign(l, made, a_negative), b_negative);
  const std::int64_t most = std::int64_t{1} << 30;
  return {made, {std::ldexp(ratio, unit)}, 0, {-most, most}};
}

namespace {

// The number in a unit of 2^-bits, as small as 30 bits hold; of one below an eighth, smaller still.
struct Binary {
  Real real;
  int bits;  // to be shifted: 31 leave the sign
};

Binary in_binary(IntegerLowering& l, const Real& x) {
  const double size = static_cast<double>(x.magnitude()) * x.scale();
  if (size >= 0x1p30) throw NoIntegerForm("its operand has too many bits");
  const int bits = std::max(28 - (size == 0 ? 0 : std::ilogb(size)), 0);
  return {l.rescaled(x, DType::kI32, std::ldexp(1.0, -bits)), std::min(bits, 31)};
}

}  // namespace

Real in_whole_numbers(IntegerLowering& l, const Real& x, Op op) {
  IntegerMath m(l);
  const auto [fine, bits] = in_binary(l, x);
  const std::int64_t most = (fine.magnitude() >> bits) + 1;
  const auto floor = [&](ValueId id) { return m.right(id, bits); };
  ValueId made;
  if (op == Op::kFloor) {
    made = floor(fine.id);
  } else if (op == Op::kCeil) {
    made = m.sub(0, floor(m.sub(0, fine.id)));
  } else if (op == Op::kRound) {  // halves to even: plus half a unit less one, and one for what is odd
    made = fine.id;
    if (bits > 0)
      made = floor(m.add(m.add(made, (std::int64_t{1} << (bits - 1)) - 1), m.bits(floor(made), 1)));
  } else {
    const ValueId negative = l.binary(Op::kTosaGreater, m.number(fine.id, 0), fine.id);
    made = with_sign(l, floor(l.emit(Op::kTosaAbs, NoAttrs{}, {fine.id})), negative);
  }
  return {made, {1.0}, 0, {-most, most}};
}

namespace {

// Of a division by a constant: x less as many times it as the quotient has whole. Steps stand where they do.
std::optional<Real> remainder(IntegerLowering& l, const Real& x) {
  if (!l.is_constant(1)) return std::nullopt;
  const double divisor = l.numbers(1).front();
  const bool floors = l.node().op == Op::kRemainder;
  if (!std::isfinite(divisor) || divisor == 0 || (floors && divisor < 0)) return std::nullopt;
  Real quotient = x;
  quotient.scales = {x.scale() / std::abs(divisor)};
  Real whole = in_whole_numbers(l, quotient, floors ? Op::kFloor : Op::kTrunc);
  whole.scales = {std::abs(divisor)};
  return difference(l, x, whole);
}

}  // namespace

std::optional<Lowered> integer_function(IntegerLowering& l) {
  if (l.node().op == Op::kCast && l.is_real(0) &&
      (l.result_type().dtype == DType::kI32 || l.result_type().dtype == DType::kI64)) {
    const Real whole = in_whole_numbers(l, l.real_with_one_scale(0), Op::kTrunc);
    if (l.result_type().dtype == DType::kI32) return whole.id;
    // Said again where narrow_integers reads it: positions are computed from it in 64 bits.
    const ClampAttrs within{Scalar(whole.range.low), Scalar(whole.range.high)};
    return l.emit(Op::kCast, *l.node().attrs, {l.emit(Op::kClamp, within, {whole.id})});
  }
  if (l.node().op == Op::kCast && !is_float(l.operand_type(0).dtype) &&
      stands_for_number(l.result_type().dtype) && !l.is_real(0))
    return l.real(0);
  if (l.node().op == Op::kCast && l.is_real(0) && l.target() == nullptr &&
      stands_for_number(l.result_type().dtype))
    return l.real(0);
  const OpInfo& row = info(l.node().op);
  if (!row.has(kElementwise) || row.is_tosa || !stands_for_number(l.result_type().dtype)) return std::nullopt;
  if (l.target() == nullptr && !stands_for_number(l.operand_type(0).dtype)) return std::nullopt;
  std::optional<FunctionOperands> operands = function_operands(l);
  if (!operands || operands->variables.size() != 1) return std::nullopt;
  const Real x = l.widened(l.real_with_one_scale(operands->variables.front().front()));
  switch (l.node().op) {  // NOLINT: the functions with a rule of their own
    case Op::kRsqrt:
      return rsqrt(l, x);
    case Op::kSqrt:
      return sqrt(l, x);
    case Op::kReciprocal:
      return reciprocal_of(l, x);
    case Op::kLog:
      return log(l, x);
    case Op::kExp:
      return exp(l, x);
    case Op::kFloor:
    case Op::kCeil:
    case Op::kTrunc:
    case Op::kRound:
      return in_whole_numbers(l, x, l.node().op);
    case Op::kRemainder:
    case Op::kFmod:
      if (const std::optional<Real> made = remainder(l, x)) return *made;
      return std::nullopt;
    case Op::kSign:
      return Real{l.bounded(x.id, x.range, {-1, 1}), {1.0}, 0, {-1, 1}};
    default:
      return by_samples(l, std::move(*operands), x);
  }
}

}  // namespace tosaic::passes
