// Reductions: one TOSA operator per axis, whose result has extent 1 on that axis, then one reshape that
// removes these axes.
//
// argmax of integers that ARGMAX does not take is the lowest index at which an element equals the maximum.

#include "tosaic/layout/order.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

// The TOSA operator that reduces one axis.
constexpr OpTable<Op> kReductions = {
    {Op::kSum, Op::kTosaReduceSum},  {Op::kProd, Op::kTosaReduceProduct}, {Op::kAmax, Op::kTosaReduceMax},
    {Op::kAmin, Op::kTosaReduceMin}, {Op::kAny, Op::kTosaReduceAny},      {Op::kAll, Op::kTosaReduceAll},
};
static_assert(complete<kReductions.mismatch([](Op op) {
  return legalization_of(op).one == legalize_reduction && op != Op::kArgmax;
})>);

ValueId reduce_axis(Legalizer& l, Op reduce, ValueId x, std::size_t axis) {
  const auto at = static_cast<std::int64_t>(axis);
  const bool has_nan_mode = reduce == Op::kTosaReduceMax || reduce == Op::kTosaReduceMin;
  return l.emit(reduce,
                has_nan_mode ? Attrs(TosaAxisNanAttrs{at, NanMode::kPropagate}) : Attrs(AxisAttrs{at}), {x});
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

// ARGMAX takes floats, with profile INT i8, and with extension int16 i16.
bool has_argmax(const Legalizer& l, DType dtype) {
  if (is_float(dtype)) return true;
  return (dtype == DType::kI8 && l.has_integers()) || (dtype == DType::kI16 && l.has_wide_integers());
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
  const ValueId y = l.computes_wide() ? wide_argmax(l, x, axis)
                    : has_argmax(l, l.type(x).dtype)
                        ? l.emit(Op::kTosaArgmax,
                                 TosaAxisNanAttrs{static_cast<std::int64_t>(axis), NanMode::kPropagate}, {x})
                        : first_index_of_max(l, x, axis);
  return {l.reshape(l.cast(y, l.physical_dtype(DType::kI64)), l.result_type().shape), DimOrder()};
}

}  // namespace

Physical legalize_reduction(Legalizer& l) {
  if (l.node().op == Op::kArgmax) return legalize_argmax(l);
  const auto& attrs = l.attrs<ReduceAttrs>();
  const Op op = l.node().op, reduce = *kReductions.find(op);
  const TensorType& input = l.logical_type(0);
  const DimOrder order = l.order_of(0);
  const DType result = l.physical_dtype(l.result_type().dtype);
  ValueId x = l.operand(0, order);
  const bool logical = op == Op::kAny || op == Op::kAll;
  if (logical) {
    x = l.to_bool(x);
  } else if ((op == Op::kAmax || op == Op::kAmin) && l.type(x).dtype == DType::kBool) {
    x = l.cast(x, l.physical_dtype(DType::kI32));
  } else if ((op == Op::kSum || op == Op::kProd) && !l.computes_wide()) {
    if (op == Op::kProd && !is_float(l.result_type().dtype))
      l.refuse("a product over integers has no TOSA counterpart");
    x = l.cast(x,
               is_float(result) ? DType::kF32 : result);  // narrower floats accumulate in f32, as in torch
  }
  std::vector<std::size_t> axes;
  for (const std::int64_t axis : attrs.axes)
    if (input.rank() > 0) axes.push_back(physical_axis(order, input.rank(), axis));
  if (l.computes_wide()) {
    x = l.cast(x, DType::kI32);
    x = op == Op::kSum ? wide_sum(l, x, axes) : wide_extreme(l, reduce, x, axes);
    x = l.cast(x, l.result_dtype());
  } else {
    for (const std::size_t axis : axes) x = reduce_axis(l, reduce, x, axis);
    x = l.cast(x, result);
  }
  if (attrs.keepdim) return {x, order};
  const DimOrder rest = layout::without_axes(order, input.rank(), attrs.axes);
  return {l.reshape(x, physical_dims(l.result_type().shape, rest)), rest};
}

}  // namespace tosaic::passes
