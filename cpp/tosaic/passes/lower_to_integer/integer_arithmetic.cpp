#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/sum_factor.h"
#include "tosaic/passes/lower_to_integer/function_samples.h"
#include "tosaic/passes/lower_to_integer/function_table.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/integer_quotient.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/lower_to_integer/terms.h"
#include "tosaic/passes/lower_to_integer/whole_numbers.h"

namespace tosaic::passes {
namespace {

constexpr int kProductBits = 30;
constexpr const char* kNoNumber = "its result is no number";
constexpr const char* kPlusInfinity = "minus infinity becomes infinity";

bool is_number(const NodeView& node) {
  return has_integer_form(node.result_type().dtype) || node.result_qparams() != nullptr;
}

// True if operand i is the maximum of operand j over some axes, hence not below any element of j.
bool is_maximum_of(const RuleContext& ctx, std::size_t i, std::size_t j) {
  if (ctx.node.is_constant(i) || ctx.node.is_constant(j)) return false;
  const ScaledInteger top = ctx.scaled(i), all = ctx.scaled(j);
  if (top.scales != all.scales || top.zero_point != all.zero_point || top.axis || all.axis) return false;
  const Node* node = ctx.build.graph().producer(top.id);
  bool reduced = false;
  while (node != nullptr && (node->op == Op::kTosaReduceMax || node->op == Op::kReshape)) {
    reduced = reduced || node->op == Op::kTosaReduceMax;
    const ValueId from = ctx.build.graph().operands(*node)[0];
    if (from == all.id) return reduced;
    node = ctx.build.graph().producer(from);
  }
  return false;
}

// A constant that varies along at most one axis of the result. It has one factor for each position of that
// axis, or a single factor if it does not vary.
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

ScaledInteger negated(IntegerBuilder& build, const ScaledInteger& x) {
  if (x.minus_infinity) throw NoIntegerForm(kPlusInfinity);
  ScaledInteger wide = widened(build, x);
  wide.id = build.binary(Op::kTosaSub, build.number(0, build.type(wide.id).rank()), wide.id);
  wide.range = {-wide.range.high, -wide.range.low};
  return wide;
}

// x times a constant that has one number, or one number for each position of an axis, all of one sign. Only
// the scales change; negative factors negate the integers. Returns nothing for other constants.
std::optional<ScaledInteger> with_other_scales(IntegerBuilder& build, ScaledInteger x, const Term& constant) {
  if (constant.numbers.size() == 1 && constant.shape.size() > build.type(x.id).rank() && !x.pending_shape) {
    Shape padded = Dims::filled(constant.shape.size(), 1);
    const Shape& own = build.type(x.id).shape;
    const std::size_t before = padded.size() - own.size();
    std::ranges::copy(own, padded.begin() + static_cast<std::ptrdiff_t>(before));
    if (x.axis) *x.axis += static_cast<std::int64_t>(before);
    x.id = build.reshape(x.id, padded);
  }
  const Shape& shape = build.type(x.id).shape;
  const std::optional<AxisFactors> factors = axis_factors(constant, shape.size());
  if (!factors || constant.shape.size() > shape.size() || broadcast(shape, constant.shape) != shape)
    return std::nullopt;
  const auto positive = [](double f) { return f > 0; };
  const auto negative = [](double f) { return f < 0; };
  const bool flips = std::all_of(factors->values.begin(), factors->values.end(), negative);
  if (!flips && !std::all_of(factors->values.begin(), factors->values.end(), positive)) return std::nullopt;
  if (x.minus_infinity) {
    // A factor below 1 brings minus infinity nearer to the finite numbers.
    if (factors->axis || x.axis || flips) throw NoIntegerForm(flips ? kPlusInfinity : kNoInfinity);
    const double factor = constant.magnitude(), finite = finite_magnitude(x);
    if (factor < 1) x = with_lower_infinity(build, x, finite + hidden_below(finite * factor) / factor);
  }
  if (x.axis && factors->axis && *x.axis != static_cast<std::int64_t>(*factors->axis)) return std::nullopt;
  if (flips && build.type(x.id).dtype == DType::kI48) return std::nullopt;
  if (flips) x = negated(build, x);
  if (factors->axis && !x.axis) {
    x.scales.assign(factors->values.size(), x.scale());
    x.axis = static_cast<std::int64_t>(*factors->axis);
  }
  for (std::size_t c = 0; c < x.scales.size(); ++c)
    x.scales[c] *= std::abs(factors->values[factors->values.size() > 1 ? c : 0]);
  x.error *= constant.magnitude();
  return x;
}

double size_of(const ScaledInteger& x) { return static_cast<double>(x.magnitude()) * x.scale(); }

// The product of two tensors. i8 by i8 and i16 by i16 without zero points are multiplied as they are. Others
// are widened to i32, and the product loses the bits beyond 30.
ScaledInteger product(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b) {
  if (a.minus_infinity || b.minus_infinity) throw NoIntegerForm(kNoInfinity);
  const DType dtype = build.type(a.id).dtype;
  const bool narrow = a.zero_point == 0 && b.zero_point == 0 && dtype == build.type(b.id).dtype &&
                      (dtype == DType::kI8 || dtype == DType::kI16);
  const ScaledInteger x = narrow ? a : widened(build, a), y = narrow ? b : widened(build, b);
  const int shift = std::max(0, bits_to(x.magnitude()) + bits_to(y.magnitude()) - kProductBits);
  const auto rounded = [&](__int128_t value) {
    return static_cast<std::int64_t>((value + (shift > 0 ? __int128_t{1} << (shift - 1) : 0)) >> shift);
  };
  const auto times = [&](std::int64_t p, std::int64_t q) { return rounded(static_cast<__int128_t>(p) * q); };
  const std::int64_t corners[] = {times(x.range.low, y.range.low), times(x.range.low, y.range.high),
                                  times(x.range.high, y.range.low), times(x.range.high, y.range.high)};
  const std::int64_t low = *std::min_element(corners, corners + 4);
  const std::int64_t high = *std::max_element(corners, corners + 4);
  const ValueId made = IntegerMath(build).mul(x.id, y.id, shift);
  const bool square = a.id == b.id && a.zero_point == b.zero_point;
  ScaledInteger out{made, {std::ldexp(x.scale() * y.scale(), shift)}, 0, {square ? 0 : low, high}};
  out.error = x.error * size_of(y) + y.error * size_of(x) + (shift > 0 ? out.scale() / 2 : 0);
  return out;
}

// Returns a constant as integers that x is multiplied by. If the constant is quantized and its integers minus
// the zero point have at most 15 bits and a sign, the result is these integers, and is exact. If not, each
// number is rounded to 15 bits of the largest number, or to 30 if x has more than 16: the product loses bits
// anyway.
ScaledInteger quantized_factor(IntegerBuilder& build, const ScaledInteger& x, const Term& term) {
  constexpr double kMost = 32767;
  const double largest = term.magnitude();
  const bool exact = term.scale != 0 && term.factor == 1 && largest <= kMost * term.scale;
  const double most = x.magnitude() > 1 << 15 ? 0x1p30 - 1 : kMost;
  const double unit = exact ? term.scale : largest == 0 ? 1.0 : largest / most;
  const Integers made = in_unit(build, term, unit);
  ScaledInteger out{made.id, {unit}, 0, made.range};
  out.error = exact ? 0 : made.error;
  return out;
}

// The error that product() adds to the product of x and y.
double error_of_product(const ScaledInteger& x, const ScaledInteger& y) {
  const int fewer = std::max(0, bits_to(x.magnitude()) + bits_to(y.magnitude()) - kProductBits);
  return fewer > 0 ? std::ldexp(x.scale() * y.scale(), fewer - 1) : 0;
}

// product(), or saturating_product_of(), whose unit follows from `to`, if the bits beyond 30 matter to a
// result that is rounded to `to`, as they may with integers of the program.
ScaledInteger product_for(IntegerBuilder& build, const ScaledInteger& x, const ScaledInteger& y,
                          const std::optional<QParams>& to) {
  constexpr double kMostError = 0x1p-5;  // in steps of the result
  if (!to || x.minus_infinity || y.minus_infinity ||
      error_of_product(x, y) <= kMostError * to->scales.front())
    return product(build, x, y);
  return saturating_product_of(build, widened(build, x), widened(build, y), *to);
}

ScaledInteger multiplied(IntegerBuilder& build, const ScaledInteger& x, const Term& by,
                         const std::optional<QParams>& to = std::nullopt) {
  if (by.scaled) return product(build, with_one_scale(build, x), *by.scaled);
  if (std::optional<ScaledInteger> made = with_other_scales(build, x, by)) return std::move(*made);
  const ScaledInteger data = with_one_scale(build, x);
  return product_for(build, data, quantized_factor(build, data, by), to);
}

// A constant of 64-bit integers in two of 32 bits: number = 2^14 * high + low, with low in [0, 2^14).
struct Halves {
  ValueId high, low;
};

constexpr int kLowBits = 14;

Halves halves_of(IntegerBuilder& build, const Shape& shape, const std::vector<std::int64_t>& numbers) {
  Term high, low;
  high.shape = low.shape = shape;
  for (const std::int64_t n : numbers) {
    high.numbers.push_back(static_cast<double>(n >> kLowBits));
    low.numbers.push_back(static_cast<double>(n & ((std::int64_t{1} << kLowBits) - 1)));
  }
  return {in_unit(build, high, 1).id, in_unit(build, low, 1).id};
}

// The floor (or the truncation) of x times the numbers of a constant, for x of at most 16 bits. The numbers
// have 29 bits, in two parts whose products with x are exact: with the 15 bits of quantized_factor(), many
// products would be on the other side of a whole number. Returns nothing for wider x and for large numbers.
//
// A product that f32 rounds to a whole number counts as that number. If x is whole, torch's floored quotient
// is exact, so only the rounding of the constant is tolerated.
std::optional<ScaledInteger> whole_product(IntegerBuilder& build, const ScaledInteger& x, const Term& by,
                                           Op op) {
  const double largest = by.magnitude() * x.scale();
  const std::int64_t most = x.magnitude();
  if (x.minus_infinity || most > 1 << 15 || largest == 0) return std::nullopt;
  const int bits = std::min(28 - std::ilogb(largest), 31 + kLowBits);
  if (bits < kLowBits) return std::nullopt;
  const bool truncates = op == Op::kTrunc, is_exact = x.scale() == 1 && x.error == 0 && !truncates;
  std::vector<std::int64_t> factors, errors;
  Term sign;
  sign.shape = by.shape;
  for (const double number : by.numbers) {
    const double factor = std::ldexp(number * by.factor * x.scale(), bits);
    const double error = std::ceil(x.error / x.scale() * std::abs(factor));
    factors.push_back(std::llround(truncates ? std::abs(factor) : factor));
    errors.push_back(static_cast<std::int64_t>(std::min(error, std::ldexp(0.25, bits))));
    sign.numbers.push_back(factor < 0 ? -1 : 1);
  }
  IntegerMath m(build);
  const Halves factor = halves_of(build, by.shape, factors);
  const ValueId size = build.emit(Op::kTosaAbs, NoAttrs{}, {x.id});
  const ValueId given = truncates ? size : x.id;
  ValueId high = m.mul(given, factor.high, 0), low = m.mul(given, factor.low, 0);
  ValueId near = m.right(m.add(size, 1), 1);  // a factor is off by half a unit
  if (!is_exact) {  // half a unit of f32: 2^-24 of the power of two below the product
    const ValueId top = m.maximum(truncates ? high : build.emit(Op::kTosaAbs, NoAttrs{}, {high}), 1);
    const ValueId power = m.left(m.number(top, 1), m.sub(31, m.clz(top)));
    near = m.add(near, m.right(power, 24 - kLowBits));
  }
  low = m.add(low, near);
  if (x.error > 0) {
    const Halves error = halves_of(build, by.shape, errors);
    high = m.add(high, error.high);
    low = m.add(low, error.low);
  }
  ValueId made = m.right(m.add(high, m.right(low, kLowBits)), bits - kLowBits);
  if (truncates) {
    made = m.with_sign(made, build.binary(Op::kTosaGreater, m.number(x.id, 0), x.id));
    made = m.mul(made, in_unit(build, sign, 1).id, 0);
  }
  const auto end = static_cast<std::int64_t>(std::ceil(largest * static_cast<double>(most))) + 1;
  ScaledInteger out{made, {1.0}, 0, {-end, end}};
  out.nan_mask = x.nan_mask;
  return out;
}

// An addend in which the number h = -2 * (finite + hidden_below(finite)) has replaced minus infinity. The sum
// of h and any finite number of the other addend is below all sums of finite numbers, by at least 2 *
// hidden_below(finite).
struct Masked {
  Term term;
  double finite;       // the largest magnitude of a sum of finite numbers
  bool hides = false;  // an element was minus infinity
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

// True for a constant of nothing but 0 and minus infinity. If it is added to an operand that hides minus
// infinity (scaled_integer.h), the largest integer that represents minus infinity stays the same.
bool is_mask(const Term& term) {
  return !term.scaled && std::all_of(term.numbers.begin(), term.numbers.end(),
                                     [](double x) { return x == 0 || is_minus_infinity(x); });
}

// The largest magnitude of the finite numbers of a term.
double finite_magnitude(const Term& term) {
  if (term.scaled) return finite_magnitude(*term.scaled) * std::abs(term.factor);
  double largest = 0;
  for (const double x : term.numbers)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x * term.factor));
  return largest;
}

ScaledInteger sum_of(IntegerBuilder& build, const Integers& x, const Integers& y, double unit,
                     bool subtracts) {
  const ValueRange range = subtracts ? ValueRange{x.range.low - y.range.high, x.range.high - y.range.low}
                                     : ValueRange{x.range.low + y.range.low, x.range.high + y.range.high};
  ScaledInteger out{build.binary(subtracts ? Op::kTosaSub : Op::kTosaAdd, x.id, y.id), {unit}, 0, range};
  out.error = x.error + y.error;
  return out;
}

// The sum or difference of an operand that hides minus infinity and an operand that is not a mask. The
// integer of minus infinity moves below all sums of finite numbers.
ScaledInteger added_to_infinity(IntegerBuilder& build, Term first, Term second, bool subtracts) {
  const double finite = finite_magnitude(first) + finite_magnitude(second),
               least = finite + hidden_below(finite);
  for (Term* term : {&first, &second}) {
    if (term->is_hiding()) {
      if (term->factor == 0) throw NoIntegerForm(kNoInfinity);
      *term->scaled = with_lower_infinity(build, *term->scaled, least / std::abs(term->factor));
    }
    for (double& x : term->numbers)
      if (!subtracts && is_minus_infinity(x * term->factor)) x = -2 * least / term->factor;
    require_finite(*term);
  }
  const double unit = common_unit({first, second});
  const Integers x = in_unit(build, first, unit), y = in_unit(build, second, unit);
  ScaledInteger out = sum_of(build, x, y, unit, subtracts);
  out.minus_infinity = static_cast<std::int64_t>(-least / unit);
  return out;
}

// The integers of a term that hides no infinity; nothing for other terms.
std::optional<DType> integers_of(const IntegerBuilder& build, const Term& term) {
  if (!term.scaled || term.factor == 0 || term.is_hiding()) return std::nullopt;
  return build.type(term.scaled->id).dtype;
}

// The unit of a sum. If two addends of one dtype have different units, the coarser one gets the factor of
// ir/sum_factor.h.
double unit_of_sum(const IntegerBuilder& build, const Term& first, const Term& second) {
  const std::optional<DType> dtype = integers_of(build, first);
  if (!dtype || dtype != integers_of(build, second)) return common_unit({first, second});
  const std::optional<int> bits = sum_factor_bits(*dtype);
  const double a = first.scaled->scale() * std::abs(first.factor),
               b = second.scaled->scale() * std::abs(second.factor);
  return bits && a != b ? std::ldexp(std::max(a, b), -*bits) : common_unit({first, second});
}

ScaledInteger added(IntegerBuilder& build, const Term& first, const Term& second, bool subtracts) {
  if (subtracts && second.is_hiding()) throw NoIntegerForm(kPlusInfinity);
  if ((first.is_hiding() && (subtracts || !is_mask(second))) || (second.is_hiding() && !is_mask(first)))
    return added_to_infinity(build, first, second, subtracts);
  const double a_size = first.scaled ? first.magnitude() : 0, b_size = second.scaled ? second.magnitude() : 0;
  if (subtracts) require_finite(second);
  const Masked a = without_infinity(first, b_size);
  const Masked b = subtracts ? Masked{second, 0} : without_infinity(second, a_size);
  const double unit = unit_of_sum(build, a.term, b.term);
  const Integers x = in_unit(build, a.term, unit), y = in_unit(build, b.term, unit);
  ScaledInteger out = sum_of(build, x, y, unit, subtracts);
  const double finite = std::max(a.finite, b.finite);
  if (is_mask(second) && first.is_hiding())
    out.minus_infinity = least_in_unit(*first.scaled, unit);
  else if (is_mask(first) && second.is_hiding() && !subtracts)
    out.minus_infinity = least_in_unit(*second.scaled, unit);
  else if (a.hides || b.hides)
    out.minus_infinity = static_cast<std::int64_t>(-(finite + hidden_below(finite)) / unit);
  return out;
}

// True if operand i is the floor of operand `of` and has not been quantized.
bool is_floor_of(const NodeView& node, std::size_t i, std::size_t of) {
  const Node* producer = node.graph().producer(node.operand(i));
  return producer != nullptr && producer->op == Op::kFloor && node.operand_type(i).qparams == nullptr &&
         node.graph().operands(*producer)[0] == node.operand(of);
}

}  // namespace

ScaledInteger product_of(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b) {
  return product(build, a, b);
}

RuleResult integer_add(const RuleContext& ctx) {
  if (!is_number(ctx.node)) return Refusal{kNoNumber};
  const double alpha = as_double(ctx.node.attrs<AlphaAttrs>().alpha);
  const bool subtracts = (ctx.node.op() == Op::kSub) != (alpha < 0);
  Term terms[] = {term_of(ctx, 0), term_of(ctx, 1, std::abs(alpha))};
  // x - max(x) treats minus infinity as a number: max(x) is minus infinity only if its whole row is.
  if (subtracts && alpha == 1 && terms[1].is_hiding() && is_maximum_of(ctx, 1, 0))
    for (Term& term : terms) term.scaled->minus_infinity.reset();
  ScaledInteger out = added(ctx.build, terms[0], terms[1], subtracts);
  require_bits(ctx, terms, out.scale());
  if (subtracts && alpha == 1 && is_floor_of(ctx.node, 1, 0)) {  // x - floor(x) is in [0, 1)
    const auto one = static_cast<std::int64_t>(std::ceil(1 / out.scale()));
    out.range = {std::max<std::int64_t>(out.range.low, -1), std::min(out.range.high, one + 1)};
  }
  if (subtracts && is_maximum_of(ctx, 1, 0)) out.range.high = std::min<std::int64_t>(out.range.high, 0);
  return out;
}

namespace {

// The coarsest unit in which a product of x may be computed. `step` is the unit of the other operand or, if
// that is a constant, its least magnitude. In the unit x.scale() * step, the product is exact. If x has few
// bits, the product may have a unit 2^16 times as coarse. Counts have 32 bits, but most of them are small: in
// such a unit, their products would be 0.
double coarsest_unit(const ScaledInteger& x, double step, double other_size) {
  constexpr double kCount = 0x1p30, kFine = 0x1p16;
  const bool is_count = x.scale() == 1 && static_cast<double>(x.magnitude()) >= kCount;
  const bool is_other_count = step == 1 && other_size >= kCount;
  return std::ranges::min(x.scales) * step * (is_count || is_other_count ? 1 : kFine);
}

// Refuses a product that would lose its small numbers, if nothing quantizes it and the target has floats to
// compute it.
RuleResult unless_coarse(const RuleContext& ctx, const ScaledInteger& made, double coarsest) {
  const bool has_choice = ctx.build.rules().float_arithmetic && !ctx.node.qparams_behind_movement() &&
                          ctx.values.noticed(ctx.node.node());
  if (has_choice && std::ranges::max(made.scales) > coarsest)
    return Refusal{"its numbers have too many bits for one unit, and nothing quantizes them"};
  return made;
}

// x times the numbers of a constant that differ so much that factors of 15 bits, or one unit for all
// products, would leave too few bits for the least products, as in x * [1e6, -1e6, 1, 2] in front of a
// sigmoid. Products are clamped to what their readers notice, or to their qparams, and the factors have 31
// bits. Returns nothing if the usual product is fine enough.
std::optional<ScaledInteger> product_as_noticed(const RuleContext& ctx, const ScaledInteger& operand,
                                                const Term& by) {
  constexpr double kApart = 16, kCoarse = 16, kFewest = 64, kBits = 0x1p30, kFactorBits = 0x1p11;
  const std::optional<analysis::RelevantNumbers> noticed = ctx.values.noticed(ctx.node.node());
  const std::optional<QParams> to = ctx.node.qparams_behind_movement();
  if (to ? to->axis.has_value() : !noticed || !std::isfinite(noticed->finest)) return std::nullopt;
  if (operand.axis || operand.groups || operand.minus_infinity || operand.pending_shape ||
      operand.magnitude() > 1 << 16)
    return std::nullopt;
  const double step = operand.scale(), size = size_of(operand),
               finest = to ? to->scales.front() : noticed->finest;
  double least = std::numeric_limits<double>::infinity();
  for (const double f : by.numbers)
    if (f != 0) least = std::min(least, std::abs(f * by.factor));
  const double most = by.magnitude();
  if (!(most > kApart * least) || most * size <= kFactorBits * finest) return std::nullopt;

  const double enough = to                ? largest_number(*to)
                        : noticed->by_row ? std::numeric_limits<double>::infinity()
                                          : magnitude(noticed->bounds).high;
  std::vector<double> factors;  // the products with one step of x
  std::vector<std::int64_t> limits;
  double largest = 0;
  for (const double number : by.numbers) {
    const double f = std::abs(number * by.factor) * step;
    const double steps = std::min(std::ceil(enough / f), static_cast<double>(operand.magnitude()));
    limits.push_back(static_cast<std::int64_t>(f == 0 ? 0 : std::max(steps, 1.0)));
    factors.push_back(std::copysign(std::min(f, 2 * enough), number * by.factor));
    largest = std::max(largest, std::abs(factors.back()) * static_cast<double>(limits.back()));
  }
  const double unit = largest / kBits;
  if (unit > kCoarse * finest && least * size < kFewest * unit)
    throw NoIntegerForm("one unit for all products leaves " +
                        std::to_string(static_cast<int>(least * size / unit)) +
                        " steps of the least of them");
  double largest_factor = 0;
  for (const double f : factors) largest_factor = std::max(largest_factor, std::abs(f));
  const int shift = std::clamp(30 - std::ilogb(largest_factor / unit) - 1, 0, 30);
  std::vector<std::int64_t> integers, low, high;
  for (std::size_t k = 0; k < factors.size(); ++k) {
    integers.push_back(std::llround(std::ldexp(factors[k] / unit, shift)));
    low.push_back(-limits[k]);
    high.push_back(limits[k]);
  }
  ValueId x = widened(ctx.build, operand).id;
  if (*std::ranges::min_element(limits) < operand.magnitude()) {
    x = ctx.build.binary(Op::kTosaMaximum, x, ctx.build.constant(DType::kI32, by.shape, low));
    x = ctx.build.binary(Op::kTosaMinimum, x, ctx.build.constant(DType::kI32, by.shape, high));
  }
  const ValueId made =
      IntegerMath(ctx.build).mul(x, ctx.build.constant(DType::kI32, by.shape, integers), shift);
  const auto end = static_cast<std::int64_t>(std::ceil(largest / unit)) + 1;
  ScaledInteger out{made, {unit}, 0, {-end, end}};
  out.error = operand.error * most + unit;
  return out;
}

}  // namespace

RuleResult integer_mul(const RuleContext& ctx) {
  if (!is_number(ctx.node)) return Refusal{kNoNumber};
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (!ctx.node.is_constant(i)) continue;
    const Term constant = term_of(ctx, i);
    require_finite(constant);
    const ScaledInteger x = ctx.scaled(1 - i);
    if (const std::optional<ScaledInteger> made = product_as_noticed(ctx, x, constant)) return *made;
    double least = std::numeric_limits<double>::infinity();
    for (const double f : constant.numbers)
      if (f != 0) least = std::min(least, std::abs(f * constant.factor));
    const ScaledInteger made = multiplied(ctx.build, x, constant, ctx.node.qparams_behind_movement());
    return unless_coarse(ctx, made, coarsest_unit(x, least, 0));
  }
  const ScaledInteger a = ctx.with_one_scale(0), b = ctx.with_one_scale(1);
  const std::optional<QParams> to = ctx.node.qparams_behind_movement();
  const ScaledInteger made = product_for(ctx.build, a, b, to);
  if (!to) {  // else it saturates
    if (const double least = ctx.least_magnitude(1); least > 0) ctx.require_bits(0, a, made.scale(), least);
    if (const double least = ctx.least_magnitude(0); least > 0) ctx.require_bits(1, b, made.scale(), least);
  }
  return unless_coarse(ctx, made, coarsest_unit(a, b.scale(), static_cast<double>(b.magnitude())));
}

// The rounded quotient of operand 0 and a constant, whose reciprocals are `by`.
RuleResult rounded_quotient(const RuleContext& ctx, const Term& by) {
  constexpr double kMostError = 0x1p-9;
  const Op op = ctx.node.attrs<DivAttrs>().rounding == DivRounding::kFloor ? Op::kFloor : Op::kTrunc;
  if (const std::optional<ScaledInteger> made = with_other_scales(ctx.build, ctx.scaled(0), by))
    return in_whole_numbers(ctx.build, with_one_scale(ctx.build, *made), op);
  ScaledInteger x = widened(ctx.build, ctx.with_one_scale(0));
  const std::optional<QParams> to = ctx.node.qparams_behind_movement();
  double least = by.magnitude();
  for (const double f : by.numbers) least = std::min(least, std::abs(f));
  if (to && least > 0 && !x.minus_infinity) {  // quotients beyond the largest result saturate
    const double enough = std::min(std::ceil((largest_number(*to) + 2) / (least * x.scale())), 0x1p31);
    const auto end = static_cast<std::int64_t>(enough);
    const ValueRange within{std::max(x.range.low, -end), std::min(x.range.high, end)};
    if (within.low <= within.high) {
      x.id = ctx.build.bounded(x.id, x.range, within);
      x.range = within;
    }
  }
  if (const std::optional<ScaledInteger> made = whole_product(ctx.build, x, by, op)) return *made;
  const ScaledInteger made = multiplied(ctx.build, x, by);
  const double near = std::max(made.error, std::ldexp(size_of(made), -25));  // as for in_whole_numbers()
  if (near > kMostError && (!to || to->scales.front() < 1))
    return Refusal{"it rounds quotients whose fractions have few bits"};
  return in_whole_numbers(ctx.build, with_one_scale(ctx.build, made), op);
}

// The rounded quotient of two numbers, for a result that is quantized in the end.
RuleResult rounded_quotient_of_two(const RuleContext& ctx) {
  const auto refused = [] { return Refusal{"it rounds the quotient of two numbers"}; };
  const std::optional<QParams> to = ctx.node.qparams_behind_movement();
  if (!to || ctx.node.is_constant(0)) return refused();
  IntegerBuilder& build = ctx.build;
  IntegerMath m(build);
  const ScaledInteger x = widened(build, ctx.with_one_scale(0)), y = widened(build, ctx.with_one_scale(1));
  if (x.error > 0 || y.error > 0 || x.minus_infinity || y.minus_infinity) return refused();
  const auto sized = [&](const ScaledInteger& of) {
    ScaledInteger out = of;
    out.id = build.emit(Op::kTosaAbs, NoAttrs{}, {of.id});
    out.range = {0, of.magnitude()};
    return out;
  };
  ScaledInteger v = sized(x), d = sized(y);
  const double largest = largest_number(*to);
  const auto bound = [&](ScaledInteger& of, double enough) {  // in units of `of`
    const auto high = static_cast<std::int64_t>(std::min(std::ceil(enough) + 1, 0x1p31 - 1));
    of.id = build.bounded(of.id, of.range, {0, high});
    of.range.high = std::min(of.range.high, high);
  };
  const auto size_of_range = [](const ScaledInteger& of) {
    return static_cast<double>(of.range.high) * of.scale();
  };
  bound(v, (largest + 2) * size_of_range(d) / v.scale());  // beyond, all quotients saturate
  bound(d, size_of_range(v) / d.scale());                  // beyond, all quotients are below 1
  const std::optional<Division> made = division_of(build, v, d, largest);
  if (!made) return refused();
  const auto below_zero = [&](ValueId id) { return build.binary(Op::kTosaGreater, m.number(id, 0), id); };
  const ValueId differ = build.binary(Op::kTosaLogicalXor, below_zero(x.id), below_zero(y.id));
  ScaledInteger out = made->whole;
  const std::int64_t end = out.range.high + 1;
  ValueId below = out.id;
  if (ctx.node.attrs<DivAttrs>().rounding == DivRounding::kFloor) {
    const ValueId has_rest =
        build.binary(Op::kTosaGreater, made->rest.id, m.number(made->rest.id, made->near));
    below = build.elementwise(Op::kTosaSelect, NoAttrs{}, {has_rest, m.add(out.id, 1), out.id});
  }
  out.id = build.elementwise(Op::kTosaSelect, NoAttrs{}, {differ, m.sub(0, below), out.id});
  out.range = {-end, end};
  return out;
}

// A division by a constant becomes a product. Any other division is computed from mantissas and exponents.
RuleResult integer_div(const RuleContext& ctx) {
  if (!is_number(ctx.node)) return Refusal{kNoNumber};
  const DivRounding rounding = ctx.node.attrs<DivAttrs>().rounding;
  if (rounding != DivRounding::kNone) {
    if (const std::optional<RuleResult> function = tabulated(ctx)) return *function;
    if (!ctx.node.is_constant(1)) return rounded_quotient_of_two(ctx);
  }
  if (ctx.node.is_constant(1)) {
    Term by = term_of(ctx, 1);
    for (double& x : by.numbers) x = 1 / x;
    by.scale = 0;
    require_finite(by);
    if (rounding != DivRounding::kNone) return rounded_quotient(ctx, by);
    if (const std::optional<ScaledInteger> made = product_as_noticed(ctx, ctx.scaled(0), by)) return *made;
    return multiplied(ctx.build, ctx.scaled(0), by, ctx.node.qparams_behind_movement());
  }
  const ScaledInteger divisor = widened(ctx.build, ctx.with_one_scale(1));
  if (is_vague_near_zero(divisor)) {
    if (std::optional<RuleResult> made = smooth_composition(ctx)) return *made;
    if (function_table(ctx)) return Refusal{"its divisor has few bits near zero"};
  }
  if (!ctx.node.is_constant(0))
    return quotient_of(ctx.build, widened(ctx.build, ctx.with_one_scale(0)), divisor,
                       ctx.node.qparams_behind_movement());
  const Term dividend = term_of(ctx, 0);
  require_finite(dividend);
  const double unit = unit_for(dividend.magnitude());
  const Integers made = in_unit(ctx.build, dividend, unit);
  return quotient_of(ctx.build, {made.id, {unit}, 0, made.range}, divisor,
                     ctx.node.qparams_behind_movement());
}

ScaledInteger times(const RuleContext& ctx, const ScaledInteger& x, std::size_t i, const Shape& own) {
  Term by = term_of(ctx, i);
  require_finite(by);
  by.shape = own;
  if (by.scaled) by.scaled->id = ctx.build.reshape(by.scaled->id, own);
  return multiplied(ctx.build, x, by);
}

ScaledInteger plus(const RuleContext& ctx, const ScaledInteger& x, std::size_t i, const Shape& own) {
  Term addend = term_of(ctx, i);
  require_finite(addend);
  addend.shape = own;
  if (addend.scaled) addend.scaled->id = ctx.build.reshape(addend.scaled->id, own);
  return added(ctx.build, term_of(ctx.build, x), addend, false);
}

ScaledInteger total(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b) {
  return added(build, term_of(build, a), term_of(build, b), false);
}

ScaledInteger difference(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b) {
  return added(build, term_of(build, a), term_of(build, b), true);
}

std::optional<Division> division_of(IntegerBuilder& build, const ScaledInteger& v, const ScaledInteger& d,
                                    double largest) {
  constexpr double kMostQuotient = 0x1p22;
  const double size = static_cast<double>(v.magnitude()) * v.scale();
  const auto highest = static_cast<double>(d.range.high);
  const double most = std::min(size / d.scale(), (largest + 2) * highest) + highest;
  if (largest >= kMostQuotient || most >= 0x1p30) return std::nullopt;
  const auto multiples = static_cast<std::int64_t>(std::ceil(most));
  ScaledInteger multiple{d.id, {d.scale()}, 0, {-multiples, multiples}};
  if (common_unit({term_of(build, v), term_of(build, multiple)}) > std::min(v.scale(), d.scale()))
    return std::nullopt;
  IntegerMath m(build);
  QParams to;
  to.scales = {std::max(largest, 1.0)};
  to.zero_points = {0};
  to.qmin = -1, to.qmax = 1;
  ScaledInteger quotient = quotient_of(build, v, d, to);
  const std::int64_t end = std::llround((to.scales.front() + 2) / quotient.scale());
  const ValueRange near{std::max(quotient.range.low, -end), std::min(quotient.range.high, end)};
  quotient.id = build.bounded(quotient.id, quotient.range, near);
  quotient.range = near;
  // The nearest whole number is the floor or the number above it. One step corrects it to the floor.
  Division out{rescaled(build, quotient, DType::kI32, 1.0), {}, 0};
  multiple.id = m.mul(out.whole.id, d.id, 0);
  out.rest = difference(build, v, multiple);
  out.near = static_cast<std::int64_t>(std::ldexp(size, -25) / out.rest.scale());
  const ValueId step = rescaled(build, d, DType::kI32, out.rest.scale()).id;
  const auto correct = [&](ValueId where, ValueId whole, ValueId rest) {
    out.whole.id = build.elementwise(Op::kTosaSelect, NoAttrs{}, {where, whole, out.whole.id});
    out.rest.id = build.elementwise(Op::kTosaSelect, NoAttrs{}, {where, rest, out.rest.id});
  };
  const ValueId is_low = build.binary(Op::kTosaGreater, m.number(out.rest.id, 0), out.rest.id);
  correct(is_low, m.add(out.whole.id, -1), m.add(out.rest.id, step));
  const ValueId above = m.sub(out.rest.id, step);
  const ValueId is_high = build.binary(Op::kTosaGreaterEqual, above, m.number(out.rest.id, -out.near));
  correct(is_high, m.add(out.whole.id, 1), m.maximum(above, 0));
  out.rest.range = {0, std::llround(highest * d.scale() / out.rest.scale()) + 1};
  out.whole.range = {out.whole.range.low - 1, out.whole.range.high + 1};
  return out;
}

RuleResult integer_sign_change(const RuleContext& ctx) {
  if (!is_number(ctx.node)) return Refusal{kNoNumber};
  if (ctx.node.op() == Op::kNeg) return negated(ctx.build, ctx.with_one_scale(0));
  ScaledInteger x = widened(ctx.build, ctx.with_one_scale(0));
  if (x.minus_infinity) return Refusal{kPlusInfinity};
  x.id = ctx.build.emit(Op::kTosaAbs, NoAttrs{}, {x.id});
  x.range = {0, x.magnitude()};
  return x;
}

}  // namespace tosaic::passes
