#include "tosaic/passes/lower_to_integer/nan_masks.h"

#include <algorithm>
#include <limits>

#include "tosaic/ir/quantized.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::passes {
namespace {

using Mask = std::optional<ValueId>;

// True for elementwise operators with a rule for NaN. Where an operand is NaN, a float result is NaN, `ne` is
// true, any other comparison is false, and any other bool is true.
bool passes_nan_on(Op op) {
  const OpInfo& row = info(op);
  if (!row.has(kElementwise) || row.is_tosa) return false;
  return op != Op::kNanToNum && op != Op::kIsinf && op != Op::kPow;
}

ValueId negation(IntegerBuilder& build, ValueId mask) {
  return build.emit(Op::kTosaLogicalNot, NoAttrs{}, {mask});
}

// The mask of where(condition, x, y), with the masks `a` of x and `b` of y.
Mask chosen(IntegerBuilder& build, ValueId condition, const Mask& a, const Mask& b) {
  Mask out;
  if (a) out = build.both(condition, a);
  if (b) out = build.either(out, build.both(negation(build, condition), b));
  return out;
}

// The integer that quantize computes from NaN, in the dtype of these qparams.
std::int64_t quantized_nan(const QParams& qparams) {
  const float nan[] = {std::numeric_limits<float>::quiet_NaN()};
  Constant one;
  one.dtype = qparams.storage;
  one.shape = {1};
  one.storage = quant::quantize(nan, one.shape, qparams).storage;
  return Elements(one).as_int(0);
}

// The masks of all operands. Returns nothing if no operand has a mask.
std::optional<std::vector<Mask>> operand_masks(const RuleContext& ctx) {
  std::vector<Mask> masks(ctx.node.operand_count());
  for (std::size_t i = 0; i < masks.size(); ++i)
    if (ctx.node.has(i) && !ctx.node.is_constant(i) && ctx.is_scaled(i)) masks[i] = ctx.scaled(i).nan_mask;
  const auto is_none = [](const Mask& mask) { return !mask; };
  return std::all_of(masks.begin(), masks.end(), is_none) ? std::nullopt : std::optional(std::move(masks));
}

}  // namespace

ValueId with_stored_nan(const RuleContext& ctx, std::size_t r, ValueId stored, ValueId mask) {
  const QParams& declared = *ctx.node.result_type(r).qparams;
  const TensorType type = ctx.build.type(stored);
  const std::int64_t offset = type.dtype == declared.storage ? 0 : signed_offset(declared.storage);
  const ValueId nan = ctx.build.number(quantized_nan(declared) - offset, type.rank(), type.dtype);
  return ctx.build.elementwise(Op::kTosaSelect, NoAttrs{}, {mask, nan, stored});
}

RuleResult with_nan_masks(const RuleContext& ctx, RuleResult made) {
  if (std::holds_alternative<Refusal>(made)) return made;
  const std::optional<std::vector<Mask>> masks = operand_masks(ctx);
  if (!masks) return made;
  const Op op = ctx.node.op();
  Mask nan_mask;
  if (op == Op::kWhere) {
    nan_mask = chosen(ctx.build, ctx.as_is(0), (*masks)[1], (*masks)[2]);
  } else if (rearranges(ctx.node.node()) && masks->size() == 1) {
    const ValueId whole = ctx.build.broadcast_to(*masks->front(), ctx.node.operand_type(0).shape);
    nan_mask = ctx.build.emit(op, ctx.node.attributes(), {whole});
  } else if (passes_nan_on(op)) {
    for (const Mask& mask : *masks) nan_mask = ctx.build.either(nan_mask, mask);
  } else {
    return Refusal{"its operand may be NaN"};
  }
  if (ScaledInteger* const number = std::get_if<ScaledInteger>(&made)) {
    number->nan_mask = ctx.build.either(number->nan_mask, nan_mask);
    return made;
  }
  if (!nan_mask) return made;
  const ValueId value = std::get<ValueId>(made);
  if (ctx.node.result_qparams() != nullptr) return with_stored_nan(ctx, 0, value, *nan_mask);
  // torch does not define which integer NaN becomes
  if (ctx.build.type(value).dtype != DType::kBool) return made;
  if (op == Op::kNe || !info(op).has(kComparison)) return *ctx.build.either(value, nan_mask);
  return *ctx.build.both(value, negation(ctx.build, *nan_mask));
}

}  // namespace tosaic::passes
