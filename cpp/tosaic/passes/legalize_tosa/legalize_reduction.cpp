// Legalizes reductions. One TOSA operator per axis has a result of extent 1 on that axis, then one reshape
// removes these axes.
//
// For integers that ARGMAX does not take, argmax is the lowest index at which an element equals the maximum.

#include <algorithm>

#include "tosaic/layout/order.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

// ---- the operand in the dtype that the TOSA operator takes ----

ValueId as_bool(Legalizer& l, ValueId x) { return l.to_bool(x); }

ValueId without_bool(Legalizer& l, ValueId x) {
  return l.type(x).dtype == DType::kBool ? l.cast(x, l.physical_dtype(DType::kI32)) : x;
}

// Narrower floats accumulate in f32, as in torch.
ValueId as_accumulator(Legalizer& l, ValueId x) {
  const DType result = l.physical_dtype(l.result_type().dtype);
  return l.cast(x, is_float(result) ? DType::kF32 : result);
}

ValueId as_factor(Legalizer& l, ValueId x) {
  if (!is_float(l.result_type().dtype)) l.refuse("a product over integers has no TOSA counterpart");
  return as_accumulator(l, x);
}

// ---- the table ----

template <Op reduce>
ValueId wide_extreme_of(Legalizer& l, ValueId x, const std::vector<std::size_t>& axes) {
  return wide_extreme(l, reduce, x, axes);
}

struct Reduction {
  Op op;                                        // reduces one axis
  ValueId (*operand)(Legalizer& l, ValueId x);  // casts x to a dtype that `op` takes
  // Reduces an i32 value on a target without profile INT. Null for operators that narrow_integers never
  // plans in i32.
  ValueId (*wide)(Legalizer& l, ValueId x, const std::vector<std::size_t>& axes) = nullptr;
};

constexpr OpTable<Reduction> kReductions = {
    {Op::kSum, {Op::kTosaReduceSum, as_accumulator, wide_sum}},
    {Op::kProd, {Op::kTosaReduceProduct, as_factor}},
    {Op::kAmax, {Op::kTosaReduceMax, without_bool, wide_extreme_of<Op::kTosaReduceMax>}},
    {Op::kAmin, {Op::kTosaReduceMin, without_bool, wide_extreme_of<Op::kTosaReduceMin>}},
    {Op::kAny, {Op::kTosaReduceAny, as_bool}},
    {Op::kAll, {Op::kTosaReduceAll, as_bool}},
};
static_assert(complete<kReductions.mismatch(is_legalized_by<legalize_reduction>)>);

ValueId emit_reduction(Legalizer& l, Op reduce, ValueId x, std::size_t axis) {
  Attrs attrs = default_attrs(reduce);
  auto* const with_nan_mode = get_if<TosaAxisNanAttrs>(&attrs);
  (with_nan_mode != nullptr ? with_nan_mode->axis : get<AxisAttrs>(attrs).axis) =
      static_cast<std::int64_t>(axis);
  return l.emit(reduce, std::move(attrs), {x});
}

// The number of rows of x, along the axes in front of the last one, that one transpose exchanges with the
// last axis. Ethos-U55 exchanges up to 65,536 elements.
std::int64_t transposed_rows(const Shape& shape) {
  constexpr std::int64_t kMostExchanged = 65536;
  std::int64_t rows = 1;
  for (std::size_t i = shape.size() - 1; i > 0; --i) {
    if (rows * shape[i - 1] * shape.back() > kMostExchanged) break;
    rows *= shape[i - 1];
  }
  return rows;
}

ValueId index_ramp(Legalizer& l, std::size_t rank, std::size_t axis, std::int64_t extent) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < extent; ++i) values.push_back(static_cast<double>(i));
  Shape shape = Dims::filled(rank, 1);
  shape[axis] = extent;
  return l.constant(DType::kI32, shape, values);
}

ValueId first_index_of_max(Legalizer& l, ValueId x, std::size_t axis) {
  const auto at = static_cast<std::int64_t>(axis);
  const std::int64_t extent = l.type(x).shape[axis];
  const ValueId wide = l.cast(x, DType::kI32);
  const ValueId top = l.emit(Op::kTosaReduceMax, TosaAxisNanAttrs{at, NanMode::kPropagate}, {wide});
  const ValueId ramp = index_ramp(l, l.type(x).rank(), axis, extent);
  const ValueId none = l.number_like(ramp, static_cast<double>(extent));
  const ValueId candidates = l.select(l.binary(Op::kTosaEqual, wide, top), ramp, none);
  return l.emit(Op::kTosaReduceMin, TosaAxisNanAttrs{at, NanMode::kPropagate}, {candidates});
}

// ARGMAX takes floats. With profile INT it also takes i8, and with extension int16 also i16.
bool has_argmax(const Legalizer& l, DType dtype) {
  if (is_float(dtype)) return true;
  return (dtype == DType::kI8 && l.has_integers()) || (dtype == DType::kI16 && l.has_wide_integers());
}

// True for the last axis of several images of bytes. Ethos-U55 has ARGMAX for one image, and for rows.
bool is_over_batches(const Legalizer& l, ValueId x, std::size_t axis) {
  const Shape& shape = l.type(x).shape;
  return l.type(x).dtype == DType::kI8 && axis + 1 == shape.size() &&
         (shape.size() > 4 || (shape.size() == 4 && shape[0] > 1));
}

}  // namespace

// Ethos-U reduces one channel at a time if the channels are the axis of a maximum, and uses a fraction of its
// lanes. A maximum of narrow integers over the last axis therefore becomes one over the axis before it:
//
//   (b, rows, n)  -- transpose -->  (b, n, rows)  -- maximum -->  (b, 1, rows)  -- reshape -->  (b, rows, 1)
//
// Vela 5.2 counts 486,000 cycles for (3, 197, 197) of i8, and 63,000 + 38,000 for transpose and maximum. For
// few rows, and for long ones, the transpose would cost more than it saves.
ValueId reduce_axis(Legalizer& l, Op op, ValueId x, std::size_t axis) {
  constexpr std::int64_t kFewRows = 16, kLongestRow = 2048, kFewElements = 4096;
  Shape shape = l.type(x).shape;
  const DType dtype = l.type(x).dtype;
  const bool is_extreme = op == Op::kTosaReduceMax || op == Op::kTosaReduceMin;
  const std::int64_t n = shape.back(), rows = transposed_rows(shape);
  if (!is_extreme || axis + 1 != shape.size() || (dtype != DType::kI8 && dtype != DType::kI16) ||
      rows < kFewRows || n > kLongestRow || rows * n < kFewElements)
    return emit_reduction(l, op, x, axis);
  const std::int64_t batch = num_elements(shape) / (rows * n);
  const ValueId columns = l.transpose(l.reshape(x, {batch, rows, n}), {0, 2, 1});
  shape[axis] = 1;
  return l.reshape(emit_reduction(l, op, columns, 1), shape);
}

Physical legalize_argmax(Legalizer& l) {
  const auto& attrs = l.attrs<ArgAttrs>();
  ValueId x = l.operand(0);
  std::size_t axis = 0;
  if (attrs.axis) {
    if (l.type(x).rank() == 0) x = l.reshape(x, {1});
    axis = static_cast<std::size_t>(*attrs.axis);
  } else {
    x = l.reshape(x, {num_elements(l.type(x).shape)});
  }
  if (is_over_batches(l, x, axis)) {
    const std::int64_t count = l.type(x).shape.back();
    x = l.reshape(x, {num_elements(l.type(x).shape) / std::max<std::int64_t>(count, 1), count});
    axis = 1;
  }
  const ValueId y = l.computes_wide() ? wide_argmax(l, x, axis)
                    : has_argmax(l, l.type(x).dtype)
                        ? l.emit(Op::kTosaArgmax,
                                 TosaAxisNanAttrs{static_cast<std::int64_t>(axis), NanMode::kPropagate}, {x})
                        : first_index_of_max(l, x, axis);
  return {l.reshape(l.cast(y, l.physical_dtype(DType::kI64)), l.result_type().shape), DimOrder()};
}

Physical legalize_reduction(Legalizer& l) {
  const Reduction& rule = *kReductions.find(l.node().op);
  const auto& attrs = l.attrs<ReduceAttrs>();
  const TensorType& input = l.logical_type(0);
  const DimOrder order = l.order_of(0);
  ValueId x = l.operand(0, order);
  std::vector<std::size_t> axes;
  for (const std::int64_t axis : attrs.axes)
    if (input.rank() > 0) axes.push_back(physical_axis(order, input.rank(), axis));
  if (l.computes_wide()) {
    if (rule.wide == nullptr) l.refuse("the reduction has no rule for integers beyond 24 bits");
    x = l.cast(rule.wide(l, l.cast(x, DType::kI32), axes), l.result_dtype());
  } else {
    x = rule.operand(l, x);
    for (const std::size_t axis : axes) x = reduce_axis(l, rule.op, x, axis);
    x = l.cast(x, l.physical_dtype(l.result_type().dtype));
  }
  if (attrs.keepdim) return {x, order};
  const DimOrder rest = layout::without_axes(order, input.rank(), attrs.axes);
  return {l.reshape(x, physical_dims(l.result_type().shape, rest)), rest};
}

}  // namespace tosaic::passes
