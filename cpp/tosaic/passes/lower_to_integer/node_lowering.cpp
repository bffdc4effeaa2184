#include "tosaic/passes/lower_to_integer/node_lowering.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/op_table.h"
#include "tosaic/passes/lower_to_integer/backend_forms.h"
#include "tosaic/passes/lower_to_integer/evaluation.h"
#include "tosaic/passes/lower_to_integer/expansion.h"
#include "tosaic/passes/lower_to_integer/function_samples.h"
#include "tosaic/passes/lower_to_integer/function_table.h"
#include "tosaic/passes/lower_to_integer/integer_function.h"
#include "tosaic/passes/lower_to_integer/nan_masks.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"

namespace tosaic::passes {
namespace {

// Operators whose result follows from sums or products of several elements. The number that represents minus
// infinity would count as one of them.
constexpr OpTable<bool> kMixesNumbers = {{Op::kSum, true},     {Op::kMean, true},      {Op::kProd, true},
                                         {Op::kAvgPool, true}, {Op::kConv, true},      {Op::kLinear, true},
                                         {Op::kMatmul, true},  {Op::kResize, true},    {Op::kCumsum, true},
                                         {Op::kVar, true},     {Op::kGroupNorm, true}, {Op::kLayerNorm, true},
                                         {Op::kRmsNorm, true}};

// Elementwise operators whose results have the unit of the operand.
constexpr OpTable<bool> kKeepsNumbers = {
    {Op::kCast, true}, {Op::kAbs, true}, {Op::kNeg, true}, {Op::kRelu, true}, {Op::kClamp, true}};

bool reads_minus_infinity(const RuleContext& ctx) {
  for (std::size_t i = 0; i < ctx.node.operand_count(); ++i) {
    if (!ctx.node.has(i)) continue;
    const ScaledInteger* const scaled = ctx.values.scaled(ctx.node.operand(i));
    if (scaled != nullptr && scaled->minus_infinity) return true;
  }
  return false;
}

// The result of an elementwise operator whose operands are all constants, if the result is quantized.
std::optional<ValueId> evaluated_constant(const RuleContext& ctx) {
  const NodeView& node = ctx.node;
  const OpInfo& row = info(node.op());
  if (node.operand_count() == 0 || node.result_qparams() == nullptr || !row.has(kElementwise) || row.is_tosa)
    return std::nullopt;
  std::vector<ConstantRef> constants;
  std::vector<const QParams*> qparams;
  for (std::size_t i = 0; i < node.operand_count(); ++i) {
    if (!node.has(i) || !node.is_constant(i)) return std::nullopt;
    const Value& value = node.graph().value(node.operand(i));
    if (!value.constant->storage.bound()) return std::nullopt;
    constants.push_back(value.constant);
    qparams.push_back(value.type.qparams.get());
  }
  return ctx.build.constant(evaluate_stored(node, constants, qparams));
}

// The float result of an elementwise operator over constants, at least one of which only the new graph has,
// as in 1 / sqrt(variance + eps) of an expansion.
std::optional<ScaledInteger> evaluated_numbers(const RuleContext& ctx) {
  const NodeView& node = ctx.node;
  const OpInfo& row = info(node.op());
  if (node.operand_count() == 0 || node.result_type().qparams ||
      !has_integer_form(node.result_type().dtype) || !row.has(kElementwise) || row.is_tosa)
    return std::nullopt;
  std::vector<ConstantRef> constants(node.operand_count());
  bool is_made = false;
  for (std::size_t i = 0; i < constants.size(); ++i) {
    if (!node.has(i) || !ctx.is_known(i)) return std::nullopt;
    is_made = is_made || !node.is_constant(i);
    const TensorType& type = node.operand_type(i);
    const bool is_number = type.qparams != nullptr || has_integer_form(type.dtype);
    constants[i] = is_number ? make_constant("", DType::kF32, type.shape, ctx.numbers(i))
                             : node.graph().value(node.operand(i)).constant;
    if (!constants[i] || !constants[i]->storage.bound()) return std::nullopt;
  }
  if (!is_made || kKeepsNumbers.contains(node.op())) return std::nullopt;
  const ConstantRef made =
      evaluate_stored(node, constants, std::vector<const QParams*>(constants.size(), nullptr));
  const Elements elements(*made);
  std::vector<double> numbers(elements.size());
  for (std::size_t k = 0; k < numbers.size(); ++k) numbers[k] = elements.as_double(k);
  const bool is_finite = std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); });
  return is_finite ? std::optional(in_one_unit(ctx.build, made->shape, numbers)) : std::nullopt;
}

// Lowers the node without expanding it. A node over constants is evaluated. Any other is computed by a table,
// by the rule of its operator, or as a function of one number. Returns nothing if none of these applies.
std::optional<RuleResult> by_rule(const RuleContext& ctx) {
  if (const std::optional<ValueId> known = evaluated_constant(ctx)) return *known;
  if (const std::optional<ScaledInteger> known = evaluated_numbers(ctx)) return *known;
  if (std::optional<RuleResult> form = backend_form(ctx)) return form;
  const IntegerRule rule = rule_of(ctx.node.node());
  // A result without qparams has more bits by arithmetic than by a table.
  if (ctx.node.result_qparams() != nullptr || rule == nullptr)
    if (std::optional<RuleResult> table = tabulated(ctx)) return table;
  if (rule != nullptr) {
    if (kMixesNumbers.contains(ctx.node.op()) && reads_minus_infinity(ctx)) return Refusal{kNoInfinity};
    return with_nan_masks(ctx, rule(ctx));
  }
  std::optional<RuleResult> function = integer_function(ctx);
  if (!function) return std::nullopt;
  return with_nan_masks(ctx, *std::move(function));
}

Outcome lower_by_rule(const RuleContext& ctx) {
  if (ctx.node.node().result_count != 1) return Refusal{};
  return attempt([&]() -> Outcome {
    const std::optional<RuleResult> made = by_rule(ctx);
    return made ? store_result(ctx, 0, *made) : Refusal{};
  });
}

// True if the unit of integers of more than 16 bits leaves nearly nothing of numbers that are rounded to
// `to`: the unit is one for far larger numbers, such as squares of a huge constant.
bool is_lost_in(const ScaledInteger& made, const QParams& to) {
  constexpr double kFewest = 64;
  if (made.axis || made.groups || to.scales.empty()) return false;
  const auto integers = static_cast<double>(made.range.high - made.range.low);
  const double step = *std::ranges::min_element(to.scales);
  return integers > 0x1p16 && made.scale() > 2 * step && largest_number(to) < kFewest * made.scale();
}

// The unit of the integers of operand i; 1 for integers without qparams. Nothing for constants and floats.
std::optional<double> unit_of(const RuleContext& ctx, std::size_t i) {
  if (!ctx.node.has(i) || ctx.node.is_constant(i)) return std::nullopt;
  if (ctx.is_scaled(i)) return std::ranges::min(ctx.scaled(i).scales);
  const TensorType& type = ctx.node.operand_type(i);
  return is_integer(type.dtype) && !type.qparams ? std::optional(1.0) : std::nullopt;
}

// True if the result is as exact as the operands: the node moves integers or adds them in their own units or
// in finer ones, or it multiplies integers, by integers or by a constant.
bool is_as_exact(const RuleContext& ctx, const ScaledInteger& made, const QParams& to) {
  const Op op = ctx.node.op();
  const OpInfo& row = info(op);
  if (made.error > std::ranges::min(to.scales)) return false;
  if (row.has(kMovement) || row.has(kView) || kKeepsNumbers.contains(op)) {
    for (std::size_t i = 0; i < ctx.node.operand_count(); ++i)
      if (const std::optional<double> unit = unit_of(ctx, i); unit && made.scale() > *unit) return false;
    return true;
  }
  const auto is_within = [&](std::optional<double> unit) { return unit && made.scale() <= *unit; };
  if (op == Op::kMul || op == Op::kDiv) {
    if (made.error == 0 && (ctx.is_known(0) || ctx.is_known(1))) return true;
    const std::optional<double> a = unit_of(ctx, 0), b = unit_of(ctx, 1);
    return op == Op::kMul && a && b && is_within(*a * *b);
  }
  if (op == Op::kSum || op == Op::kMean || op == Op::kCumsum) return is_within(unit_of(ctx, 0));
  if (op != Op::kAdd && op != Op::kSub) return false;
  if (as_double(Graph::attrs<AlphaAttrs>(ctx.node.node()).alpha) != 1.0) return false;
  return is_within(unit_of(ctx, 0)) && is_within(unit_of(ctx, 1));
}

}  // namespace

Outcome store_result(const RuleContext& ctx, std::uint32_t r, const RuleResult& made) {
  if (const Refusal* const refused = std::get_if<Refusal>(&made)) return *refused;
  const ValueId result = ctx.node.result(r);
  const std::optional<QParams> to = ctx.node.signed_qparams(r);
  const ScaledInteger* const scaled = std::get_if<ScaledInteger>(&made);
  if (scaled != nullptr && ctx.node.op() != Op::kQuantize) {
    const std::optional<QParams> ends = to ? to : ctx.node.eventual_qparams();
    if (ends && is_lost_in(*scaled, *ends) && !is_as_exact(ctx, *scaled, *ends))
      return Refusal{
          "its arithmetic reaches numbers so large that their unit leaves nearly nothing of its result"};
  }
  ValueId id;
  if (scaled == nullptr) {
    id = std::get<ValueId>(made);
  } else if (to) {
    id = store(ctx.build, scaled->groups ? in_one_unit(ctx.build, *scaled) : *scaled, *to);
    if (scaled->nan_mask) id = with_stored_nan(ctx, r, id, *scaled->nan_mask);
  } else if (!has_integer_form(ctx.node.result_type(r).dtype)) {
    return Refusal{"its result is no f32, f16 or bf16"};
  } else {
    ctx.values.set_scaled(result, *scaled);
    return kLowered;
  }
  ctx.values.set_value(result, id);
  if (to && !ctx.build.type(id).qparams && !ctx.build.known(id)) {
    Graph& graph = ctx.values.made().graph;
    graph.set_qparams(id, std::make_shared<const QParams>(*to));
    graph.try_rename(id, ctx.node.graph().value(result).name);
  }
  return kLowered;
}

Outcome lower_node(const RuleContext& ctx) {
  Outcome rule = lower_by_rule(ctx);
  if (!rule || rule->by_scale) return rule;
  Outcome parts = lower_by_parts(ctx);
  if (!parts || parts->by_scale) return parts;
  if (rule->reason.empty() && parts->reason.empty())
    return Refusal{"there is no integer arithmetic for '" + std::string(info(ctx.node.op()).name) + "'"};
  if (rule->reason.empty()) return parts;
  if (parts->reason.empty()) return rule;
  return Refusal{rule->reason + "; expanded, " + parts->reason};
}

Outcome lower_as_smooth_function(const RuleContext& ctx) {
  if (ctx.node.node().result_count != 1) return Refusal{};
  const TensorType& type = ctx.node.result_type();
  const QParams* const to = ctx.node.result_qparams();
  if (type.qparams ? to == nullptr || to->axis : !has_integer_form(type.dtype)) return Refusal{};
  return attempt([&]() -> Outcome {
    const std::optional<RuleResult> made = smooth_composition(ctx);
    return made ? store_result(ctx, 0, *made) : Refusal{};
  });
}

}  // namespace tosaic::passes
