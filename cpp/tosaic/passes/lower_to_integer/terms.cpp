#include "tosaic/passes/lower_to_integer/terms.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

constexpr int kSumBits = 29;

// The numbers of a constant in a unit. Bytes are rounded as RESCALE rounds them, not as llround does, so that
// the pass narrow-operands finds a multiplier.
std::vector<std::int64_t> integers_in(const Term& term, double unit) {
  constexpr double kMostSteps = 255, kLargestRatio = 0x1p28;
  const double factor = std::abs(term.factor), ratio = term.scale * factor / unit;
  const bool are_bytes =
      ratio > 0 && ratio < kLargestRatio && term.magnitude() <= kMostSteps * term.scale * factor;
  const Multiplier by = are_bytes ? quant::multiplier_of(ratio, MultiplierWidth::k32) : Multiplier{};
  std::vector<std::int64_t> out;
  for (const double x : term.numbers)
    out.push_back(are_bytes ? apply_scale(std::llround(x / term.scale), by, MultiplierWidth::k32,
                                          RoundingMode::kSingleRound)
                            : std::llround(x * factor / unit));
  return out;
}

}  // namespace

double Term::magnitude() const {
  if (scaled) return static_cast<double>(scaled->magnitude()) * scaled->scale() * std::abs(factor);
  double largest = 0;
  for (const double x : numbers) largest = std::max(largest, std::abs(x * factor));
  return largest;
}

Term term_of(const RuleContext& ctx, std::size_t operand, double factor) {
  Term out{std::nullopt, {}, ctx.node.operand_type(operand).shape, factor};
  if (ctx.node.is_constant(operand)) {
    out.numbers = ctx.numbers(operand);
    if (const QParamsRef& qparams = ctx.node.operand_type(operand).qparams;
        qparams && qparams->scales.size() == 1)
      out.scale = static_cast<double>(static_cast<float>(qparams->scales[0]));
  } else {
    out.scaled = ctx.with_one_scale(operand);
    if (factor == 0 && !out.is_hiding()) {  // integers have no infinities, which times 0 would be NaN
      out.scaled.reset();
      out.numbers.assign(static_cast<std::size_t>(num_elements(out.shape)), 0.0);
    }
  }
  return out;
}

Term term_of(IntegerBuilder& build, const ScaledInteger& x) {
  return {with_one_scale(build, x), {}, build.type(x.id).shape, 1};
}

double finite_magnitude(const ScaledInteger& x) {
  ValueRange finite = x.centred();
  if (x.minus_infinity) finite.low = std::max(finite.low, *x.minus_infinity);
  return static_cast<double>(std::max(std::abs(finite.low), std::abs(finite.high))) * x.scale();
}

ScaledInteger with_lower_infinity(IntegerBuilder& build, const ScaledInteger& x, double least) {
  const double unit = std::max(x.scale(), unit_for(2 * least));
  ScaledInteger out = unit == x.scale() ? widened(build, x) : rescaled(build, x, DType::kI32, unit);
  const TensorType& type = build.type(x.id);
  // The comparison is in the unit of x, in which no finite number is near minus infinity.
  const ValueId hidden =
      build.binary(Op::kTosaGreaterEqual, build.number(*x.minus_infinity, type.rank(), type.dtype), x.id);
  const auto number = static_cast<std::int64_t>(-2 * least / unit);
  out.id = build.elementwise(Op::kTosaSelect, NoAttrs{},
                             {hidden, build.number(number, type.rank(), DType::kI32), out.id});
  out.range.low = number;
  out.minus_infinity = static_cast<std::int64_t>(-least / unit);
  return out;
}

void require_finite(const Term& term) {
  for (const double x : term.numbers)
    if (!std::isfinite(x)) throw NoIntegerForm("a constant operand is not finite");
}

void require_bits(const RuleContext& ctx, std::span<const Term> terms, double unit) {
  for (std::size_t i = 0; i < terms.size(); ++i)
    if (terms[i].scaled && terms[i].factor != 0)
      ctx.require_bits(i, *terms[i].scaled, unit / std::abs(terms[i].factor));
}

Integers in_unit(IntegerBuilder& build, const Term& term, double unit) {
  const double factor = std::abs(term.factor);
  if (!term.scaled) {
    std::vector<std::int64_t> values = integers_in(term, unit);
    // A positive scalar does not round to 0: it may protect a divisor or a root.
    const bool vanishes = values.size() == 1 && values[0] == 0 && term.numbers[0] > 0;
    if (vanishes) values[0] = 1;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const ValueRange range{*low, *high};
    return {build.constant(DType::kI32, term.shape, values), range, vanishes ? unit : unit / 2};
  }
  ScaledInteger x = *term.scaled;
  x.scales = {x.scale() * factor};
  x.error *= factor;
  const ScaledInteger made = x.scale() == unit ? widened(build, x) : rescaled(build, x, DType::kI32, unit);
  return {made.id, made.range, made.error};
}

double common_unit(const std::vector<Term>& terms) {
  double coarsest = 0, total = 0;
  bool equal = true;
  for (const Term& term : terms) {
    total += term.magnitude();
    if (!term.scaled) {
      equal = false;
      continue;
    }
    const double scale = term.scaled->scale() * std::abs(term.factor);
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

}  // namespace tosaic::passes
