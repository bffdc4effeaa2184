// Sums, products, extrema and comparisons of two numbers in i32.
//
//   add      both operands in one unit that leaves 29 bits to the sum; exact where the scales are equal
//   mul      the product of both, each within bits that add up to 30; by a constant mere scales
//   maximum  as add, in the unit of both; bounds are operands like others
//
// Constants become integers of that unit here.

#include <algorithm>
#include <cmath>

#include "tosaic/passes/integer_lowering.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

constexpr int kSumBits = 29, kProductBits = 30;

// An operand before its unit is chosen: a number of integers, or a constant.
struct Term {
  std::optional<Real> real;
  std::vector<double> numbers;  // of a constant
  Shape shape;
  double factor = 1;

  [[nodiscard]] double magnitude() const {
    if (real) return static_cast<double>(real->magnitude()) * real->scale() * std::abs(factor);
    double largest = 0;
    for (const double x : numbers) largest = std::max(largest, std::abs(x * factor));
    return largest;
  }
};

Term term_of(IntegerLowering& l, std::size_t i, double factor = 1) {
  Term out{std::nullopt, {}, l.operand_type(i).shape, factor};
  if (l.source().value(l.operand(i)).kind == ValueKind::kConstant) {
    out.numbers = l.numbers(i);
    for (const double x : out.numbers)
      if (!std::isfinite(x)) throw NoIntegerForm("a constant operand is not finite");
  } else {
    out.real = l.real_with_one_scale(i);
  }
  return out;
}

struct Integers {
  ValueId id;
  ValueRange range;
};

// In i32 and this unit; the sign of the factor is left to the caller.
Integers in_unit(IntegerLowering& l, const Term& term, double unit) {
  const double factor = std::abs(term.factor);
  if (!term.real) {
    std::vector<std::int64_t> values;
    for (const double x : term.numbers) values.push_back(std::llround(x * factor / unit));
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const ValueRange range{*low, *high};
    return {l.constant(DType::kI32, term.shape, values), range};
  }
  Real x = *term.real;
  x.scales = {x.scale() * factor};
  const Real made = x.scale() == unit ? l.widened(x) : l.rescaled(x, DType::kI32, unit);
  return {made.id, made.range};
}

// The coarsest unit of an operand, made finer by a power of two as far as the sum has room.
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
  const int room = static_cast<int>(std::floor(std::log2(std::ldexp(coarsest, kSumBits) / total)));
  return std::ldexp(coarsest, -room);
}

void require_f32(const IntegerLowering& l) {
  if (l.result_type().dtype != DType::kF32 && l.target() == nullptr)
    throw NoIntegerForm("its result is no number");
}

bool is_constant_operand(const IntegerLowering& l, std::size_t i) {
  return l.source().value(l.operand(i)).kind == ValueKind::kConstant;
}

// A constant that varies along one axis of the result at most, as one factor a position of that axis.
struct AxisFactors {
  std::vector<double> values;
  std::optional<std::size_t> axis;
};

std::optional<AxisFactors> axis_factors(const IntegerLowering& l, std::size_t i) {
  AxisFactors out{l.numbers(i), std::nullopt};
  const Shape& shape = l.operand_type(i).shape;
  const std::size_t rank = l.result_type().rank();
  for (std::size_t k = 0; k < shape.size(); ++k) {
    if (shape[k] == 1) continue;
    if (out.axis) return std::nullopt;
    out.axis = rank - shape.size() + k;
  }
  for (const double x : out.values)
    if (!std::isfinite(x)) throw NoIntegerForm("a constant operand is not finite");
  return out;
}

Real negated(IntegerLowering& l, const Real& x) {
  Real wide = l.widened(x);
  wide.id = l.binary(Op::kTosaSub, l.number(0, l.type(wide.id).rank()), wide.id);
  wide.range = {-wide.range.high, -wide.range.low};
  return wide;
}

// x times one positive number, or one for each position of an axis: only what an integer is worth changes.
std::optional<Real> scaled(IntegerLowering& l, std::size_t x_at, std::size_t constant_at) {
  const std::optional<AxisFactors> factors = axis_factors(l, constant_at);
  if (!factors || l.result_type().shape != l.operand_type(x_at).shape) return std::nullopt;
  const auto positive = [](double f) { return f > 0; };
  const auto negative = [](double f) { return f < 0; };
  const bool flips = std::all_of(factors->values.begin(), factors->values.end(), negative);
  if (!flips && !std::all_of(factors->values.begin(), factors->values.end(), positive)) return std::nullopt;
  Real x = l.real(x_at);
  if (x.axis && factors->axis && *x.axis != static_cast<std::int64_t>(*factors->axis)) return std::nullopt;
  if (flips) x = negated(l, x.axis ? l.real_with_one_scale(x_at) : x);
  if (factors->axis && !x.axis) {
    x.scales.assign(factors->values.size(), x.scale());
    x.axis = static_cast<std::int64_t>(*factors->axis);
  }
  for (std::size_t c = 0; c < x.scales.size(); ++c)
    x.scales[c] *= std::abs(factors->values[factors->values.size() > 1 ? c : 0]);
  return x;
}

int bits_of(std::int64_t magnitude) {
  int bits = 0;
  while (bits < 62 && (std::int64_t{1} << bits) < magnitude) ++bits;
  return bits;
}

// The other factor's bits are those it needs, up to half; what is left is this one's.
Real product(IntegerLowering& l, const Real& a, const Real& b) {
  const bool small = a.zero_point == 0 && b.zero_point == 0 && l.type(a.id).dtype == l.type(b.id).dtype &&
                     (l.type(a.id).dtype == DType::kI8 || l.type(a.id).dtype == DType::kI16);
  Real x = a, y = b;
  if (!small) {
    const int a_bits = bits_of(a.magnitude()), b_bits = bits_of(b.magnitude());
    const int half = kProductBits / 2;
    const int for_a = std::max(half, kProductBits - b_bits), for_b = std::max(half, kProductBits - a_bits);
    x = l.within_bits(l.widened(a), std::min(for_a, kProductBits - std::min(half, b_bits)));
    y = l.within_bits(l.widened(b), std::min(for_b, kProductBits - std::min(half, a_bits)));
  }
  const std::int64_t corners[] = {x.centred().low * y.centred().low, x.centred().low * y.centred().high,
                                  x.centred().high * y.centred().low, x.centred().high * y.centred().high};
  const bool square = a.id == b.id;
  const std::int64_t low = *std::min_element(corners, corners + 4),
                     high = *std::max_element(corners, corners + 4);
  return {l.binary(Op::kTosaMul, x.id, y.id), {x.scale() * y.scale()}, 0, {square ? 0 : low, high}};
}

// A constant as integers of at most 15 bits.
Real quantized_factor(IntegerLowering& l, std::size_t i) {
  Term term = term_of(l, i);
  const double largest = term.magnitude();
  const double unit = largest == 0 ? 1.0 : largest / 32767.0;
  const Integers made = in_unit(l, term, unit);
  return {made.id, {unit}, 0, made.range};
}

}  // namespace

Lowered integer_add(IntegerLowering& l) {
  require_f32(l);
  const double alpha = as_double(l.attrs<AlphaAttrs>().alpha);
  const bool subtracts = (l.node().op == Op::kSub) != (alpha < 0);
  const std::vector<Term> terms{term_of(l, 0), term_of(l, 1, alpha)};
  const double unit = common_unit(terms);
  const Integers a = in_unit(l, terms[0], unit), b = in_unit(l, terms[1], unit);
  const ValueRange range = subtracts ? ValueRange{a.range.low - b.range.high, a.range.high - b.range.low}
                                     : ValueRange{a.range.low + b.range.low, a.range.high + b.range.high};
  return Real{l.binary(subtracts ? Op::kTosaSub : Op::kTosaAdd, a.id, b.id), {unit}, 0, range};
}

Lowered integer_mul(IntegerLowering& l) {
  require_f32(l);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (!is_constant_operand(l, i)) continue;
    if (std::optional<Real> made = scaled(l, 1 - i, i)) return std::move(*made);
    return product(l, l.real_with_one_scale(1 - i), quantized_factor(l, i));
  }
  return product(l, l.real_with_one_scale(0), l.real_with_one_scale(1));
}

Lowered integer_extremum(IntegerLowering& l) {
  require_f32(l);
  const Op op = l.node().op;
  if (op == Op::kRelu || op == Op::kClamp) {
    const Real x = l.widened(l.real_with_one_scale(0));
    ValueRange to = op == Op::kRelu ? ValueRange{0, x.range.high} : x.range;
    if (op == Op::kClamp) {
      const auto& attrs = l.attrs<ClampAttrs>();
      const auto bound = [&](const std::optional<Scalar>& limit, std::int64_t none) {
        return limit ? static_cast<std::int64_t>(
                           std::clamp(std::nearbyint(as_double(*limit) / x.scale()), -0x1p31, 0x1p31))
                     : none;
      };
      to = {bound(attrs.min, x.range.low), bound(attrs.max, x.range.high)};
      if (to.low > to.high) to.low = to.high;  // torch: the upper bound wins
    }
    to = {std::max(to.low, x.range.low), std::min(to.high, x.range.high)};
    if (to.low > to.high)
      to = to.low > x.range.high ? ValueRange{to.low, to.low} : ValueRange{to.high, to.high};
    return Real{l.bounded(x.id, x.range, to), x.scales, 0, to};
  }
  const std::vector<Term> terms{term_of(l, 0), term_of(l, 1)};
  const double unit = common_unit(terms);
  const Integers a = in_unit(l, terms[0], unit), b = in_unit(l, terms[1], unit);
  const bool larger = op == Op::kMaximum;
  const auto pick = [&](std::int64_t x, std::int64_t y) { return larger ? std::max(x, y) : std::min(x, y); };
  const ValueRange range{pick(a.range.low, b.range.low), pick(a.range.high, b.range.high)};
  return Real{l.binary(larger ? Op::kTosaMaximum : Op::kTosaMinimum, a.id, b.id), {unit}, 0, range};
}

Lowered integer_comparison(IntegerLowering& l) {
  const std::vector<Term> terms{term_of(l, 0), term_of(l, 1)};
  const double unit = common_unit(terms);
  const ValueId a = in_unit(l, terms[0], unit).id, b = in_unit(l, terms[1], unit).id;
  switch (l.node().op) {  // NOLINT: the comparisons
    case Op::kEq:
      return l.binary(Op::kTosaEqual, a, b);
    case Op::kNe:
      return l.emit(Op::kTosaLogicalNot, NoAttrs{}, {l.binary(Op::kTosaEqual, a, b)});
    case Op::kGt:
      return l.binary(Op::kTosaGreater, a, b);
    case Op::kGe:
      return l.binary(Op::kTosaGreaterEqual, a, b);
    case Op::kLt:
      return l.binary(Op::kTosaGreater, b, a);
    default:
      return l.binary(Op::kTosaGreaterEqual, b, a);
  }
}

}  // namespace tosaic::passes
