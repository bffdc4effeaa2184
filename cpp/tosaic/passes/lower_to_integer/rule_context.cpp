#include "tosaic/passes/lower_to_integer/rule_context.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/ir/op_table.h"
#include "tosaic/passes/lower_to_integer/refused_qparams.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/quant/quantize.h"

namespace tosaic::passes {
namespace {

double largest_of(const std::vector<double>& numbers) {
  double largest = 0;
  for (const double number : numbers) largest = std::max(largest, std::abs(number));
  return largest;
}

// Operators whose result consists of elements of their operands. Elements that saturate in the end may be
// clamped in the operands.
constexpr OpTable<bool> kChooses = {
    {Op::kWhere, true}, {Op::kCat, true}, {Op::kStack, true}, {Op::kMaximum, true}, {Op::kMinimum, true}};

// Subtracts the zero point of each scale from a constant of i8. The differences have 9 bits, differences of
// i4 fewer.
ScaledInteger without_zero_points(IntegerBuilder& build, const Constant& known, const QParams& qparams) {
  const Elements elements(known);
  const ScaleGrid grid(known.shape, qparams);
  std::vector<std::int64_t> values;
  ValueRange range{0, 0};
  for (std::size_t k = 0; k < elements.size(); ++k) {
    values.push_back(elements.as_int(k) - qparams.zero_points[grid.of(static_cast<std::int64_t>(k))]);
    range = {std::min(range.low, values.back()), std::max(range.high, values.back())};
  }
  const DType dtype = range.low >= -128 && range.high <= 127 ? DType::kI8 : DType::kI16;
  ScaledInteger out{build.constant(dtype, known.shape, values), qparams.scales, 0, range, qparams.axis};
  out.groups = qparams.groups;
  return out;
}

}  // namespace

ScaledInteger in_one_unit(IntegerBuilder& build, const ScaledInteger& x) {
  const ConstantRef known = build.known(x.id);
  const Elements elements(*known);
  const ScaleGrid grid(known->shape, x);
  std::vector<double> numbers;
  for (std::size_t k = 0; k < elements.size(); ++k) {
    const auto scale =
        static_cast<double>(static_cast<float>(x.scales[grid.of(static_cast<std::int64_t>(k))]));
    numbers.push_back(static_cast<double>(elements.as_int(k) - x.zero_point) * scale);
  }
  return in_one_unit(build, known->shape, numbers);
}

ScaledInteger in_one_unit(IntegerBuilder& build, const Shape& shape, const std::vector<double>& numbers) {
  double largest = 0;
  for (const double number : numbers) largest = std::max(largest, std::abs(number));
  const double unit = unit_for(largest) * (1 + 0x1p-28);  // below 2^29, up to where a RESCALE by 1 is defined
  std::vector<std::int64_t> values;
  for (const double number : numbers) values.push_back(std::llround(number / unit));
  const std::int64_t most = std::llround(largest / unit);
  return {build.constant(DType::kI32, shape, values), {unit}, 0, {-most, most}};
}

std::optional<ScaledInteger> stored_integers(IntegerBuilder& build, ValueId id, const QParams& qparams) {
  ScaledInteger out{
      id, qparams.scales, qparams.zero_points.front(), {qparams.qmin, qparams.qmax}, qparams.axis};
  out.groups = qparams.groups;
  // A bias uses a small part of the range of i32. RESCALE by 1/2 takes less than 2^30.
  if (const ConstantRef known = build.known(id);
      known && known->storage.bound() && known->dtype == DType::kI32) {
    const ValueRange own = united(extremes_of(*known), ValueRange::only(0));
    if (own.low > -0x40000000 && own.high < 0x40000000) out.range = own;
  }
  const auto differs = [&](std::int64_t zero_point) { return zero_point != out.zero_point; };
  if (std::none_of(qparams.zero_points.begin(), qparams.zero_points.end(), differs)) return out;
  const ConstantRef known = build.known(id);
  if (!known || !known->storage.bound() || known->dtype != DType::kI8) return std::nullopt;
  return without_zero_points(build, *known, qparams);
}

bool RuleContext::is_known(std::size_t i) const {
  if (node.is_constant(i)) return true;
  const ScaledInteger* const scaled = values.scaled(node.operand(i));
  return scaled != nullptr && build.graph().value(scaled->id).kind == ValueKind::kConstant;
}

ScaledInteger RuleContext::with_one_scale(std::size_t i) const {
  return passes::with_one_scale(build, scaled(i));
}

ScaledInteger RuleContext::scaled_value(ValueId id) const {
  ScaledInteger x = stored_value(id);
  if (!x.groups) return x;
  if (const ConstantRef& known = build.known(x.id); known && known->storage.bound())
    return in_one_unit(build, x);
  throw NoIntegerForm("operand '" + node.graph().value(id).name +
                      "' has a scale for each group, and only constants may have groups");
}

std::optional<ScaledInteger> RuleContext::by_group(std::size_t i) const {
  const TensorType& type = node.operand_type(i);
  const ScaledInteger* const scaled = values.scaled(node.operand(i));
  if (scaled != nullptr ? !scaled->groups : !type.qparams || !type.qparams->groups) return std::nullopt;
  ScaledInteger x = stored_value(node.operand(i));
  const ConstantRef& known = build.known(x.id);
  return known && known->storage.bound() ? std::optional(std::move(x)) : std::nullopt;
}

ScaledInteger RuleContext::stored_value(ValueId id) const {
  if (const ScaledInteger* const scaled = values.scaled(id)) return *scaled;
  const Value& value = node.graph().value(id);
  const QParamsRef& qparams = value.type.qparams;
  if (!qparams && is_float(value.type.dtype)) throw NoIntegerForm("operand '" + value.name + "' is a float");
  if (!qparams) return counted(id);
  const std::optional<QParams> in_signed = signed_form(*qparams);
  if (!in_signed) throw NoIntegerForm(refused_qparams("operand '" + value.name + "'", *qparams));
  if (const std::optional<ScaledInteger> stored = stored_integers(build, values.value(id, build), *in_signed))
    return *stored;
  throw NoIntegerForm("operand '" + value.name + "' has zero points that differ by channel");
}

// The numbers of a value with qparams, or of a scaled integer, rounded toward zero.
std::optional<ValueRange> RuleContext::whole_numbers(ValueId id) const {
  const QParamsRef& qparams = node.graph().type(id).qparams;
  const ScaledInteger* const scaled = values.scaled(id);
  if (scaled == nullptr && qparams == nullptr) return std::nullopt;
  const std::vector<double>& scales = scaled != nullptr ? scaled->scales : qparams->scales;
  // A file may hold integers beyond qmin and qmax.
  const ValueRange stored = scaled != nullptr ? scaled->range : *integer_limits(qparams->storage);
  ValueRange out{0, 0};
  for (std::size_t c = 0; c < scales.size(); ++c) {
    const std::int64_t zero_point = scaled != nullptr ? scaled->zero_point : qparams->zero_points[c];
    for (const std::int64_t end : {stored.low, stored.high}) {
      // A cast takes a number within half a unit of the next whole number for that one.
      const double exact = static_cast<double>(end - zero_point) * scales[c];
      const double number = std::trunc(exact + std::copysign(scales[c] / 2, exact));
      if (!(std::abs(number) < 0x1p31)) return std::nullopt;
      out = united(out, ValueRange::only(static_cast<std::int64_t>(number)));
    }
  }
  return out;
}

// The range of integers without qparams: of the numbers that they were cast from, or of the dtype. A number
// beyond the dtype may become any integer.
ValueRange RuleContext::range_of_counts(ValueId id) const {
  const TensorType& type = node.graph().type(id);
  const ValueRange all = analysis::range_of_dtype(type.dtype);
  if (const std::optional<ValueRange> known = values.range_of_integers(id)) return *known;
  const Node* const producer = node.graph().producer(id);
  if (producer == nullptr || producer->operand_count != 1) return all;
  if (producer->op != Op::kCast && !info(producer->op).has(kView)) return all;
  const ValueId from = node.graph().operands(*producer)[0];
  const DType dtype = node.graph().type(from).dtype;
  const bool counts = !is_float(dtype) && !values.has_integers(from);
  const std::optional<ValueRange> range = counts ? range_of_counts(from) : whole_numbers(from);
  return range && all.contains(range->low) && all.contains(range->high) ? *range : all;
}

// The range of 32-bit or 64-bit integers of a value outside of which the result of the node saturates or does
// not change. Returns nothing if no such range leaves the result its bits.
std::optional<ValueRange> RuleContext::relevant_counts(ValueId id) const {
  constexpr double kMost = 0x1p29;
  const auto limit = static_cast<std::int64_t>(kMost);
  if (const ValueRange known = range_of_counts(id); known.low > -limit && known.high < limit) return known;
  const auto within = [](double beyond) -> std::optional<ValueRange> {
    const auto most = static_cast<std::int64_t>(std::min(std::ceil(beyond) + 1, 0x1p31 - 1));
    return ValueRange{-most, most};
  };
  const std::optional<QParams> to = node.qparams_behind_movement();
  // A quotient is computed from mantissas and exponents, so each operand may have any 31 bits.
  if (node.op() == Op::kDiv &&
      (to || (node.operand(0) != id && node.attrs<DivAttrs>().rounding == DivRounding::kNone)))
    return within(0x1p31);
  if (info(node.op()).has(kComparison) && node.operand(0) != node.operand(1)) {
    const ValueId other = node.operand(node.operand(0) == id ? 1 : 0);
    if (node.graph().value(other).kind == ValueKind::kConstant) {
      const double size = largest_of(numbers(node.operand(0) == id ? 1 : 0));
      return size < kMost ? within(size) : std::nullopt;
    }
    if (!values.has_integers(other)) return std::nullopt;
    const ScaledInteger x = passes::with_one_scale(build, scaled_value(other));
    const double size = static_cast<double>(x.magnitude()) * x.scale();
    return size < kMost && !x.minus_infinity ? within(size) : std::nullopt;
  }
  if (node.op() == Op::kCast) {
    const std::optional<double> largest = node.largest_quantized();
    if (largest) return within(*largest);
    const std::optional<analysis::RelevantNumbers> noticed = values.noticed(node.node());
    if (!noticed || noticed->by_row || noticed->bounds.low > noticed->bounds.high) return std::nullopt;
    const double size = magnitude(noticed->bounds).high;
    return size < kMost ? within(size) : std::nullopt;
  }
  const ValueId other = node.operand_count() == 2 ? node.operand(node.operand(0) == id ? 1 : 0) : id;
  const bool has_constant = other != id && node.graph().value(other).kind == ValueKind::kConstant;
  // A function of the integer, or its product with constants.
  if (info(node.op()).has(kElementwise) &&
      (is_float(node.result_type().dtype) || node.result_type().qparams) &&
      (node.operand_count() == 1 || has_constant) && node.op() != Op::kAdd && node.op() != Op::kSub)
    return within(0x1p31);
  if (!to) return std::nullopt;
  const double largest = largest_number(*to);  // saturates, whatever the zero point
  const auto within_sum = [&](double size) {
    const bool adds = largest + size < kMost && node.attrs<AlphaAttrs>().alpha == Scalar(std::int64_t{1});
    return adds ? within(largest + size) : std::nullopt;
  };
  if ((node.op() == Op::kRemainder || node.op() == Op::kFmod) && node.operand(1) == id &&
      node.operand(0) != id && values.has_integers(node.operand(0))) {
    // For n beyond this range, x % n is x or x + n.
    const ScaledInteger x = passes::with_one_scale(build, scaled_value(node.operand(0)));
    const double size = static_cast<double>(x.magnitude()) * x.scale();
    return largest + size < kMost ? within(largest + size) : std::nullopt;
  }
  if (kChooses.contains(node.op())) return largest < kMost ? within(largest) : std::nullopt;
  if (node.op() != Op::kMul && node.op() != Op::kAdd && node.op() != Op::kSub) return std::nullopt;
  if (has_constant) return within_sum(largest_of(numbers(node.operand(0) == id ? 1 : 0)));
  if (other == id || !values.has_integers(other)) return std::nullopt;
  const ScaledInteger x = passes::with_one_scale(build, scaled_value(other));
  const double size = static_cast<double>(x.magnitude()) * x.scale();
  if (node.op() != Op::kMul) return within_sum(size);
  // An integer beyond this range, times the least nonzero number of x, saturates. A product of more than 30
  // bits is computed from mantissas and exponents.
  const double beyond = largest / x.scale() + 1;
  const bool is_fine = size * beyond <= std::ldexp(to->scales.front(), 26);
  return within(beyond < kMost && is_fine ? beyond : 0x1p31);
}

// Bools and integers as numbers of scale 1. Integers of 32 and 64 bits are clamped to relevant_counts();
// throws NoIntegerForm if that returns nothing.
ScaledInteger RuleContext::counted(ValueId id) const {
  const DType from = node.graph().type(id).dtype;
  const ValueId x = values.value(id, build);
  const auto cast = [&](DType to) { return build.emit(Op::kCast, CastAttrs{to}, {x}); };
  if (from == DType::kI8) return {x, {1.0}, 0, range_of_counts(id)};
  if (from == DType::kBool) return {cast(DType::kI8), {1.0}, 0, {0, 1}};
  if (from == DType::kU8) return {cast(DType::kI32), {1.0}, 0, range_of_counts(id)};
  if (from == DType::kI16) return {cast(DType::kI32), {1.0}, 0, range_of_counts(id)};
  const std::optional<ValueRange> range = relevant_counts(id);
  if (!range) {
    const bool is_sum = node.op() == Op::kAdd || node.op() == Op::kSub;
    const bool has_no_unit = (is_sum || node.op() == Op::kMul) && !node.qparams_behind_movement();
    throw NoIntegerForm(
        "operand '" + node.graph().value(id).name + "' counts to more than its reader is known to take" +
        (has_no_unit ? ": nothing quantizes the result, and no unit of 32 bits holds all its numbers" : "") +
        "; bound it first, such as by torch.clamp(n, 0, 1000)");
  }
  const ValueRange own = range_of_counts(id);
  const ValueRange all{std::max(own.low, kInt32Values.low), std::min(own.high, kInt32Values.high)};
  return {build.bounded(cast(DType::kI32), all, *range), {1.0}, 0, *range};
}

std::vector<double> RuleContext::numbers(std::size_t i) const {
  const Value& value = node.graph().value(node.operand(i));
  const ScaledInteger* const scaled = values.scaled(node.operand(i));
  const ConstantRef constant = value.constant ? value.constant : build.known(scaled->id);
  if (!constant->storage.bound()) throw NoIntegerForm("constant '" + value.name + "' has no data");
  const Elements elements(*constant);
  std::vector<double> out(elements.size());
  for (std::size_t k = 0; k < out.size(); ++k) out[k] = elements.as_double(k);
  const QParamsRef& qparams = value.type.qparams;
  if (scaled == nullptr && !qparams) return out;
  const std::vector<double>& scales = scaled != nullptr ? scaled->scales : qparams->scales;
  const std::vector<std::int64_t> zero_points =
      scaled != nullptr ? std::vector(scales.size(), scaled->zero_point) : qparams->zero_points;
  const std::optional<std::int64_t> axis = scaled != nullptr ? scaled->axis : qparams->axis;
  const ScaleGrid grid(constant->shape, axis, scaled != nullptr ? scaled->groups : qparams->groups);
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::size_t c = grid.of(static_cast<std::int64_t>(k));
    out[k] =
        (out[k] - static_cast<double>(zero_points[c])) * static_cast<double>(static_cast<float>(scales[c]));
  }
  return out;
}

void RuleContext::require_bits(std::size_t i, const ScaledInteger& x, double unit, double factor) const {
  constexpr double kFewest = 64, kCoarse = 16, kLost = 8, kOwn = 0.9;
  const double scale = *std::max_element(x.scales.begin(), x.scales.end()) * factor;
  const auto steps = static_cast<double>(x.range.high - x.range.low);
  const double left = steps * scale / unit;
  if (steps == 0 || unit <= scale || is_known(i)) return;
  if (left >= kOwn * steps) return;
  const std::optional<analysis::RelevantNumbers> noticed = values.noticed(node.node());
  if (noticed) {
    // An operand may use few of its steps: the range of a mask is far larger than its visible numbers.
    const bool is_coarse = unit > kCoarse * noticed->finest;
    if (noticed->step >= 2 * unit || (left >= kFewest && !is_coarse)) return;
  } else if (left >= kLost || steps < kLost) {
    return;  // in a composite, units are far finer than what its result notices
  }
  throw NoIntegerForm("one unit for all operands leaves " + std::to_string(static_cast<int>(left)) +
                      " of the " + std::to_string(x.range.high - x.range.low) + " steps of operand '" +
                      node.graph().value(node.operand(i)).name +
                      "'; if a larger number only hides others, about ten times their largest is enough");
}

void RuleContext::require_fine_results(double unit) const {
  if (node.result_qparams() != nullptr || node.eventual_qparams()) return;
  const std::optional<analysis::RelevantNumbers> noticed = values.noticed(node.node());
  if (noticed && unit > 2 * noticed->finest)
    throw NoIntegerForm("its readers notice less than one unit of its results");
}

ValueId RuleContext::quantized_constant(std::size_t i, const QParams& to) const {
  return quantized_numbers(numbers(i), node.operand_type(i).shape, to);
}

ValueId RuleContext::quantized_numbers(const std::vector<double>& numbers, const Shape& shape,
                                       const QParams& to) const {
  const std::vector<float> floats(numbers.begin(), numbers.end());
  const ValueId id =
      build.constant(constant_over(build.name() + ".quantized", ConstantKind::kFolded, to.storage, shape,
                                   quant::quantize(floats, shape, to).storage));
  values.made().graph.set_qparams(id, std::make_shared<const QParams>(to));
  return id;
}

}  // namespace tosaic::passes
