// integer_resize: resizes of images of 8 or 16 bits, by RESIZE. Nearest moves integers. Bilinear sums them
// with integer weights that add up to n_y * n_x; dividing by that product only changes the scale, so the only
// rounding is that of the result. RESIZE needs channels last, hence the permutes; if the values are stored
// channels last, the layout plan makes them no-ops.

#include "tosaic/passes/lower_to_integer/integer_lowering.h"
#include "tosaic/passes/resize_axis.h"

namespace tosaic::passes {

Lowered integer_resize(IntegerLowering& l) {
  const auto& attrs = l.attrs<ResizeAttrs>();
  const Shape& in = l.operand_type(0).shape;
  const Shape& out = l.result_type().shape;
  if (in.size() != 4 || attrs.size.size() != 2) throw NoIntegerForm("its rank");  // expanded to another rank
  Real x = l.real_with_one_scale(0);
  const DType dtype = l.type(x.id).dtype;
  if (dtype != DType::kI8 && dtype != DType::kI16) throw NoIntegerForm("its operand has more than 16 bits");
  TosaResizeAttrs resize;
  resize.mode = attrs.mode;
  ValueId image = l.emit(Op::kPermute, PermuteAttrs{{0, 2, 3, 1}}, {x.id});
  std::int64_t whole = 1;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::optional<ResizeAxis> axis = exact_resize_axis(attrs, i, in[i + 2], out[i + 2]);
    if (!axis) throw NoIntegerForm("RESIZE cannot say it");  // expanded
    if (axis->extent != in[i + 2])
      image = l.emit(Op::kSlice, SliceAttrs{static_cast<std::int64_t>(i) + 1, 0, axis->extent, 1}, {image});
    resize.scale.push_back(axis->n);
    resize.scale.push_back(axis->d);
    resize.offset.push_back(axis->offset);
    resize.border.push_back(axis->border);
    whole *= axis->n;
  }
  const ValueId made = l.emit(Op::kTosaResize, resize, {image});
  x.id = l.emit(Op::kPermute, PermuteAttrs{{0, 3, 1, 2}}, {made});
  if (attrs.mode == ResizeMode::kNearest) return x;
  if (attrs.mode != ResizeMode::kBilinear) throw NoIntegerForm("its mode");
  x.range = {x.range.low * whole, x.range.high * whole};
  x.scales = {x.scale() / static_cast<double>(whole)};
  const std::int64_t zero = x.zero_point * whole;
  x.zero_point = 0;
  if (zero == 0) return x;
  if (const QParams* to = l.target(); to != nullptr && to->storage == dtype &&
                                      to->scales.front() == l.real(0).scale() &&
                                      to->zero_points.front() == l.real(0).zero_point) {
    QParams unshifted = *to;  // a weighted mean does not change the zero point
    unshifted.zero_points = {0};
    return l.store(x, unshifted);
  }
  x.id = l.binary(Op::kTosaSub, x.id, l.number(zero, 4));
  x.range = {x.range.low - zero, x.range.high - zero};
  return x;
}

}  // namespace tosaic::passes
