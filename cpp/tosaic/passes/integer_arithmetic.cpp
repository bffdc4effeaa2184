// Sums, products, extrema and comparisons of two numbers in i32.
//
//   add      both operands in one unit that leaves 29 bits to the sum; exact where the scales are equal
//   mul      the product of both, less the bits that it has beyond 30; by a constant mere scales
//   maximum  as add, in the unit of both; bounds are operands like others
//
// Constants become integers of that unit here.

#include <algorithm>
#include <cmath>

#include "tosaic/passes/integer_math.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

constexpr int kSumBits = 29, kProductBits = 30;
constexpr const char* kNoInfinity = "minus infinity becomes infinity";

// An operand before its unit is chosen: a number of integers, or a constant.
struct Term {
  std::optional<Real> real;
  std::vector<double> numbers;  // of a constant
  Shape shape;
  double factor = 1;
  double scale = 0;  // of a quantized constant, whose numbers are multiples of it; else 0

  [[nodiscard]] double magnitude() const {
    if (real) return static_cast<double>(real->magnitude()) * real->scale() * std::abs(factor);
    double largest = 0;
    for (const double x : numbers) largest = std::max(largest, std::abs(x * factor));
    return largest;
  }
};

Term term_of(IntegerLowering& l, std::size_t i, double factor = 1) {
  Term out{std::nullopt, {}, l.operand_type(i).shape, factor};
  if (l.is_constant(i)) {
    out.numbers = l.numbers(i);
    if (const QParamsRef& label = l.operand_type(i).qparams; label && label->scales.size() == 1)
      out.scale = static_cast<double>(static_cast<float>(label->scales[0]));
  } else {
    out.real = l.real_with_one_scale(i);
  }
  return out;
}

struct Integers {
  ValueId id;
  ValueRange range;
  double error = 0;  // as in Real
};

// In i32 and this unit; the sign of the factor is left to the caller.
Integers in_unit(IntegerLowering& l, const Term& term, double unit) {
  const double factor = std::abs(term.factor);
  if (!term.real) {
    std::vector<std::int64_t> values;
    for (const double x : term.numbers) values.push_back(std::llround(x * factor / unit));
    // What keeps a divisor or a root from zero still does.
    const bool vanishes = values.size() == 1 && values[0] == 0 && term.numbers[0] > 0;
    if (vanishes) values[0] = 1;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const ValueRange range{*low, *high};
    return {l.constant(DType::kI32, term.shape, values), range, vanishes ? unit : unit / 2};
  }
  Real x = *term.real;
  x.scales = {x.scale() * factor};
  x.error *= factor;
  const Real made = x.scale() == unit ? l.widened(x) : l.rescaled(x, DType::kI32, unit);
  return {made.id, made.range, made.error};
}

// The coarsest unit of an operand, made finer by a power of two as far as the sum has room: below 2^29, as a
// rescale by a power of two takes 128 no further.
double common_unit(const std::vector<Term>& terms) {
  double coarsest = 0, total = 0;
  bool equal = true;
  for (const Term& term : terms) {
    total += term.magnitude();
    if (!term.real) {
      equal = false;
      continue;
    }
    const double scale = term.real->scale() * std::abs(term.factor);
    equal = equal && (coarsest == 0 || coarsest == scale);
    coarsest = std::max(coarsest, scale);
  }
  if (coarsest == 0) coarsest = 1;
  if (equal && total / coarsest <= std::ldexp(1.0, kSumBits)) return coarsest;
  if (total == 0) return coarsest;
  const int room =
      static_cast<int>(std::floor(std::log2((std::ldexp(1.0, kSumBits) - 1) * coarsest / total)));
  return std::ldexp(coarsest, -room);
}

void require_f32(const IntegerLowering& l) {
  if (!stands_for_number(l.result_type().dtype) && l.target() == nullptr)
    throw NoIntegerForm("its result is no number");
}

// Operand i is the maximum of operand j over some axes: it is not below any element.
bool is_maximum_of(IntegerLowering& l, std::size_t i, std::size_t j) {
  if (l.is_constant(i) || l.is_constant(j)) return false;
  const Real top = l.real(i), all = l.real(j);
  if (top.scales != all.scales || top.zero_point != all.zero_point || top.axis || all.axis) return false;
  const Node* node = l.out().producer(top.id);
  bool reduced = false;
  while (node != nullptr && (node->op == Op::kTosaReduceMax || node->op == Op::kReshape)) {
    reduced = reduced || node->op == Op::kTosaReduceMax;
    const ValueId from = l.out().operands(*node)[0];
    if (from == all.id) return reduced;
    node = l.out().producer(from);
  }
  return false;
}

// A constant that varies along one axis of the result at most, as one factor a position of that axis.
struct AxisFactors {
  std::vector<double> values;
  std::optional<std::size_t> axis;
};

std::optional<AxisFactors> axis_factors(const Term& constant, std::size_t rank) {
  AxisFactors out{constant.numbers, std::nullopt};
  const Shape& shape = constant.shape;
  for (std::size_t k = 0; k < shape.size(); ++k) {
    if (shape[k] == 1) continue;
    if (out.axis) return std::nullopt;
    out.axis = rank - shape.size() + k;
  }
  return out;
}

Real negated(IntegerLowering& l, const Real& x) {
  if (x.minus_infinity) throw NoIntegerForm(kNoInfinity);
  Real wide = l.widened(x);
  wide.id = l.binary(Op::kTosaSub, l.number(0, l.type(wide.id).rank()), wide.id);
  wide.range = {-wide.range.high, -wide.range.low};
  return wide;
}

// x times one number, or one for each position of an axis, all of one sign: only what an integer is worth
// changes.
std::optional<Real> scaled(IntegerLowering& l, Real x, const Term& constant) {
  const Shape& shape = l.type(x.id).shape;
  const std::optional<AxisFactors> factors = axis_factors(constant, shape.size());
  if (!factors || constant.shape.size() > shape.size() || broadcast(shape, constant.shape) != shape)
    return std::nullopt;
  const auto positive = [](double f) { return f > 0; };
  const auto negative = [](double f) { return f < 0; };
  const bool flips = std::all_of(factors->values.begin(), factors->values.end(), negative);
  if (!flips && !std::all_of(factors->values.begin(), factors->values.end(), positive)) return std::nullopt;
  if (x.axis && factors->axis && *x.axis != static_cast<std::int64_t>(*factors->axis)) return std::nullopt;
  if (flips && l.type(x.id).dtype == DType::kI48) return std::nullopt;
  if (flips) x = negated(l, x);
  if (factors->axis && !x.axis) {
    x.scales.assign(factors->values.size(), x.scale());
    x.axis = static_cast<std::int64_t>(*factors->axis);
  }
  for (std::size_t c = 0; c < x.scales.size(); ++c)
    x.scales[c] *= std::abs(factors->values[factors->values.size() > 1 ? c : 0]);
  x.error *= constant.magnitude();
  return x;
}

double size_of(const Real& x) { return static_cast<double>(x.magnitude()) * x.scale(); }

// Narrow operands without zero points are multiplied as they are; others in i32, the product less the bits
// that it has too many.
Real product(IntegerLowering& l, const Real& a, const Real& b) {
  const DType dtype = l.type(a.id).dtype;
  const bool narrow = a.zero_point == 0 && b.zero_point == 0 && dtype == l.type(b.id).dtype &&
                      (dtype == DType::kI8 || dtype == DType::kI16);
  const Real x = narrow ? a : l.widened(a), y = narrow ? b : l.widened(b);
  const int shift = std::max(0, bits_to(x.magnitude()) + bits_to(y.magnitude()) - kProductBits);
  const auto rounded = [&](__int128_t value) {
    return static_cast<std::int64_t>((value + (shift > 0 ? __int128_t{1} << (shift - 1) : 0)) >> shift);
  };
  const auto times = [&](std::int64_t p, std::int64_t q) { return rounded(static_cast<__int128_t>(p) * q); };
  const std::int64_t corners[] = {times(x.range.low, y.range.low), times(x.range.low, y.range.high),
                                  times(x.range.high, y.range.low), times(x.range.high, y.range.high)};
  const std::int64_t low = *std::min_element(corners, corners + 4);
  const std::int64_t high = *std::max_element(corners, corners + 4);
  const ValueId made = IntegerMath(l).mul(x.id, y.id, shift);
  const bool square = a.id == b.id && a.zero_point == b.zero_point;
  Real out{made, {std::ldexp(x.scale() * y.scale(), shift)}, 0, {square ? 0 : low, high}};
  out.error = x.error * size_of(y) + y.error * size_of(x) + (shift > 0 ? out.scale() / 2 : 0);
  return out;
}

// Returns a constant as integers of at most 15 bits and a sign. If the constant is quantized and its integers
// minus the zero point fit, the result is these integers, and exact. Else each number is rounded to a
// multiple of 1/32767 of the largest number.
Real quantized_factor(IntegerLowering& l, const Term& term) {
  constexpr double kMost = 32767;
  const double largest = term.magnitude();
  const bool exact = term.scale != 0 && term.factor == 1 && largest <= kMost * term.scale;
  const double unit = exact ? term.scale : largest == 0 ? 1.0 : largest / kMost;
  const Integers made = in_unit(l, term, unit);
  Real out{made.id, {unit}, 0, made.range};
  out.error = exact ? 0 : made.error;
  return out;
}

Term term_of(IntegerLowering& l, const Real& x) { return {l.rescaled_to_one(x), {}, l.type(x.id).shape, 1}; }

Real multiplied(IntegerLowering& l, const Real& x, const Term& by) {
  if (by.real) return product(l, l.rescaled_to_one(x), *by.real);
  if (std::optional<Real> made = scaled(l, x, by)) return std::move(*made);
  return product(l, l.rescaled_to_one(x), quantized_factor(l, by));
}

void require_finite(const Term& term) {
  for (const double x : term.numbers)
    if (!std::isfinite(x)) throw NoIntegerForm("a constant operand is not finite");
}

// Minus infinity in a constant addend becomes a number so low that its sum with any other stays below all
// sums of finite ones by twice the distance of what is hidden.
struct Masked {
  Term term;
  double finite;  // the largest sum of finite numbers
  bool hides = false;
};

Masked without_infinity(Term term, double others) {
  Masked out{std::move(term), others};
  for (const double x : out.term.numbers)
    if (std::isfinite(x)) out.finite = std::max(out.finite, others + std::abs(x * out.term.factor));
  for (double& x : out.term.numbers)
    if (is_minus_infinity(x * out.term.factor)) {
      x = -2 * (out.finite + hidden_below(out.finite)) / out.term.factor;
      out.hides = true;
    }
  require_finite(out.term);
  return out;
}

bool is_hiding(const Term& term) { return term.real && term.real->minus_infinity; }

// Of nothing but 0 and minus infinity: what it is added to hides what it hid.
bool is_mask(const Term& term) {
  return !term.real && std::all_of(term.numbers.begin(), term.numbers.end(),
                                   [](double x) { return x == 0 || is_minus_infinity(x); });
}

Real added(IntegerLowering& l, const Term& first, const Term& second, bool subtracts) {
  const double a_size = first.real ? first.magnitude() : 0, b_size = second.real ? second.magnitude() : 0;
  if (subtracts) require_finite(second);
  const Masked a = without_infinity(first, b_size);
  const Masked b = subtracts ? Masked{second, 0} : without_infinity(second, a_size);
  const double unit = common_unit({a.term, b.term});
  const Integers x = in_unit(l, a.term, unit), y = in_unit(l, b.term, unit);
  const ValueRange range = subtracts ? ValueRange{x.range.low - y.range.high, x.range.high - y.range.low}
                                     : ValueRange{x.range.low + y.range.low, x.range.high + y.range.high};
  Real out{l.binary(subtracts ? Op::kTosaSub : Op::kTosaAdd, x.id, y.id), {unit}, 0, range};
  out.error = x.error + y.error;
  const double finite = std::max(a.finite, b.finite);
  if (is_mask(second) && is_hiding(first))
    out.minus_infinity = least_in_unit(*first.real, unit);
  else if (is_mask(first) && is_hiding(second) && !subtracts)
    out.minus_infinity = least_in_unit(*second.real, unit);
  else if (a.hides || b.hides)
    out.minus_infinity = static_cast<std::int64_t>(-(finite + hidden_below(finite)) / unit);
  return out;
}

// Operand i is the floor of another, which nobody quantized.
bool is_floor_of(const IntegerLowering& l, std::size_t i, std::size_t of) {
  const Node* producer = l.source().producer(l.operand(i));
  return producer != nullptr && producer->op == Op::kFloor && l.operand_type(i).qparams == nullptr &&
         l.source().operands(*producer)[0] == l.operand(of);
}

}  // namespace

Lowered integer_add(IntegerLowering& l) {
  require_f32(l);
  const double alpha = as_double(l.attrs<AlphaAttrs>().alpha);
  const bool subtracts = (l.node().op == Op::kSub) != (alpha < 0);
  Real out = added(l, term_of(l, 0), term_of(l, 1, std::abs(alpha)), subtracts);
  if (subtracts && alpha == 1 && is_floor_of(l, 1, 0)) {  // a fraction
    const auto one = static_cast<std::int64_t>(std::ceil(1 / out.scale()));
    out.range = {std::max<std::int64_t>(out.range.low, -1), std::min(out.range.high, one + 1)};
  }
  if (subtracts && is_maximum_of(l, 1, 0)) out.range.high = std::min<std::int64_t>(out.range.high, 0);
  return out;
}

Lowered integer_mul(IntegerLowering& l) {
  require_f32(l);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (!l.is_constant(i)) continue;
    const Term constant = term_of(l, i);
    require_finite(constant);
    return multiplied(l, l.real(1 - i), constant);
  }
  return product(l, l.real_with_one_scale(0), l.real_with_one_scale(1));
}

// By a constant as a product; by a number that varies by mantissa and exponent.
Lowered integer_div(IntegerLowering& l) {
  require_f32(l);
  const DivRounding rounding = l.attrs<DivAttrs>().rounding;
  if (rounding != DivRounding::kNone) {
    if (const std::optional<Lowered> function = tabulated(l)) return *function;
    if (!l.is_constant(1)) throw NoIntegerForm("it rounds the quotient of two numbers");
  }
  if (l.is_constant(1)) {
    Term by = term_of(l, 1);
    for (double& x : by.numbers) x = 1 / x;
    by.scale = 0;
    require_finite(by);
    Real made = multiplied(l, l.real(0), by);
    if (rounding == DivRounding::kNone) return made;
    return in_whole_numbers(l, l.rescaled_to_one(made),
                            rounding == DivRounding::kFloor ? Op::kFloor : Op::kTrunc);
  }
  const Real divisor = l.widened(l.real_with_one_scale(1));
  if (is_vague_near_zero(divisor)) {
    if (std::optional<Lowered> made = smooth_composition(l)) return *made;
    if (function_table(l)) throw NoIntegerForm("its divisor has few bits near zero");
  }
  if (!l.is_constant(0)) return quotient_of(l, l.widened(l.real_with_one_scale(0)), divisor);
  const Term dividend = term_of(l, 0);
  require_finite(dividend);
  const double unit = unit_for(dividend.magnitude());
  const Integers made = in_unit(l, dividend, unit);
  return quotient_of(l, {made.id, {unit}, 0, made.range}, divisor);
}

Real times(IntegerLowering& l, const Real& x, std::size_t i, const Shape& own) {
  Term by = term_of(l, i);
  require_finite(by);
  by.shape = own;
  if (by.real) by.real->id = l.reshape(by.real->id, own);
  return multiplied(l, x, by);
}

Real plus(IntegerLowering& l, const Real& x, std::size_t i, const Shape& own) {
  Term addend = term_of(l, i);
  require_finite(addend);
  addend.shape = own;
  if (addend.real) addend.real->id = l.reshape(addend.real->id, own);
  return added(l, term_of(l, x), addend, false);
}

double hidden_below(double size) { return std::max(64.0, std::ldexp(size, -20)); }

std::int64_t least_in_unit(const Real& x, double unit) {
  return std::llround(static_cast<double>(*x.minus_infinity) * x.scale() / unit) + 1;
}

double unit_for(double size) { return size == 0 ? 1.0 : std::ldexp(1.0, std::ilogb(size) + 1 - kSumBits); }

Real total(IntegerLowering& l, const Real& a, const Real& b) {
  return added(l, term_of(l, a), term_of(l, b), false);
}

Real difference(IntegerLowering& l, const Real& a, const Real& b) {
  return added(l, term_of(l, a), term_of(l, b), true);
}

Lowered integer_sign_change(IntegerLowering& l) {
  require_f32(l);
  if (l.node().op == Op::kNeg) return negated(l, l.real_with_one_scale(0));
  Real x = l.widened(l.real_with_one_scale(0));
  if (x.minus_infinity) throw NoIntegerForm(kNoInfinity);
  x.id = l.emit(Op::kTosaAbs, NoAttrs{}, {x.id});
  x.range = {0, x.magnitude()};
  return x;
}

namespace {

bool bounds_are_whole(const ClampAttrs& attrs, const Real& x) {
  const auto is_whole = [&](const std::optional<Scalar>& bound) {
    const double units = bound ? as_double(*bound) / x.scale() : 0;
    return !std::isfinite(units) || std::abs(units) > static_cast<double>(x.magnitude()) ||
           std::abs(units - std::nearbyint(units)) < 0x1p-12;
  };
  return is_whole(attrs.min) && is_whole(attrs.max);
}

enum class Between { kMaximum, kMinimum, kOrder };

// Of two numbers whose scales are so far apart that no unit has both: what of the larger one is beyond all
// that the result takes from it becomes the nearest that is.
void bring_closer(IntegerLowering& l, std::vector<Term>& terms, const std::optional<QParams>& goal,
                  Between between) {
  if (!terms[0].real || !terms[1].real) return;
  const double finest = std::min(terms[0].real->scale(), terms[1].real->scale());
  if (common_unit(terms) <= finest / 8) return;
  const auto low = [](const Real& x) { return static_cast<double>(x.centred().low) * x.scale(); };
  const auto high = [](const Real& x) { return static_cast<double>(x.centred().high) * x.scale(); };
  const Real a = *terms[0].real, b = *terms[1].real;
  for (Term& term : terms) {
    Real& x = *term.real;
    const Real& other = &term == &terms.front() ? b : a;
    double least = low(other), most = high(other);
    if (between == Between::kMaximum) most = HUGE_VAL;
    if (between == Between::kMinimum) least = -HUGE_VAL;
    if (goal) {
      least = std::max(least, -largest_number(*goal));
      most = std::min(most, largest_number(*goal));
    }
    const auto units = [&](double number) { return std::clamp(number / x.scale(), -0x1p31, 0x1p31); };
    const ValueRange to{static_cast<std::int64_t>(std::floor(units(least))) - 1,
                        static_cast<std::int64_t>(std::ceil(units(most))) + 1};
    x = l.widened(x);
    const ValueRange within{std::max(x.range.low, to.low), std::min(x.range.high, to.high)};
    if (within.low > within.high) continue;
    x.id = l.bounded(x.id, x.range, within);
    x.range = within;
  }
}

// The same number in the unit of a power of two less that leaves it 29 bits: exact.
Real finest(IntegerLowering& l, const Real& x) {
  const int more = 29 - bits_to(x.magnitude() + 1);
  return more <= 0 ? l.widened(x) : l.rescaled(x, DType::kI32, std::ldexp(x.scale(), -more));
}

}  // namespace

Lowered integer_extremum(IntegerLowering& l) {
  require_f32(l);
  const Op op = l.node().op;
  if (op == Op::kRelu || op == Op::kClamp) {
    Real x = l.real_with_one_scale(0);
    x = op == Op::kClamp && !bounds_are_whole(l.attrs<ClampAttrs>(), x) ? finest(l, x) : l.widened(x);
    ValueRange to = op == Op::kRelu ? ValueRange{0, x.range.high} : x.range;
    if (op == Op::kClamp) {
      const auto& attrs = l.attrs<ClampAttrs>();
      const double scale = x.scale();
      double error = x.error;
      const auto bound = [&](const std::optional<Scalar>& limit, std::int64_t none) {
        if (!limit) return none;
        const double units = as_double(*limit) / scale;
        double nearest = std::clamp(std::nearbyint(units), -0x1p31, 0x1p31);
        if (nearest == 0 && units > 0) nearest = 1;  // what keeps a divisor or a root from zero still does
        if (std::abs(nearest) <= static_cast<double>(x.magnitude()))
          error = std::max(error, std::abs(nearest - units) * scale);
        return static_cast<std::int64_t>(nearest);
      };
      to = {bound(attrs.min, x.range.low), bound(attrs.max, x.range.high)};
      if (to.low > to.high) to.low = to.high;  // torch: the upper bound wins
      x.error = error;
    }
    to = {std::max(to.low, x.range.low), std::min(to.high, x.range.high)};
    if (to.low > to.high)
      to = to.low > x.range.high ? ValueRange{to.low, to.low} : ValueRange{to.high, to.high};
    if (to.low < kInt32Values.low || to.high > kInt32Values.high)
      throw NoIntegerForm("its bounds are beyond its numbers");
    x.id = l.bounded(x.id, x.range, to);
    x.range = to;
    x.minus_infinity.reset();
    return x;
  }
  std::vector<Term> terms{term_of(l, 0), term_of(l, 1)};
  for (const Term& term : terms) require_finite(term);
  const bool larger = op == Op::kMaximum;
  bring_closer(l, terms, l.goal(), larger ? Between::kMaximum : Between::kMinimum);
  const double unit = common_unit(terms);
  const Integers a = in_unit(l, terms[0], unit), b = in_unit(l, terms[1], unit);
  const auto pick = [&](std::int64_t x, std::int64_t y) { return larger ? std::max(x, y) : std::min(x, y); };
  const ValueRange range{pick(a.range.low, b.range.low), pick(a.range.high, b.range.high)};
  Real out{l.binary(larger ? Op::kTosaMaximum : Op::kTosaMinimum, a.id, b.id), {unit}, 0, range};
  out.error = std::max(a.error, b.error);
  return out;
}

namespace {

// An infinite constant compares as a number beyond all others does.
void bring_near(Term& term, double others) {
  for (double& x : term.numbers)
    if (std::isinf(x)) x = std::copysign(2 * others + 1, x);
}

// Numbers that stand for minus infinity become the greatest that does, constants no less.
void bring_together(IntegerLowering& l, Term& hiding, Term& other) {
  constexpr int kBetween = 16;  // units, of which finite numbers are more away
  Real& x = *hiding.real;
  const std::int64_t least = *x.minus_infinity;
  if (is_hiding(other) && (other.real->scales != x.scales || other.real->zero_point != x.zero_point ||
                           *other.real->minus_infinity != least))
    throw NoIntegerForm("its operands have each a minus infinity of their own");
  x.id = l.bounded(l.widened(x).id, x.range, {least, x.range.high});
  x.range.low = std::max(x.range.low, least);
  const double number = static_cast<double>(least) * x.scale();
  for (double& y : other.numbers)
    y = is_minus_infinity(y) ? number : std::max(y, number + kBetween * x.scale());
}

// One minus infinity, compared with all others: those that stand for it.
std::optional<ValueId> hidden(IntegerLowering& l, const Term& x, const Term& y) {
  if (!is_hiding(x) || y.real || y.numbers.size() != 1 || !is_minus_infinity(y.numbers[0]) ||
      y.shape.size() > x.shape.size())
    return std::nullopt;
  const Real& real = *x.real;
  const ValueId least = l.number(*real.minus_infinity, l.type(real.id).rank(), l.type(real.id).dtype);
  return l.binary(Op::kTosaGreaterEqual, least, real.id);
}

}  // namespace

Lowered integer_comparison(IntegerLowering& l) {
  std::vector<Term> terms{term_of(l, 0), term_of(l, 1)};
  if (l.node().op == Op::kEq || l.node().op == Op::kNe) {
    std::optional<ValueId> found = hidden(l, terms[0], terms[1]);
    if (!found) found = hidden(l, terms[1], terms[0]);
    if (found) return l.node().op == Op::kEq ? *found : l.emit(Op::kTosaLogicalNot, NoAttrs{}, {*found});
  }
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    if (is_hiding(terms[i])) bring_together(l, terms[i], terms[1 - i]);
  bring_near(terms[0], terms[1].real ? terms[1].magnitude() : 0);
  bring_near(terms[1], terms[0].real ? terms[0].magnitude() : 0);
  for (const Term& term : terms) require_finite(term);
  bring_closer(l, terms, std::nullopt, Between::kOrder);
  const double unit = common_unit(terms);
  const Integers first = in_unit(l, terms[0], unit), second = in_unit(l, terms[1], unit);
  const ValueId a = first.id, b = second.id;
  // Numbers that cannot be told apart are equal: a bound that was rounded is still what it bounds.
  IntegerMath m(l);
  const auto near = static_cast<std::int64_t>(std::min((first.error + second.error) / unit, 0x1p28));
  const auto equal = [&] {
    if (near == 0) return l.binary(Op::kTosaEqual, a, b);
    const ValueId apart = l.emit(Op::kTosaAbs, NoAttrs{}, {m.sub(a, b)});
    return l.binary(Op::kTosaGreaterEqual, m.number(apart, near), apart);
  };
  switch (l.node().op) {  // NOLINT: the comparisons
    case Op::kEq:
      return equal();
    case Op::kNe:
      return l.emit(Op::kTosaLogicalNot, NoAttrs{}, {equal()});
    case Op::kGt:
      return l.binary(Op::kTosaGreater, a, m.add(b, near));
    case Op::kGe:
      return l.binary(Op::kTosaGreaterEqual, m.add(a, near), b);
    case Op::kLt:
      return l.binary(Op::kTosaGreater, b, m.add(a, near));
    default:
      return l.binary(Op::kTosaGreaterEqual, m.add(b, near), a);
  }
}

}  // namespace tosaic::passes
