// expand_reduce: expresses means, variances, argmin, cumulative sums and differences by sums, argmax, slices
// and pads.

#include <limits>

#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

std::int64_t extent_of(const Shape& shape, const Dims& axes) {
  std::int64_t count = 1;
  for (const std::int64_t axis : axes) count *= shape[static_cast<std::size_t>(axis)];
  return count;
}

}  // namespace

ValueId mean(Emitter& e, ValueId x, const Dims& axes, bool keepdim) {
  const std::int64_t count = extent_of(e.type(x).shape, axes);
  const ValueId total = e.reduce(Op::kSum, x, axes, keepdim);
  if (count == 0) return e.mul(total, std::numeric_limits<double>::quiet_NaN());
  return e.mul(total, 1.0 / static_cast<double>(count));
}

ValueId expand_mean(Emitter& e) {
  const auto& attrs = e.attrs<ReduceAttrs>();
  return mean(e, e.cast(e.operand(0), e.result_dtype()), attrs.axes, attrs.keepdim);
}

ValueId expand_var(Emitter& e) {
  const auto& attrs = e.attrs<VarAttrs>();
  const ValueId x = e.operand(0);
  const auto count = static_cast<double>(extent_of(e.type(x).shape, attrs.axes));
  const ValueId centred = e.sub(x, mean(e, x, attrs.axes, true));
  const ValueId total = e.reduce(Op::kSum, e.mul(centred, centred), attrs.axes, attrs.keepdim);
  const double freedom = std::max(0.0, count - attrs.correction);  // 0 yields NaN or inf, as in torch
  return e.mul(total, 1.0 / freedom);
}

// The variance of one element is 0 or NaN, and so is its root.
ValueId expand_std(Emitter& e) {
  const ValueId variance = expand_var(e);
  const bool is_of_one = extent_of(e.type(e.operand(0)).shape, e.attrs<VarAttrs>().axes) == 1;
  return is_of_one ? variance : e.unary(Op::kSqrt, variance);
}

// argmin is the argmax of the values in reversed order: -x for floats, and ~x for integers, which cannot
// overflow.
ValueId expand_argmin(Emitter& e) {
  const ValueId x = e.operand(0);
  const ValueId reversed = e.unary(is_float(e.type(x).dtype) ? Op::kNeg : Op::kBitwiseNot, x);
  return e.emit(Op::kArgmax, e.attrs<ArgAttrs>(), {reversed});
}

// A scan in ceil(log2 n) steps: x += x shifted by 1, 2, 4 ... along the axis.
ValueId expand_cumsum(Emitter& e) {
  ValueId x = e.cast(e.operand(0), e.result_dtype());
  const Shape shape = e.type(x).shape;
  if (shape.empty()) return x == e.operand(0) ? e.emit(Op::kClone, CloneAttrs{}, {x}) : x;
  const auto axis = static_cast<std::size_t>(e.attrs<AxisDtypeAttrs>().axis);
  for (std::int64_t shift = 1; shift < shape[axis]; shift *= 2) {
    PadAttrs pad{Dims::filled(shape.size(), 0), Dims::filled(shape.size(), 0), PadMode::kConstant, 0.0};
    pad.before[axis] = shift;
    const ValueId head = e.slice(x, axis, 0, shape[axis] - shift);
    x = e.add(x, e.emit(Op::kPad, pad, {head}));
  }
  return x == e.operand(0) ? e.emit(Op::kClone, CloneAttrs{}, {x}) : x;
}

ValueId expand_diff(Emitter& e) {
  const auto& attrs = e.attrs<DiffAttrs>();
  const auto axis = static_cast<std::size_t>(attrs.axis);
  std::vector<ValueId> parts;
  if (e.has(1)) parts.push_back(e.operand(1));
  parts.push_back(e.operand(0));
  if (e.has(2)) parts.push_back(e.operand(2));
  ValueId x = parts.size() == 1 ? parts.front() : e.emit(Op::kCat, AxisAttrs{attrs.axis}, parts);
  const bool logical = e.type(x).dtype == DType::kBool;
  for (std::int64_t i = 0; i < attrs.n; ++i) {
    const std::int64_t extent = e.type(x).shape[axis];
    const ValueId late = e.slice(x, axis, std::min<std::int64_t>(1, extent), extent);
    const ValueId early = e.slice(x, axis, 0, std::max<std::int64_t>(0, extent - 1));
    x = e.binary(logical ? Op::kNe : Op::kSub, late, early);
  }
  return attrs.n == 0 ? e.emit(Op::kClone, CloneAttrs{}, {x}) : x;
}

}  // namespace tosaic::passes
