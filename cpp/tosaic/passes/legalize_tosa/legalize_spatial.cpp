// Legalizes pools and resizes, in channels-last order.
//
// The layout plan has another order only for a pool whose windows are side by side (layout/windows.h). Each
// spatial axis is then split into (windows, taps) and reduced over the taps by REDUCE_SUM or REDUCE_MAX.
// Means of integers are rounded as in AVG_POOL2D.
//
// AVG_POOL2D divides by the number of elements that are not padding. If padding counts as well
// (count_include_pad), a PAD with 0 turns the padding into elements. The trailing padding is as large as the
// last window needs, as for convolutions. `decompose` has expanded max pools with dilation, and resizes that
// RESIZE cannot express. Padding of the kernel's extent or more is refused.

#include <algorithm>

#include "tosaic/ir/apply_scale.h"
#include "tosaic/layout/options.h"
#include "tosaic/layout/order.h"
#include "tosaic/layout/windows.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"
#include "tosaic/passes/resize_axis.h"

namespace tosaic::passes {
namespace {

DimOrder nhwc() { return DimOrder::channels_last(4); }

struct PoolInput {
  ValueId value;
  Dims pad;  // top, bottom, left, right
};

// TOSA requires that the windows of a pool fit its padded operand exactly. Returns the operand, sliced at the
// end of a spatial axis if it is too long, and the padding for the pool: `front` at the start of each axis,
// and what is missing at its end.
PoolInput fit_windows(Legalizer& l, ValueId x, const Dims& front) {
  const auto& attrs = l.attrs<PoolAttrs>();
  PoolInput fitted{x, {}};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t in = l.type(x).shape[i + 1], out = l.result_type().shape[i + 2];
    const std::int64_t after =
        (out - 1) * attrs.stride[i] + attrs.dilation[i] * (attrs.kernel[i] - 1) + 1 - in - front[i];
    if (after < 0) fitted.value = l.slice_axis(fitted.value, i + 1, 0, in + after);
    fitted.pad.push_back(front[i]);
    fitted.pad.push_back(std::max<std::int64_t>(after, 0));
  }
  return fitted;
}

ValueId pad_spatially(Legalizer& l, ValueId x, const Dims& before, const Dims& after) {
  return l.pad(x, {0, before[0], before[1], 0}, {0, after[0], after[1], 0}, 0.0);
}

Physical avg_pool(Legalizer& l) {
  const auto& attrs = l.attrs<PoolAttrs>();
  ValueId x = l.operand(0, nhwc());
  Dims front = attrs.padding;
  if (attrs.count_include_pad || attrs.divisor_override) {
    x = pad_spatially(l, x, attrs.padding, attrs.padding);
    front = {0, 0};
  }
  PoolInput input = fit_windows(l, x, front);
  double factor = 1.0;
  if (attrs.divisor_override) {  // PAD fills every window; its mean is multiplied by kernel size / divisor
    const Dims bottom{input.pad[1], input.pad[3]};
    input = {pad_spatially(l, input.value, {0, 0}, bottom), {0, 0, 0, 0}};
    factor =
        static_cast<double>(attrs.kernel[0] * attrs.kernel[1]) / static_cast<double>(*attrs.divisor_override);
  }
  const TosaAvgPoolAttrs pool{attrs.kernel, attrs.stride, input.pad, 0, 0, DType::kF32};
  ValueId y = l.emit(Op::kTosaAvgPool2d, pool, {input.value});
  if (factor != 1.0) y = l.mul(y, l.number_like(y, factor));
  return {y, nhwc()};
}

Physical max_pool(Legalizer& l) {
  const auto& attrs = l.attrs<PoolAttrs>();
  if (attrs.dilation[0] != 1 || attrs.dilation[1] != 1)
    l.refuse("max_pool with dilation " + to_string(attrs.dilation));
  const PoolInput input = fit_windows(l, l.operand(0, nhwc()), attrs.padding);
  const TosaMaxPoolAttrs pool{attrs.kernel, attrs.stride, input.pad, NanMode::kPropagate};
  return {l.emit(Op::kTosaMaxPool2d, pool, {input.value}), nhwc()};
}

ValueId reduced(Legalizer& l, bool is_max, ValueId x, std::size_t axis) {
  return reduce_axis(l, is_max ? Op::kTosaReduceMax : Op::kTosaReduceSum, x, axis);
}

// Reduces the windows of an axis: (.., windows * size + rest, ..) -> (.., windows, ..).
ValueId reduced_axis(Legalizer& l, bool is_max, ValueId x, std::size_t axis,
                     const layout::WindowedAxis& windows) {
  x = l.slice_axis(x, axis, 0, windows.windows * windows.size);
  if (windows.size == 1) return x;
  if (windows.windows == 1) return reduced(l, is_max, x, axis);
  Shape shape = l.type(x).shape;
  std::int64_t before = 1, behind = 1;
  for (std::size_t i = 0; i < axis; ++i) before *= shape[i];
  for (std::size_t i = axis + 1; i < shape.size(); ++i) behind *= shape[i];
  x = reduced(l, is_max, l.reshape(x, {before, windows.windows, windows.size, behind}), 2);
  shape[axis] = windows.windows;
  return l.reshape(x, shape);
}

// The sums, from which the zero point is subtracted once for each element that was summed.
ValueId centred(Legalizer& l, ValueId sum, const layout::Windows& windows, std::int64_t zero_point) {
  if (zero_point == 0) return sum;
  const std::int64_t count = windows.axes[0].size * windows.axes[1].size;
  return l.binary(Op::kTosaSub, sum, l.number_like(sum, static_cast<double>(count * zero_point)));
}

// The sum divided by the window's count. It is a RESCALE by the reciprocal of the count, as AVG_POOL2D
// computes it.
ValueId integer_mean(Legalizer& l, ValueId sum, const layout::Windows& windows) {
  const auto& attrs = l.attrs<TosaAvgPoolAttrs>();
  const Multiplier by = reciprocal_of(windows.count);
  TosaRescaleAttrs rescale;
  rescale.output_zp = attrs.output_zp;
  rescale.dtype = l.result_dtype();
  rescale.multiplier = {by.multiplier};
  rescale.shift = {by.shift};
  return l.emit(Op::kTosaRescale, rescale, {centred(l, sum, windows, attrs.input_zp)});
}

}  // namespace

std::optional<Physical> reduced_windows(Legalizer& l) {
  const std::optional<layout::Windows> windows = layout::side_by_side(l.source(), l.node());
  const DimOrder order = l.order_of(0);
  const Shape& shape = l.logical_type(0).shape;
  const layout::LayoutRules rules(l.source(), target::tosa_layout_needs());
  if (!windows || layout::same_in_memory(shape, order, rules.preferred(l.node()).operands[0]))
    return std::nullopt;
  ValueId x = l.operand(0, order);
  const Op op = l.node().op;
  const bool is_max = op == Op::kMaxPool;
  if (!is_max) x = l.cast(x, is_float(l.type(x).dtype) ? DType::kF32 : DType::kI32);
  for (const layout::WindowedAxis& axis : windows->axes)
    x = reduced_axis(l, is_max, x, physical_axis(order, shape.size(), axis.axis), axis);
  if (op == Op::kIntegerConv) {
    x = centred(l, x, *windows, l.attrs<IntegerConvAttrs>().input_zp);
  } else if (op == Op::kTosaAvgPool2d) {
    x = integer_mean(l, x, *windows);
  } else if (op == Op::kAvgPool) {
    if (windows->count != 1) x = l.mul(x, l.number_like(x, 1.0 / static_cast<double>(windows->count)));
    x = l.cast(x, l.result_dtype());
  }
  return Physical{x, order};
}

Physical legalize_pool(Legalizer& l) {
  if (std::optional<Physical> made = reduced_windows(l)) return *std::move(made);
  if (l.attrs<PoolAttrs>().kernel.size() != 2)
    l.refuse("a pool over " + std::to_string(l.attrs<PoolAttrs>().kernel.size()) +
             " axes has no TOSA counterpart");
  return l.node().op == Op::kAvgPool ? avg_pool(l) : max_pool(l);
}

Physical legalize_resize(Legalizer& l) {
  const auto& attrs = l.attrs<ResizeAttrs>();
  const Shape& in = l.logical_type(0).shape;
  const Shape& out = l.result_type().shape;
  if (in.size() != 4) l.refuse("a resize of rank " + std::to_string(in.size()) + " has no TOSA counterpart");
  TosaResizeAttrs resize;
  resize.mode = attrs.mode;
  ValueId x = l.operand(0, nhwc());
  for (std::size_t i = 0; i < 2; ++i) {
    const std::optional<ResizeAxis> axis = exact_resize_axis(attrs, i, in[i + 2], out[i + 2]);
    if (!axis) l.refuse("this resize is beyond RESIZE, and was not expanded");
    x = l.slice_axis(x, i + 1, 0, axis->extent);
    resize.scale.push_back(axis->n);
    resize.scale.push_back(axis->d);
    resize.offset.push_back(axis->offset);
    resize.border.push_back(axis->border);
  }
  return {l.emit(Op::kTosaResize, resize, {x}), nhwc()};
}

}  // namespace tosaic::passes
