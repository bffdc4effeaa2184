// expand_order: expresses sorts by comparisons of all pairs, and scans by shifts.
//
//   argsort    the rank of an element is the number of elements that precede it. A scatter inverts the ranks,
//              which all differ: equal elements keep their order, and a NaN comes after all numbers. If there
//              are too many pairs and only the first few positions are read, each of these is the argmax of
//              the elements that are left.
//   cumargmax  ceil(log2 n) steps: each joins two neighbouring runs of 1, 2, 4 ... elements

#include <algorithm>
#include <limits>

#include "tosaic/base/error.h"
#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

// The most pairs of elements that are compared at once. As Vela plans it for an Ethos-U85, a pair takes about
// 35 bytes of SRAM, in all 1.1 MiB.
constexpr std::int64_t kMostCompared = std::int64_t{1} << 15;

// The most positions that are found one after the other, and the most elements that all these steps read
// together. A step takes about nine operators.
constexpr std::int64_t kMostSteps = 32, kMostLookedAt = std::int64_t{1} << 21;

// Positions 0 .. extent - 1 along the axis of a tensor of `rank` axes.
ValueId positions(Emitter& e, std::size_t rank, std::size_t axis, std::int64_t extent, DType dtype) {
  Shape shape = Dims::filled(rank, 1);
  shape[axis] = extent;
  std::vector<double> numbers;
  for (std::int64_t at = 0; at < extent; ++at) numbers.push_back(static_cast<double>(at));
  return e.constant(dtype, shape, numbers);
}

// `numbers` are the elements as TOSA can compare them. `is_nan` is true where an element is NaN; elements
// that are integers have no such mask.
struct Keys {
  ValueId numbers, is_nan;
};

Keys keys_of(Emitter& e, ValueId x) {
  if (e.type(x).dtype == DType::kBool) return {e.cast(x, DType::kI32), {}};
  const TensorType type = e.type(x);
  return {x, is_float(type.dtype) && !type.qparams ? e.binary(Op::kNe, x, x) : ValueId{}};
}

// a < b (a > b if descending), where a NaN is larger than all numbers.
ValueId precedes(Emitter& e, const Keys& a, const Keys& b, bool descending) {
  const Keys &small = descending ? b : a, &large = descending ? a : b;
  const ValueId less = e.binary(Op::kLt, small.numbers, large.numbers);
  if (!small.is_nan.valid()) return less;
  const ValueId before_nan = e.binary(Op::kLogicalAnd, large.is_nan, e.unary(Op::kLogicalNot, small.is_nan));
  return e.binary(Op::kLogicalOr, less, before_nan);
}

Keys reshaped(Emitter& e, const Keys& keys, const Shape& shape) {
  return {e.reshape(keys.numbers, shape), keys.is_nan.valid() ? e.reshape(keys.is_nan, shape) : ValueId{}};
}

// The first `count` positions of the order along an axis of x. Each is the argmax of x in which the elements
// found before are replaced by the least number. If all that is left equals the least number, the argmax may
// be an element found before: then the first element that is left is taken, a number before a NaN.
ValueId first_positions(Emitter& e, ValueId x, std::size_t axis, std::int64_t count, bool descending) {
  const Shape shape = e.type(x).shape;
  const auto along = static_cast<std::int64_t>(axis);
  const DType dtype = e.type(x).dtype;
  const bool has_nan = is_float(dtype) && !e.type(x).qparams;
  ValueId is_last;  // a NaN that comes after all numbers
  if (!descending) {
    if (has_nan) is_last = e.binary(Op::kNe, x, x);
    x = e.unary(is_float(dtype) ? Op::kNeg : Op::kBitwiseNot, x);
  }
  // An i64 fits i32 wherever it is lowered.
  const double least = is_float(dtype)        ? -std::numeric_limits<double>::infinity()
                       : dtype == DType::kI64 ? static_cast<double>(integer_limits(DType::kI32)->low)
                                              : static_cast<double>(integer_limits(dtype)->low);
  const ValueId numbers = positions(e, shape.size(), axis, shape[axis], DType::kI32);
  const auto either = [&](ValueId a, ValueId b) {
    return !a.valid() ? b : !b.valid() ? a : e.binary(Op::kLogicalOr, a, b);
  };
  const auto argmax = [&](ValueId v) {
    return e.cast(e.emit(Op::kArgmax, ArgAttrs{.axis = along, .keepdim = true}, {v}), DType::kI32);
  };
  const auto counted = [&](ValueId flags) { return e.cast(e.unary(Op::kLogicalNot, flags), DType::kI32); };
  std::vector<ValueId> found;
  ValueId taken;
  for (std::int64_t step = 0; step < count; ++step) {
    const ValueId hidden = either(taken, is_last);
    ValueId at = argmax(hidden.valid() ? e.where(hidden, e.number(least, dtype), x) : x);
    if (hidden.valid()) {
      const ValueId is_at = e.binary(Op::kEq, numbers, at);
      const ValueId is_hidden =
          e.reduce(Op::kAny, e.binary(Op::kLogicalAnd, is_at, hidden), Dims{along}, true);
      ValueId rank = taken.valid() ? counted(taken) : ValueId();  // 2 for numbers that are left, 1 for NaN
      if (is_last.valid()) {
        const ValueId of_numbers = counted(hidden);
        rank = rank.valid() ? e.add(rank, of_numbers) : of_numbers;
      }
      at = e.where(is_hidden, argmax(rank), at);
    }
    found.push_back(at);
    taken = either(taken, e.binary(Op::kEq, numbers, at));
  }
  for (ValueId& each : found) each = e.cast(each, DType::kI64);
  return found.size() == 1 ? found.front() : e.emit(Op::kCat, AxisAttrs{along}, found);
}

}  // namespace

ValueId expand_argsort(Emitter& e) {
  const auto& attrs = e.attrs<SortAttrs>();
  const ValueId x = e.operand(0);
  const Shape shape = e.type(x).shape;
  const auto axis = static_cast<std::size_t>(attrs.axis);
  if (shape.empty() || shape[axis] <= 1 || num_elements(e.result_type().shape) == 0)
    return e.expand(e.number(0.0, DType::kI64), e.result_type().shape);
  const std::int64_t extent = shape[axis], count = attrs.count.value_or(extent);
  std::int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (i != axis) (i < axis ? outer : inner) *= shape[i];
  if (num_elements(shape) > kMostCompared / extent) {
    if (count <= kMostSteps && num_elements(shape) <= kMostLookedAt / std::max<std::int64_t>(count, 1)) {
      const ValueId numbers = e.type(x).dtype == DType::kBool ? e.cast(x, DType::kI32) : x;
      return first_positions(e, numbers, axis, count, attrs.descending);
    }
    throw UnsupportedOp({.where = "decompose",
                         .what = "TOSA has no sort, and " + std::to_string(outer * inner) + " times " +
                                 std::to_string(extent) + " elements have too many pairs to compare",
                         .expected = "at most " + std::to_string(kMostCompared) + " pairs",
                         .hint = "Sort fewer elements, take at most " + std::to_string(kMostSteps) +
                                 " of them with topk, or leave the call to the host"});
  }
  const Keys keys = keys_of(e, x);
  const Keys own = reshaped(e, keys, {outer, extent, 1, inner});
  const Keys others = reshaped(e, keys, {outer, 1, extent, inner});
  // The equal element at the lower position precedes the other.
  const ValueId is_lower =
      e.binary(Op::kLt, positions(e, 4, 2, extent, DType::kI32), positions(e, 4, 1, extent, DType::kI32));
  const ValueId precede =
      e.where(is_lower, e.unary(Op::kLogicalNot, precedes(e, own, others, attrs.descending)),
              precedes(e, others, own, attrs.descending));
  const ValueId rank = e.reduce(Op::kSum, e.cast(precede, DType::kI32), Dims{2}, false);
  const Shape lines{outer, extent, inner};
  const ValueId numbers = e.expand(positions(e, 3, 1, extent, DType::kI64), lines);
  const ValueId zeros = e.expand(e.number(0.0, DType::kI64), lines);
  const ValueId order = e.reshape(scatter_at_places_that_differ(e, zeros, rank, numbers, 1), shape);
  return count == extent ? order : e.slice(order, axis, 0, count);
}

ValueId expand_cumargmax(Emitter& e) {
  const ValueId x = e.operand(0);
  const Shape shape = e.type(x).shape;
  const auto axis = static_cast<std::size_t>(e.attrs<AxisAttrs>().axis);
  if (shape.empty() || shape[axis] <= 1) return e.expand(e.number(0.0, DType::kI64), shape);
  const std::int64_t extent = shape[axis];
  Keys best = keys_of(e, x);
  ValueId at = e.expand(positions(e, shape.size(), axis, extent, DType::kI64), shape);
  const auto joined = [&](ValueId head, ValueId tail) {
    return e.emit(Op::kCat, AxisAttrs{static_cast<std::int64_t>(axis)}, {head, tail});
  };
  for (std::int64_t shift = 1; shift < extent; shift *= 2) {
    const auto head = [&](ValueId v) { return e.slice(v, axis, 0, shift); };
    const auto early = [&](ValueId v) { return e.slice(v, axis, 0, extent - shift); };
    const auto late = [&](ValueId v) { return e.slice(v, axis, shift, extent); };
    // The later run wins unless the earlier one is larger. A NaN wins over a number.
    ValueId earlier_wins = e.binary(Op::kGt, early(best.numbers), late(best.numbers));
    if (best.is_nan.valid()) {
      const ValueId later_is_number = e.unary(Op::kLogicalNot, late(best.is_nan));
      earlier_wins = e.binary(Op::kLogicalOr, earlier_wins,
                              e.binary(Op::kLogicalAnd, early(best.is_nan), later_is_number));
    }
    const auto next = [&](ValueId v) { return joined(head(v), e.where(earlier_wins, early(v), late(v))); };
    at = next(at);
    if (2 * shift >= extent) break;
    const ValueId numbers = next(best.numbers);
    best = {numbers, best.is_nan.valid() ? e.binary(Op::kNe, numbers, numbers) : ValueId{}};
  }
  return at;
}

// The order of the values is reversed: -x for floats, and ~x for integers, which cannot overflow.
ValueId expand_cumargmin(Emitter& e) {
  const ValueId x = e.operand(0);
  const Op reverse = is_float(e.type(x).dtype)         ? Op::kNeg
                     : e.type(x).dtype == DType::kBool ? Op::kLogicalNot
                                                       : Op::kBitwiseNot;
  return e.emit(Op::kCumargmax, e.attrs<AxisAttrs>(), {e.unary(reverse, x)});
}

}  // namespace tosaic::passes
