// integer_resize: lowers resizes of images to RESIZE. Mode nearest moves integers; those that RESIZE does not
// take are looked up along each axis. Mode bilinear sums them with integer weights that add up to n_y * n_x.
// Dividing by that product only changes the scale, so only the result is rounded. Integers of 16 bits that
// RESIZE does not take are split into parts of 8 bits, each of which is resized. RESIZE takes images in
// channels-last order, so the rule emits permutes. If the values are stored channels last, the layout plan
// makes them no-ops.

#include <algorithm>
#include <utility>

#include "tosaic/passes/lower_to_integer/integer_arithmetic.h"
#include "tosaic/passes/lower_to_integer/integer_contraction.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/resize_axis.h"

namespace tosaic::passes {
namespace {

ScaledInteger nearest_along_axes(IntegerBuilder& build, ScaledInteger x, const ResizeAttrs& attrs) {
  for (std::size_t i = 0; i < attrs.size.size(); ++i) {
    const std::size_t axis = i + 2;
    const std::int64_t in = build.type(x.id).shape[axis], out = attrs.size[i];
    const double scale = attrs.scales.empty() ? 0.0 : attrs.scales[i];
    const ValueId elements =
        build.constant(DType::kI64, {out}, nearest_elements(in, out, scale, attrs.size.size() == 2));
    x.id = build.emit(Op::kIndexSelect, AxisAttrs{static_cast<std::int64_t>(axis)}, {x.id, elements});
  }
  return x;
}

// RESIZE of a narrow image (N, C, H, W). Returns nothing if RESIZE cannot express it.
std::optional<ScaledInteger> by_resize(const RuleContext& ctx, ScaledInteger x) {
  const auto& attrs = ctx.node.attrs<ResizeAttrs>();
  const Shape& in = ctx.node.operand_type(0).shape;
  const Shape& out = ctx.node.result_type().shape;
  TosaResizeAttrs resize;
  resize.mode = attrs.mode;
  ValueId image = ctx.build.emit(Op::kPermute, PermuteAttrs{{0, 2, 3, 1}}, {x.id});
  std::int64_t whole = 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::optional<ResizeAxis> axis = exact_resize_axis(attrs, i, in[i + 2], out[i + 2]);
    if (!axis) return std::nullopt;
    if (axis->extent != in[i + 2])
      image = ctx.build.emit(Op::kSlice, SliceAttrs{static_cast<std::int64_t>(i) + 1, 0, axis->extent, 1},
                             {image});
    resize.scale.push_back(axis->n);
    resize.scale.push_back(axis->d);
    resize.offset.push_back(axis->offset);
    resize.border.push_back(axis->border);
    whole *= axis->n;
  }
  const ValueId made = ctx.build.emit(Op::kTosaResize, resize, {image});
  x.id = ctx.build.emit(Op::kPermute, PermuteAttrs{{0, 3, 1, 2}}, {made});
  if (attrs.mode == ResizeMode::kNearest) return x;
  x.range = {x.range.low * whole, x.range.high * whole};
  x.scales = {x.scale() / static_cast<double>(whole)};
  x.zero_point *= whole;
  return x;
}

}  // namespace

RuleResult integer_resize(const RuleContext& ctx) {
  const std::int64_t most = std::int64_t{1}
                            << (ctx.build.rules().wide_integers ? 29 : 20);  // bits of narrow_parts()
  const auto& attrs = ctx.node.attrs<ResizeAttrs>();
  if (ctx.node.operand_type(0).rank() != 4 || attrs.size.size() != 2)
    return Refusal{"its rank"};  // expanded to another rank
  const ScaledInteger x = narrowed(ctx.build, ctx.with_one_scale(0));
  const bool is_nearest = attrs.mode == ResizeMode::kNearest;
  if (!is_nearest && attrs.mode != ResizeMode::kBilinear) return Refusal{"its mode"};
  if (is_nearest && !is_narrow(ctx.build, x)) return nearest_along_axes(ctx.build, x, attrs);
  if (x.magnitude() > most) return Refusal{"its operand has too many bits"};
  std::optional<ScaledInteger> sum;
  for (const ScaledInteger& part : narrow_parts(ctx.build, x)) {
    const std::optional<ScaledInteger> made = by_resize(ctx, part);
    if (!made) return Refusal{"RESIZE cannot say it"};  // expanded
    sum = sum ? total(ctx.build, *sum, *made) : *made;
  }
  sum->error = std::max(sum->error, x.error);
  if (is_nearest || sum->zero_point == 0) return *sum;
  const std::int64_t zero = std::exchange(sum->zero_point, 0);
  if (const QParams* to = ctx.node.result_qparams();
      to != nullptr && to->storage == ctx.build.type(x.id).dtype && to->scales.front() == x.scale() &&
      to->zero_points.front() == x.zero_point) {
    QParams unshifted = *to;  // a weighted mean does not change the zero point
    unshifted.zero_points = {0};
    return store(ctx.build, *sum, unshifted);
  }
  sum->id = ctx.build.binary(Op::kTosaSub, sum->id, ctx.build.number(zero, 4));
  sum->range = {sum->range.low - zero, sum->range.high - zero};
  return *sum;
}

}  // namespace tosaic::passes
