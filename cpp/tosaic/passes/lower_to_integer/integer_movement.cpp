// integer_movement: lowers operators that move elements, such as reshape, cat and where. The operands are
// requantized to common qparams before they are moved. If the result has qparams, these are the common ones.
// If it has none and all operands share one set of qparams, that set is used. In all other cases, the
// operands become i32 in a common unit. Constant operands are quantized at compile time.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/lower_to_integer/terms.h"
#include "tosaic/passes/match.h"

namespace tosaic::passes {
namespace {

// True if the operator moves the elements of operand i; other operands are conditions and indices.
bool is_moved(Op op, std::size_t i) {
  if (op == Op::kWhere) return i > 0;
  if (op == Op::kIndexPut) return i < 2;
  if (op == Op::kCat) return true;
  return i == 0;
}

// Facts about the numbers of a constant operand.
struct Known {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  double size = 0;  // the largest magnitude of the finite numbers
  bool has_finite = false;
  bool hides = false;  // a number is minus infinity
  bool has_nan = false;

  Known(const RuleContext& ctx, std::size_t operand) {
    for (const double x : ctx.numbers(operand)) {
      low = std::min(low, x);
      high = std::max(high, x);
      hides = hides || is_minus_infinity(x);
      has_nan = has_nan || std::isnan(x);
      if (!std::isfinite(x)) continue;
      has_finite = true;
      size = std::max(size, std::abs(x));
    }
  }
};

// True if an integer of these qparams represents the number exactly.
bool is_a_step(double number, const QParams& qparams) {
  const double q = number / qparams.scales.front() + static_cast<double>(qparams.zero_points.front());
  return q == std::nearbyint(q) && q >= static_cast<double>(qparams.qmin) &&
         q <= static_cast<double>(qparams.qmax);
}

// True if a whole number of units equals the number to 10 bits, or if it is 0 or not finite.
bool has_bits(double number, double unit) {
  if (number == 0 || !std::isfinite(number)) return true;
  return std::abs(std::nearbyint(number / unit) * unit - number) <= 0x1p-10 * std::abs(number);
}

// The qparams of constants that are moved by a condition or by indices, such as where(hidden, -1e9, 0): i32,
// in a unit that represents each of them to 10 bits.
QParams parameters_of_constants(const RuleContext& ctx, const std::vector<std::size_t>& numbers) {
  const std::int64_t limit = std::int64_t{1} << 30;
  double size = 0;
  for (const std::size_t i : numbers) size = std::max(size, Known(ctx, i).size);
  const double unit = size > 0 ? unit_for(size) : 1;
  for (const std::size_t i : numbers)
    for (const double x : ctx.numbers(i))
      if (!std::isfinite(x) || !has_bits(x, unit))
        throw NoIntegerForm("no unit of 32 bits represents both of its constants");
  return {DType::kI32, -limit, limit, std::nullopt, {unit}, {0}};
}

// ---- a unit for operands that an output returns together ----

// The step of x: its scale, or 1/65535 of its range if that is larger, as for sums of values of 16 bits.
double own_step(const ScaledInteger& x) {
  return std::max(x.scale(), static_cast<double>(x.range.high - x.range.low) * x.scale() / 65535);
}

// What the unit of a movement depends on.
struct Needs {
  double size = 0;       // the largest magnitude
  double data_size = 0;  // the largest magnitude of the operands that RESCALE converts
  double step = std::numeric_limits<double>::infinity();  // the finest scale of these operands

  void of_data(const ScaledInteger& x) {
    data_size = std::max(data_size, finite_magnitude(x));
    size = std::max(size, data_size);
    step = std::min(step, x.scale());
  }
};

// A unit for results that are only returned. If 32 bits and RESCALE allow it, the step of the finest operand
// is a whole number of units, so that its integers are exact. If not, the unit is as fine as they allow.
double unit_for_output(const Needs& needs) {
  constexpr double kMost = 2147483647;
  const double for_data = needs.data_size > 0 ? unit_for(needs.data_size) : 0;
  const double finest = std::max(needs.size / kMost, for_data);
  if (needs.step >= finest) return needs.step / std::floor(needs.step / finest);
  return std::max(std::ldexp(unit_for(needs.size), -2), for_data);
}

// Throws NoIntegerForm if an output returns operand x with other operands, and the unit loses a bit of x.
void require_steps(const RuleContext& ctx, std::size_t i, const ScaledInteger& x, double unit) {
  constexpr double kLost = 2;
  if (unit <= kLost * own_step(x) || ctx.is_known(i) || !ctx.values.is_only_returned(ctx.node.node())) return;
  const auto steps = static_cast<double>(x.range.high - x.range.low);
  throw NoIntegerForm("one unit for all operands leaves " +
                      std::to_string(static_cast<int>(steps * x.scale() / unit)) + " of the " +
                      std::to_string(x.range.high - x.range.low) + " steps of operand '" +
                      ctx.node.graph().value(ctx.node.operand(i)).name + "'");
}

// True if rounding to the unit changes the numbers of a constant much, and a reader may notice that.
bool loses_numbers(const RuleContext& ctx, std::size_t i, const Known& known, double unit) {
  constexpr double kFewest = 32;
  if (known.size >= kFewest * unit) return false;
  if (!ctx.values.is_only_returned(ctx.node.node())) {
    const std::optional<analysis::RelevantNumbers> noticed = ctx.values.noticed(ctx.node.node());
    if (!noticed || noticed->step >= 2 * unit) return false;
  }
  return std::ranges::any_of(
      ctx.numbers(i), [&](double x) { return std::isfinite(x) && std::nearbyint(x / unit) * unit != x; });
}

// Throws NoIntegerForm if loses_numbers() is true of a constant operand.
void require_number(const RuleContext& ctx, std::size_t i, const Known& known, double unit) {
  if (known.size == 0 || !loses_numbers(ctx, i, known, unit)) return;
  throw NoIntegerForm("one unit for all operands leaves nothing of '" +
                      ctx.node.graph().value(ctx.node.operand(i)).name + "'");
}

// Throws NoIntegerForm if the highest number of a constant, or the number that a pad inserts, is infinite:
// bound-numbers has replaced infinity where all readers saturate. The expansion of a composite puts it only
// at elements on which no result depends.
void require_no_plus_infinity(const RuleContext& ctx, double highest) {
  if (std::isinf(highest) && highest > 0 && !ctx.values.is_expansion())
    throw NoIntegerForm("it moves plus infinity, and its readers do not saturate");
}

// The qparams in which the operands are moved: the result's, or the qparams that all operands have, or i32
// in a unit for the largest number.
QParams common_parameters(const RuleContext& ctx, const std::vector<std::size_t>& numbers) {
  if (ctx.node.result_qparams() != nullptr) return *ctx.node.result_qparams();
  std::optional<QParams> common;
  bool equal = true;
  Needs needs;
  double& size = needs.size;
  bool hidden = false;
  for (const std::size_t i : numbers) {
    if (ctx.node.is_constant(i)) {
      equal = false;
      const Known known(ctx, i);
      require_no_plus_infinity(ctx, known.high);
      hidden = hidden || known.hides;
      size = std::max(size, known.size);
      continue;
    }
    const ScaledInteger x = ctx.with_one_scale(i);
    const QParams own = full_range_qparams(ctx.build, x);
    equal = equal && (!common || *common == own) && (!x.minus_infinity || numbers.size() == 1);
    common = own;
    hidden = hidden || x.minus_infinity;
    needs.of_data(x);
  }
  if (!common) return parameters_of_constants(ctx, numbers);
  if (const std::optional<double> inserted = inserted_number(ctx.node.node())) {
    require_no_plus_infinity(ctx, *inserted);
    equal = equal && !hidden && std::isfinite(*inserted) && is_a_step(*inserted, *common);
    if (std::isfinite(*inserted)) size = std::max(size, std::abs(*inserted));
    hidden = hidden || is_minus_infinity(*inserted);
  }
  if (equal) return *common;
  if (hidden) size = 2 * (size + hidden_below(size));
  const double unit = unit_for(size);
  if (!hidden && unit > needs.step / 2 && ctx.values.is_only_returned(ctx.node.node())) {
    const ValueRange all = kInt32Values;
    return {DType::kI32, all.low, all.high, std::nullopt, {unit_for_output(needs)}, {0}};
  }
  const std::int64_t limit = std::int64_t{1} << 30;
  return {DType::kI32, -limit, limit, std::nullopt, {unit}, {0}};
}

struct Moved {
  std::vector<ValueId> operands;
  ValueRange range;
};

// The integers that represent `low` to `high` in the qparams `to`, with a margin of 2 for rounding.
ValueRange range_in(const QParams& to, double low, double high) {
  const auto at = [&](double number, double beyond) {
    const double q = number / to.scales.front() + static_cast<double>(to.zero_points.front()) + beyond;
    return static_cast<std::int64_t>(
        std::clamp(q, static_cast<double>(to.qmin), static_cast<double>(to.qmax)));
  };
  return {at(low, -2), at(high, 2)};
}

// `id`, which is x in the qparams `to`, with the least integer where x is minus infinity.
ValueId with_least(IntegerBuilder& build, const ScaledInteger& x, ValueId id, const QParams& to) {
  const TensorType &from = build.type(x.id), &type = build.type(id);
  const ValueId hidden =
      build.binary(Op::kTosaGreaterEqual, build.number(*x.minus_infinity, from.rank(), from.dtype), x.id);
  return build.elementwise(Op::kTosaSelect, NoAttrs{},
                           {hidden, build.number(to.qmin, type.rank(), type.dtype), id});
}

bool writes_at_places(Op op) { return op == Op::kIndexPut || op == Op::kScatter; }

// Does the same as requantize(). If x is one value that an expand repeats, the value is converted, and
// repeated afterwards: the rule of a write at places that may repeat looks for the expand.
ValueId requantized_once(IntegerBuilder& build, const ScaledInteger& x, const QParams& to) {
  const Node* const expand = produced_by(build.graph(), x.id, Op::kExpand);
  if (expand == nullptr || x.axis) return requantize(build, x, to);
  const ShapeAttrs attrs = Graph::attrs<ShapeAttrs>(*expand);
  ScaledInteger single = x;
  single.id = build.graph().operands(*expand)[0];
  const ValueId made = requantize(build, single, to);
  return made == single.id ? x.id : build.emit(Op::kExpand, attrs, {made});
}

Moved in_parameters(const RuleContext& ctx, const std::vector<std::size_t>& numbers, const QParams& to) {
  Moved out{{}, {to.zero_points.front(), to.zero_points.front()}};
  for (std::size_t i = 0; i < ctx.node.operand_count(); ++i) {
    if (std::find(numbers.begin(), numbers.end(), i) == numbers.end()) {
      out.operands.push_back(ctx.node.has(i) ? ctx.as_is(i) : ValueId());
      continue;
    }
    ValueRange range{to.qmin, to.qmax};
    if (ctx.node.is_constant(i)) {
      out.operands.push_back(ctx.quantized_constant(i, to));
      const Known known(ctx, i);
      if (ctx.node.result_qparams() == nullptr) require_number(ctx, i, known, to.scales.front());
      if (!known.has_nan && known.low <= known.high) range = range_in(to, known.low, known.high);
    } else {
      const ScaledInteger x = ctx.with_one_scale(i);
      const ValueRange centred = x.centred();
      if (ctx.node.result_qparams() == nullptr) {
        if (ctx.is_known(i)) require_number(ctx, i, Known(ctx, i), to.scales.front());
        ctx.require_bits(i, x, to.scales.front());
        require_steps(ctx, i, x, to.scales.front());
        if (to.scales.front() > x.scale() && !ctx.is_known(i)) ctx.values.set_rounded(ctx.node.result());
      }
      out.operands.push_back(writes_at_places(ctx.node.op()) ? requantized_once(ctx.build, x, to)
                                                             : requantize(ctx.build, x, to));
      if (x.minus_infinity && out.operands.back() != x.id) {
        out.operands.back() = with_least(ctx.build, x, out.operands.back(), to);
        out.range.low = to.qmin;
      }
      range = out.operands.back() == x.id ? x.range
                                          : range_in(to, static_cast<double>(centred.low) * x.scale(),
                                                     static_cast<double>(centred.high) * x.scale());
    }
    out.range = {std::min(out.range.low, range.low), std::max(out.range.high, range.high)};
  }
  return out;
}

std::vector<std::size_t> numbers_of(const RuleContext& ctx) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < ctx.node.operand_count(); ++i) {
    if (!ctx.node.has(i) || !is_moved(ctx.node.op(), i)) continue;
    const bool is_count = is_integer(ctx.node.operand_type(i).dtype) && ctx.node.result_qparams() != nullptr;
    if (!ctx.node.is_constant(i) && !ctx.is_scaled(i) && !is_count)
      throw NoIntegerForm("it moves numbers that are not quantized");
    out.push_back(i);
  }
  return out;
}

std::int64_t stored(double value, const QParams& to) {
  const float rounded =
      quantize_unbounded(static_cast<float>(value), inverse_scale(to.scales.front()), to.zero_points.front());
  return bound_quantized(rounded, to.qmin, to.qmax);
}

// The moved integers as the result: a final value if the result has qparams, or a ScaledInteger with the
// qparams `in` if it has none.
RuleResult as_result(const NodeView& node, ValueId made, const QParams& in, ValueRange range) {
  if (node.result_qparams() != nullptr) return made;
  return ScaledInteger{made, in.scales, in.zero_points.front(), range};
}

// Moves a ScaledInteger with per-channel scales: the scales of the channels that the result has, in its
// order. Returns nothing if the channels are not on one axis afterwards.
std::optional<ScaledInteger> moved_by_channel(const RuleContext& ctx) {
  if (ctx.node.result_qparams() != nullptr || ctx.node.operand_count() != 1 || !ctx.is_scaled(0))
    return std::nullopt;
  ScaledInteger x = ctx.stored_value(ctx.node.operand(0));
  if (!x.axis || ctx.build.type(x.id).dtype == DType::kI48) return std::nullopt;
  QParams from = full_range_qparams(ctx.build, x);
  for (std::size_t c = 0; !x.groups && c < from.zero_points.size(); ++c)
    from.zero_points[c] = static_cast<std::int64_t>(c);  // numbers the channels
  const std::optional<QParamsRef> to =
      qparams_after(ctx.node.graph(), ctx.node.node(), std::make_shared<const QParams>(from));
  if (!to || get_if<PadAttrs>(&ctx.node.attributes()) != nullptr) return std::nullopt;
  ChannelRanges ranges;
  if (!x.groups)
    for (const std::int64_t c : (*to)->zero_points)
      ranges.ranges.push_back(x.range_of_channel(static_cast<std::size_t>(c)));
  x.id = ctx.build.emit(ctx.node.op(), ctx.node.attributes(), {x.id});
  ranges.of = x.id;
  x.channel_ranges = std::move(ranges);
  x.axis = (*to)->axis;
  x.scales = (*to)->scales;
  x.groups = (*to)->groups;
  x.nan_mask.reset();  // with_nan_masks() moves it
  return x;
}

// The largest integer that represents minus infinity in the result. Returns nothing if none does. An operand
// that is moved as it is retains its own. Otherwise minus infinity has become `to.qmin`, and
// common_parameters() chose a unit in which finite numbers are above qmin / 4.
std::optional<std::int64_t> infinity_of(const RuleContext& ctx, const std::vector<std::size_t>& numbers,
                                        const Moved& moved, const QParams& to) {
  const std::optional<double> inserted = inserted_number(ctx.node.node());
  bool hides = inserted && is_minus_infinity(*inserted);
  for (const std::size_t i : numbers) {
    if (ctx.node.is_constant(i)) {
      hides = hides || Known(ctx, i).hides;
    } else if (const ScaledInteger x = ctx.with_one_scale(i); x.minus_infinity) {
      if (numbers.size() == 1 && moved.operands[i] == x.id) return x.minus_infinity;
      hides = true;
    }
  }
  return hides ? std::optional(to.qmin / 2 - to.qmin / 4) : std::nullopt;
}

}  // namespace

RuleResult integer_movement(const RuleContext& ctx) {
  if (const std::optional<ScaledInteger> by_channel = moved_by_channel(ctx)) return *by_channel;
  const std::vector<std::size_t> numbers = numbers_of(ctx);
  const QParams to = common_parameters(ctx, numbers);
  Moved moved = in_parameters(ctx, numbers, to);
  Attrs attrs = ctx.node.attributes();
  if (auto* pad = get_if<PadAttrs>(&attrs)) {
    const std::int64_t value = stored(as_double(pad->value), to);
    pad->value = value;
    moved.range = {std::min(moved.range.low, value), std::max(moved.range.high, value)};
  }
  RuleResult made =
      as_result(ctx.node, ctx.build.emit(ctx.node.op(), std::move(attrs), moved.operands), to, moved.range);
  if (ScaledInteger* number = std::get_if<ScaledInteger>(&made))
    number->minus_infinity = infinity_of(ctx, numbers, moved, to);
  return made;
}

RuleResult integer_where(const RuleContext& ctx) {
  const std::vector<std::size_t> numbers = numbers_of(ctx);
  const QParams to = common_parameters(ctx, numbers);
  const Moved moved = in_parameters(ctx, numbers, to);
  if (ctx.build.type(moved.operands[0]).dtype != DType::kBool)
    return Refusal{"its condition is no truth value"};
  const ValueId selected = ctx.build.elementwise(Op::kTosaSelect, NoAttrs{}, moved.operands);
  RuleResult made = as_result(ctx.node, selected, to, moved.range);
  if (ScaledInteger* number = std::get_if<ScaledInteger>(&made))
    number->minus_infinity = infinity_of(ctx, numbers, moved, to);
  return made;
}

}  // namespace tosaic::passes
