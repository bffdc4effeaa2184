// integer_movement: operators that move elements, among them where. The operands are requantized to common
// qparams before they are moved: those of the result or, if it has none, those that all operands share, or
// else i32 in a common unit. Constant operands are quantized at compile time.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/lower_to_integer/integer_lowering.h"

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

  Known(const IntegerLowering& l, std::size_t operand) {
    for (const double x : l.numbers(operand)) {
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

// The qparams in which the operands are moved: those of the result, or those that all operands have, or i32
// in a unit for the largest number.
QParams common_parameters(IntegerLowering& l, const std::vector<std::size_t>& numbers) {
  if (l.target() != nullptr) return *l.target();
  std::optional<QParams> common;
  bool equal = true;
  double size = 0;
  bool hidden = false;
  for (const std::size_t i : numbers) {
    if (l.is_constant(i)) {
      equal = false;
      const Known known(l, i);
      hidden = hidden || known.hides;
      size = std::max(size, known.size);
      continue;
    }
    const Real x = l.real_with_one_scale(i);
    const QParams own = l.parameters(x);
    equal = equal && (!common || *common == own);
    common = own;
    size = std::max(size, static_cast<double>(x.magnitude()) * x.scale());
  }
  if (!common) throw NoIntegerForm("it moves no quantized numbers");
  if (equal) return *common;
  if (hidden) size = 2 * (size + hidden_below(size));
  const std::int64_t limit = std::int64_t{1} << 30;
  return {DType::kI32, -limit, limit, std::nullopt, {unit_for(size)}, {0}};
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

Moved in_parameters(IntegerLowering& l, const std::vector<std::size_t>& numbers, const QParams& to) {
  Moved out{{}, {to.zero_points.front(), to.zero_points.front()}};
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    if (std::find(numbers.begin(), numbers.end(), i) == numbers.end()) {
      out.operands.push_back(l.has(i) ? l.plain(i) : ValueId());
      continue;
    }
    ValueRange range{to.qmin, to.qmax};
    if (l.is_constant(i)) {
      out.operands.push_back(l.quantized_constant(i, to));
      if (const Known known(l, i); !known.has_nan && known.low <= known.high)
        range = range_in(to, known.low, known.high);
    } else {
      const Real x = l.real_with_one_scale(i);
      const ValueRange centred = x.centred();
      out.operands.push_back(l.requantize(x, to));
      range = out.operands.back() == x.id ? x.range
                                          : range_in(to, static_cast<double>(centred.low) * x.scale(),
                                                     static_cast<double>(centred.high) * x.scale());
    }
    out.range = {std::min(out.range.low, range.low), std::max(out.range.high, range.high)};
  }
  return out;
}

std::vector<std::size_t> numbers_of(const IntegerLowering& l) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    if (!l.has(i) || !is_moved(l.node().op, i)) continue;
    if (!l.is_constant(i) && !l.is_real(i)) throw NoIntegerForm("it moves numbers that are not quantized");
    out.push_back(i);
  }
  return out;
}

std::int64_t stored(double value, const QParams& to) {
  const float rounded =
      quantize_unbounded(static_cast<float>(value), inverse_scale(to.scales.front()), to.zero_points.front());
  return bound_quantized(rounded, to.qmin, to.qmax);
}

// The moved integers as the result: a final value if the result has qparams, else a Real with the qparams
// `in`.
Lowered as_result(IntegerLowering& l, ValueId made, const QParams& in, ValueRange range) {
  if (l.target() != nullptr) return made;
  return Real{made, in.scales, in.zero_points.front(), range};
}

// Moves a Real with per-channel scales, if the channels are on one axis afterwards; nothing otherwise.
std::optional<Real> moved_by_channel(IntegerLowering& l) {
  if (l.target() != nullptr || l.operand_count() != 1 || !l.is_real(0)) return std::nullopt;
  Real x = l.real(0);
  if (!x.axis || l.type(x.id).dtype == DType::kI48) return std::nullopt;
  const std::optional<QParamsRef> to =
      qparams_after(l.source(), l.node(), std::make_shared<const QParams>(l.parameters(x)));
  if (!to || get_if<PadAttrs>(l.node().attrs.get()) != nullptr) return std::nullopt;
  x.id = l.emit(l.node().op, *l.node().attrs, {x.id});
  x.axis = (*to)->axis;
  return x;
}

}  // namespace

Lowered integer_movement(IntegerLowering& l) {
  if (const std::optional<Real> by_channel = moved_by_channel(l)) return *by_channel;
  const std::vector<std::size_t> numbers = numbers_of(l);
  const QParams to = common_parameters(l, numbers);
  const Moved moved = in_parameters(l, numbers, to);
  Attrs attrs = *l.node().attrs;
  if (auto* pad = get_if<PadAttrs>(&attrs)) pad->value = stored(as_double(pad->value), to);
  Lowered made = as_result(l, l.emit(l.node().op, std::move(attrs), moved.operands), to, moved.range);
  if (Real* real = std::get_if<Real>(&made);
      real != nullptr && numbers.size() == 1 && l.is_real(numbers[0])) {
    const Real x = l.real_with_one_scale(numbers[0]);
    if (moved.operands[0] == x.id) real->minus_infinity = x.minus_infinity;
  }
  return made;
}

namespace {

// The largest integer that represents minus infinity in the result of where, if any. A constant's minus
// infinity becomes qmin, and common_parameters() chose a unit in which finite numbers are above qmin / 4. The
// threshold of an operand that hides minus infinity holds only if no other operand has finite numbers, which
// might be below it.
std::optional<std::int64_t> hidden_in(IntegerLowering& l, const std::vector<std::size_t>& numbers,
                                      const QParams& to) {
  std::optional<std::int64_t> out, known;
  bool others = false;
  for (const std::size_t i : numbers) {
    if (l.is_constant(i)) {
      const Known known_numbers(l, i);
      if (known_numbers.hides) out = to.qmin / 2 - to.qmin / 4;
      others = others || known_numbers.has_finite;
    } else if (const Real x = l.real_with_one_scale(i); x.minus_infinity && !known) {
      known = least_in_unit(x, to.scales.front());
    } else {
      others = true;
    }
  }
  return known && !others ? known : out;
}

}  // namespace

Lowered integer_where(IntegerLowering& l) {
  const std::vector<std::size_t> numbers = numbers_of(l);
  const QParams to = common_parameters(l, numbers);
  const Moved moved = in_parameters(l, numbers, to);
  if (l.type(moved.operands[0]).dtype != DType::kBool) throw NoIntegerForm("its condition is no truth value");
  const ValueId selected = l.elementwise(Op::kTosaSelect, NoAttrs{}, moved.operands);
  Lowered made = as_result(l, selected, to, moved.range);
  if (Real* real = std::get_if<Real>(&made)) real->minus_infinity = hidden_in(l, numbers, to);
  return made;
}

}  // namespace tosaic::passes
