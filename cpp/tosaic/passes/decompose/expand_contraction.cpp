// expand_contraction: brings contractions, pools and resizes to the forms that TOSA has: linear layers, 2-d
// convolutions, 2-d pools and lookups of elements.

#include "tosaic/passes/decompose/expansions.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/resize_axis.h"

namespace tosaic::passes {
// beta * input + alpha * (a @ b). An addmm with alpha = beta = 1, a constant matrix b and a bias of one
// number for each column is a linear layer.
ValueId expand_addmm(Emitter& e) {
  const auto& attrs = e.attrs<AddmmAttrs>();
  const bool plain = as_double(attrs.alpha) == 1.0 && as_double(attrs.beta) == 1.0;
  const ValueId bias = e.operand(0), a = e.operand(1), b = e.operand(2);
  const bool row_bias = e.type(bias).rank() == 1 && e.type(bias).shape[0] == e.result_type().shape.back();
  if (e.node().op == Op::kAddmm && plain && row_bias && constant_of(e.graph(), b) != nullptr)
    return e.emit(Op::kLinear, NoAttrs{}, {a, e.permute(b, {1, 0}), bias});
  const ValueId product = e.binary(Op::kMatmul, a, b);
  if (as_double(attrs.beta) == 0.0)
    return e.mul(product, as_double(attrs.alpha));  // with beta = 0, torch ignores the input, even NaN
  const ValueId scaled_bias = as_double(attrs.beta) == 1.0 ? bias : e.mul(bias, as_double(attrs.beta));
  return e.add(as_double(attrs.alpha) == 1.0 ? product : e.mul(product, as_double(attrs.alpha)), scaled_bias);
}

ValueId expand_matmul_by_constant(Emitter& e) {
  return e.emit(Op::kLinear, NoAttrs{}, {e.operand(0), e.permute(e.operand(1), {1, 0}), ValueId()});
}

// A 1-d convolution of (N, C, L) runs as a 2-d one of (N, C, 1, L). An unbatched convolution of 1 to 3
// dimensions gets a batch axis.
ValueId expand_conv1d(Emitter& e) {
  ConvAttrs attrs = e.attrs<ConvAttrs>();
  Shape x = e.type(e.operand(0)).shape, w = e.type(e.operand(1)).shape;
  ValueId weight = e.operand(1);
  if (x.size() == w.size() - 1) x.insert(0, 1);
  if (w.size() == 3) {
    x.insert(2, 1);
    w.insert(2, 1);
    weight = e.reshape(weight, w);
    for (Dims* dims : {&attrs.stride, &attrs.dilation}) dims->insert(0, 1);
    for (Dims* dims : {&attrs.pad_before, &attrs.pad_after, &attrs.output_padding}) dims->insert(0, 0);
  }
  const ValueId y =
      e.emit(Op::kConv, attrs, {e.reshape(e.operand(0), x), weight, e.has(2) ? e.operand(2) : ValueId()});
  return e.reshape(y, e.result_type().shape);
}

// Resizes one axis at a time. Nearest looks up elements. Bilinear and bicubic look up the elements of each
// tap, multiply them by the tap's weights and add the products up. One product with a matrix of weights would
// be shorter, but an infinite element would make all outputs NaN (0 * inf).
ValueId expand_resize(Emitter& e) {
  const auto& attrs = e.attrs<ResizeAttrs>();
  ValueId x = e.operand(0);
  for (std::size_t i = 0; i < attrs.size.size(); ++i) {
    const std::size_t axis = i + 2;
    const std::int64_t in = e.type(x).shape[axis], out = attrs.size[i];
    const double scale = attrs.scales.empty() ? 0.0 : attrs.scales[i];
    const auto elements = [&](const std::vector<std::int64_t>& places) {
      const ValueId index = e.constant(DType::kI64, {out}, {places.begin(), places.end()});
      return e.emit(Op::kIndexSelect, AxisAttrs{static_cast<std::int64_t>(axis)}, {x, index});
    };
    if (attrs.mode == ResizeMode::kNearest) {
      x = elements(nearest_elements(in, out, scale, attrs.size.size() == 2));
      continue;
    }
    if (in == out && attrs.mode == ResizeMode::kBilinear) continue;
    Shape column{out};
    for (std::size_t k = axis + 1; k < e.type(x).rank(); ++k) column.push_back(1);
    ValueId sum;
    for (const ResizeTap& tap : resize_taps(attrs, in, out, scale)) {
      const ValueId weights = e.constant(e.type(x).dtype, column, tap.weights);
      const ValueId term = e.mul(elements(tap.elements), weights);
      sum = sum.valid() ? e.add(sum, term) : term;
    }
    x = sum;
  }
  return x;
}

// Runs pools and resizes of (C, L), (N, C, L) or (C, H, W) on (N, C, H, W), with axes of extent 1 added.
ValueId expand_to_rank4(Emitter& e) {
  Shape shape = e.type(e.operand(0)).shape;
  Attrs attrs = *e.node().attrs;
  const auto* const of_pool = get_if<PoolAttrs>(&attrs);
  const auto* const of_resize = get_if<ResizeAttrs>(&attrs);
  const bool one_spatial_axis = (of_pool != nullptr && of_pool->kernel.size() == 1) ||
                                (of_resize != nullptr && of_resize->size.size() == 1);
  if (one_spatial_axis) {
    shape.insert(shape.size() - 1, 1);
    if (auto* pool = get_if<PoolAttrs>(&attrs)) {
      for (Dims* dims : {&pool->kernel, &pool->stride, &pool->dilation}) dims->insert(0, 1);
      pool->padding.insert(0, 0);
    } else if (auto* resize = get_if<ResizeAttrs>(&attrs)) {
      resize->size.insert(0, 1);
      if (!resize->scales.empty()) resize->scales.insert(resize->scales.begin(), 1.0);
    }
  }
  if (shape.size() == 3) shape.insert(0, 1);
  const ValueId y = e.emit(e.node().op, std::move(attrs), {e.reshape(e.operand(0), shape)});
  return e.reshape(y, e.result_type().shape);
}

}  // namespace tosaic::passes
