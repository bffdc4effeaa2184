#include "tosaic/passes/lower_to_integer/backend_forms.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/ir/constant_factor.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/passes/lower_to_integer/evaluation.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/table_lookup.h"
#include "tosaic/passes/lower_to_integer/terms.h"
#include "tosaic/quant/requantize.h"
#include "tosaic/target/integer_semantics.h"

namespace tosaic::passes {
namespace {

using target::IntegerSemantics;
constexpr std::int64_t kBytes = 256;

const IntegerSemantics& semantics_of(const RuleContext& ctx) { return ctx.build.rules().semantics; }

// Operand i if it is a tensor of i8 with one scale, variable or constant.
std::optional<ScaledInteger> bytes_of(const RuleContext& ctx, std::size_t i) {
  if (!ctx.node.has(i) || !ctx.is_scaled(i) || ctx.by_group(i)) return std::nullopt;
  const ScaledInteger x = ctx.scaled(i);
  const bool fits = ctx.build.type(x.id).dtype == DType::kI8 && !x.axis && !x.minus_infinity && !x.nan_mask;
  return fits ? std::optional(x) : std::nullopt;
}

// The qparams of the result if it has 8 bits.
const QParams* byte_result(const RuleContext& ctx) {
  const QParams* const to = ctx.node.result_qparams();
  return to != nullptr && to->storage == DType::kI8 ? to : nullptr;
}

bool has_qparams(const ScaledInteger& x, const QParams& qparams) {
  return x.scale() == qparams.scales.front() && x.zero_point == qparams.zero_points.front();
}

// x clamped to the range of the qparams, on which later operators rely.
double in_range(double x, const QParams& qparams) {
  return std::clamp(x, static_cast<double>(qparams.qmin), static_cast<double>(qparams.qmax));
}

// The integer of a number, rounded half away from zero.
double nearest_integer(double number, const QParams& qparams) {
  const double sum = number / qparams.scales.front() + static_cast<double>(qparams.zero_points.front());
  return in_range(std::round(sum), qparams);
}

ConstantRef table_of(const std::vector<double>& entries) {
  return make_constant("", DType::kI8, {static_cast<std::int64_t>(entries.size())}, entries);
}

// ---- add, sub, mul, div ----

// x * factor with 20 more bits, in units of `unit` / 2^20. RESCALE has no negative multipliers, so a negative
// factor negates the integers first.
Integers with_more_bits(IntegerBuilder& build, const ScaledInteger& x, double factor, double unit) {
  constexpr int kMoreBits = 20;
  ScaledInteger fine = rescaled(build, x, DType::kI32, std::ldexp(x.scale(), -kMoreBits));
  if (factor < 0) {
    fine.id = IntegerMath(build).sub(0, fine.id);
    fine.range = {-fine.range.high, -fine.range.low};
  }
  fine.scales = {std::ldexp(std::abs(factor) * x.scale(), -kMoreBits)};
  const ScaledInteger made = rescaled(build, fine, DType::kI32, std::ldexp(unit, -kMoreBits));
  return {made.id, made.range, made.error};
}

std::optional<RuleResult> sum_form(const RuleContext& ctx) {
  if (semantics_of(ctx).sum != target::SumForm::kTwiceLargerScale) return std::nullopt;
  const std::optional<ScaledInteger> a = bytes_of(ctx, 0), b = bytes_of(ctx, 1);
  double factor = as_double(ctx.node.attrs<AlphaAttrs>().alpha);
  if (ctx.node.op() == Op::kSub) factor = -factor;
  if (!a || !b || factor == 0) return std::nullopt;
  const double unit = 2 * std::max(a->scale(), std::abs(factor) * b->scale());
  const Integers x = with_more_bits(ctx.build, *a, 1, unit), y = with_more_bits(ctx.build, *b, factor, unit);
  return ScaledInteger{ctx.build.binary(Op::kTosaAdd, x.id, y.id),
                       {std::ldexp(unit, -20)},
                       0,
                       {x.range.low + y.range.low, x.range.high + y.range.high}};
}

// mul or div by one constant, as the product of the integers with 1 or -1. If the integers stay the same and
// only the scale changes, every backend has this form.
std::optional<RuleResult> factor_form(const RuleContext& ctx) {
  const std::optional<ConstantFactor> found = constant_factor(ctx.node.graph(), ctx.node.node());
  const QParams* const to = ctx.node.result_qparams();
  if (!found || to == nullptr || !ctx.is_scaled(found->data) || ctx.by_group(found->data))
    return std::nullopt;
  ScaledInteger x = ctx.scaled(found->data);
  if (x.axis || x.minus_infinity || x.nan_mask) return std::nullopt;
  const QParamsRef& stored = ctx.node.operand_type(found->data).qparams;
  const std::optional<QParams> from = stored ? signed_form(*stored) : std::nullopt;
  if (from && keeps_integers(*from, found->factor, *to)) {
    x.scales = to->scales;
    return x;
  }
  if (semantics_of(ctx).product != target::ProductForm::kIntegers) return std::nullopt;
  if (byte_result(ctx) == nullptr || ctx.build.type(x.id).dtype != DType::kI8) return std::nullopt;
  ScaledInteger made = widened(ctx.build, x);
  made.scales = {x.scale() * std::abs(found->factor)};
  if (found->factor < 0) {
    made.id = IntegerMath(ctx.build).sub(0, made.id);
    made.range = {-made.range.high, -made.range.low};
  }
  return made;
}

std::optional<RuleResult> product_form(const RuleContext& ctx) {
  if (std::optional<RuleResult> made = factor_form(ctx)) return made;
  if (semantics_of(ctx).product != target::ProductForm::kIntegers) return std::nullopt;
  const std::optional<ScaledInteger> a = bytes_of(ctx, 0), b = bytes_of(ctx, 1);
  if (!a || !b) return std::nullopt;
  const ScaledInteger x = widened(ctx.build, *a), y = widened(ctx.build, *b);
  const std::int64_t most = x.magnitude() * y.magnitude();
  return ScaledInteger{
      IntegerMath(ctx.build).mul(x.id, y.id, 0), {a->scale() * b->scale()}, 0, {-most, most}};
}

std::optional<RuleResult> quotient_form(const RuleContext& ctx) {
  if (std::optional<RuleResult> made = factor_form(ctx)) return made;
  const QParams* const to = byte_result(ctx);
  if (semantics_of(ctx).quotient != target::QuotientForm::kInFloat || to == nullptr ||
      ctx.node.attrs<DivAttrs>().rounding != DivRounding::kNone)
    return std::nullopt;
  const std::optional<ScaledInteger> a = bytes_of(ctx, 0), b = bytes_of(ctx, 1);
  if (!a || !b) return std::nullopt;
  const auto scale = static_cast<float>(a->scale() / (b->scale() * to->scales.front()));
  std::vector<double> entries;
  for (std::int64_t p = -128; p < 128; ++p)
    for (std::int64_t q = -128; q < 128; ++q) {
      const auto dividend = static_cast<float>(p - a->zero_point);
      const auto divisor = static_cast<float>(q - b->zero_point);
      const float quotient = divisor == 0 ? 0.0F : dividend / divisor;
      const float scaled = std::round(quotient * scale) + static_cast<float>(to->zero_points.front());
      entries.push_back(in_range(scaled, *to));
    }
  return gathered(ctx.build, position_of(ctx.build, *a, *b), *table_of(entries));
}

std::optional<RuleResult> softmax_form(const RuleContext& ctx) {
  const QParams* const to = byte_result(ctx);
  if (semantics_of(ctx).softmax != target::SoftmaxForm::kFixedPoint5_26 || to == nullptr ||
      to->scales.front() != 1.0 / 256 || to->zero_points.front() != -128 ||
      ctx.node.operand_type(0).rank() == 0)
    return std::nullopt;
  const std::optional<ScaledInteger> x = bytes_of(ctx, 0);
  if (!x) return std::nullopt;
  std::optional<ScaledInteger> made =
      fixed_point_softmax(ctx.build, *x, ctx.node.attrs<AxisDtypeAttrs>().axis);
  return made ? std::optional<RuleResult>(*std::move(made)) : std::nullopt;
}

// ---- functions of one operand ----

// A table of the function in f64. An infinity becomes the least or greatest integer. NaN becomes the entry of
// the nearest integer at which the function is a number, of two such integers the lower one.
std::optional<RuleResult> function_form(const RuleContext& ctx) {
  const QParams* const to = byte_result(ctx);
  const OpInfo& row = info(ctx.node.op());
  if (semantics_of(ctx).function != target::FunctionForm::kInDouble || to == nullptr ||
      ctx.node.operand_count() != 1 || !row.has(kElementwise) || row.is_tosa)
    return std::nullopt;
  const std::optional<ScaledInteger> x = bytes_of(ctx, 0);
  if (!x || ctx.is_known(0)) return std::nullopt;
  std::vector<double> numbers;
  for (std::int64_t q = -128; q < 128; ++q)
    numbers.push_back(static_cast<double>(q - x->zero_point) * x->scale());
  const bool is_gelu = ctx.node.op() == Op::kGelu;  // the backend has one table for both kinds of GELU
  const ConstantRef results =
      evaluate_in_double(ctx.node.op(), is_gelu ? Attrs(GeluAttrs{}) : ctx.node.attributes(), numbers);
  const Elements elements(*results);
  std::vector<double> entries(elements.size());
  std::vector<std::size_t> defined;
  for (std::size_t k = 0; k < entries.size(); ++k) {
    const double y = elements.as_double(k);
    if (std::isnan(y)) continue;
    defined.push_back(k);
    entries[k] = nearest_integer(y, *to);
  }
  if (defined.empty()) return std::nullopt;
  const auto distance = [](std::size_t a, std::size_t b) { return a < b ? b - a : a - b; };
  for (std::size_t k = 0; k < entries.size(); ++k)
    if (std::isnan(elements.as_double(k)))
      entries[k] =
          entries[*std::min_element(defined.begin(), defined.end(), [&](std::size_t a, std::size_t b) {
            return distance(a, k) < distance(b, k);
          })];
  return looked_up(ctx.build, *x, *table_of(entries));
}

// The integer of a number, rounded half to even in f32 after the zero point is added.
std::int64_t bound_of(double number, const QParams& qparams) {
  const double sum = number / qparams.scales.front() + static_cast<double>(qparams.zero_points.front());
  const auto rounded = static_cast<double>(std::nearbyint(static_cast<float>(sum)));
  return static_cast<std::int64_t>(in_range(rounded, qparams));
}

// hardsigmoid of sums that were not rounded yet. The scale of their rescale contains the division of x / 6 +
// 1/2, and its zero point contains 1/2. The result saturates at 0 and 1, so its qparams must have exactly
// this range.
std::optional<RuleResult> hardsigmoid_form(const RuleContext& ctx) {
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  if (semantics_of(ctx).hard != target::HardForm::kInQParams || !to || to->storage != DType::kI8 ||
      !ctx.is_scaled(0) || ctx.node.operand_type(0).qparams || bound_of(0, *to) != to->qmin ||
      bound_of(1, *to) != to->qmax)
    return std::nullopt;
  const double scale = to->scales.front();
  const std::int64_t zero_point = to->zero_points.front();
  QParams wider = *to;
  wider.scales = {scale * 6};
  wider.zero_points = {std::clamp(zero_point + static_cast<std::int64_t>(std::nearbyint(1 / (2 * scale))),
                                  to->qmin, to->qmax)};
  return ScaledInteger{store(ctx.build, ctx.scaled(0), wider), {scale}, zero_point, {to->qmin, to->qmax}};
}

// x * (min(x, 3) + 3) / 6, for operands of at least -3, as a product of integers. The zero point of the
// second factor contains 3, which is rounded there. The scale of the product contains 1/6.
std::optional<RuleResult> hardswish_form(const RuleContext& ctx) {
  const QParams* const to = byte_result(ctx);
  const QParamsRef& from = ctx.node.operand_type(0).qparams;
  if (semantics_of(ctx).hard != target::HardForm::kInQParams || to == nullptr || !from) return std::nullopt;
  const std::optional<ScaledInteger> x = bytes_of(ctx, 0);
  if (!x) return std::nullopt;
  const auto three = static_cast<std::int64_t>(std::nearbyint(3 / x->scale()));
  const std::int64_t top =
      bound_of(3, {DType::kI8, x->range.low, x->range.high, {}, x->scales, {x->zero_point}});
  const double ratio = x->scale() * x->scale() / (to->scales.front() * 6);
  const Multiplier by = quant::multiplier_of(ratio, MultiplierWidth::k32);
  const RoundingMode rounding = ctx.build.rules().rounding_mode;
  std::vector<double> entries;
  for (std::int64_t q = -128; q < 128; ++q) {
    const std::int64_t product = (q - x->zero_point) * (std::min(q, top) - x->zero_point + three);
    const std::int64_t scaled =
        apply_scale(product, by, MultiplierWidth::k32, rounding) + to->zero_points.front();
    entries.push_back(static_cast<double>(std::clamp<std::int64_t>(scaled, -128, 127)));
  }
  return looked_up(ctx.build, *x, *table_of(entries));
}

// ---- pad and clamp ----

std::optional<RuleResult> pad_form(const RuleContext& ctx) {
  const QParams* const to = byte_result(ctx);
  PadAttrs attrs = ctx.node.attrs<PadAttrs>();
  if (semantics_of(ctx).bound != target::BoundForm::kInOneSum || to == nullptr ||
      attrs.mode != PadMode::kConstant)
    return std::nullopt;
  const std::optional<ScaledInteger> x = bytes_of(ctx, 0);
  if (!x || !has_qparams(*x, *to)) return std::nullopt;
  attrs.value = bound_of(as_double(attrs.value), *to);
  return ctx.build.emit(Op::kPad, attrs, {ctx.build.bounded(x->id, x->range, {to->qmin, to->qmax})});
}

std::optional<RuleResult> clamp_form(const RuleContext& ctx) {
  const QParams* const to = byte_result(ctx);
  if (semantics_of(ctx).bound != target::BoundForm::kInOneSum || to == nullptr) return std::nullopt;
  const std::optional<ScaledInteger> x = bytes_of(ctx, 0);
  if (!x || !has_qparams(*x, *to)) return std::nullopt;
  const auto& attrs = ctx.node.attrs<ClampAttrs>();
  const auto bound = [&](const std::optional<Scalar>& limit, std::int64_t none) {
    return limit ? bound_of(as_double(*limit), *to) : none;
  };
  const std::int64_t high = bound(attrs.max, to->qmax), low = std::min(bound(attrs.min, to->qmin), high);
  return ctx.build.bounded(x->id, x->range, {low, high});
}

using Form = std::optional<RuleResult> (*)(const RuleContext& ctx);

constexpr OpTable<Form> kForms = {
    {Op::kAdd, sum_form},
    {Op::kSub, sum_form},
    {Op::kMul, product_form},
    {Op::kDiv, quotient_form},
    {Op::kSoftmax, softmax_form},
    {Op::kHardsigmoid, hardsigmoid_form},
    {Op::kHardswish, hardswish_form},
    {Op::kAdaptiveAvgPool, whole_image_average},
    {Op::kPad, pad_form},
    {Op::kClamp, clamp_form},
};

}  // namespace

std::optional<RuleResult> backend_form(const RuleContext& ctx) {
  const Form* const form = kForms.find(ctx.node.op());
  if (form == nullptr) return function_form(ctx);
  return (*form)(ctx);
}

}  // namespace tosaic::passes
