// Contractions and pools brought to the forms that TOSA has: linear layers, 2-d convolutions and 2-d pools.

#include <algorithm>

#include "tosaic/passes/expansions.h"
#include "tosaic/passes/match.h"
#include "tosaic/passes/resize_axis.h"

namespace tosaic::passes {
namespace {

// x (.., W) -> averages over torch's adaptive windows along the last axis, as a linear layer with a constant
// matrix.
ValueId average_windows(Emitter& e, ValueId x, std::int64_t out) {
  const std::int64_t in = e.type(x).shape.back();
  std::vector<double> weight(static_cast<std::size_t>(in * out), 0.0);
  for (std::int64_t o = 0; o < out; ++o) {
    const std::int64_t start = o * in / out, end = ((o + 1) * in + out - 1) / out;
    for (std::int64_t i = start; i < end; ++i)
      weight[static_cast<std::size_t>(o * in + i)] = 1.0 / static_cast<double>(end - start);
  }
  return e.emit(Op::kLinear, NoAttrs{}, {x, e.constant(e.type(x).dtype, {out, in}, weight), ValueId()});
}

Dims swap_axes(std::size_t rank, std::size_t a, std::size_t b) {
  Dims perm = Dims::iota(rank);
  std::swap(perm[a], perm[b]);
  return perm;
}

}  // namespace

// beta * input + alpha * (a @ b); a constant matrix b makes it a linear layer.
ValueId expand_addmm(Emitter& e) {
  const auto& attrs = e.attrs<AddmmAttrs>();
  const bool plain = as_double(attrs.alpha) == 1.0 && as_double(attrs.beta) == 1.0;
  const ValueId bias = e.operand(0), a = e.operand(1), b = e.operand(2);
  const bool row_bias = e.type(bias).rank() == 1 && e.type(bias).shape[0] == e.result_type().shape.back();
  if (e.node().op == Op::kAddmm && plain && row_bias && constant_of(e.graph(), b) != nullptr)
    return e.emit(Op::kLinear, NoAttrs{}, {a, e.permute(b, {1, 0}), bias});
  const ValueId product = e.binary(Op::kMatmul, a, b);
  if (as_double(attrs.beta) == 0.0)
    return e.mul(product, as_double(attrs.alpha));  // torch ignores input, NaN included
  const ValueId scaled_bias = as_double(attrs.beta) == 1.0 ? bias : e.mul(bias, as_double(attrs.beta));
  return e.add(as_double(attrs.alpha) == 1.0 ? product : e.mul(product, as_double(attrs.alpha)), scaled_bias);
}

ValueId expand_matmul_by_constant(Emitter& e) {
  return e.emit(Op::kLinear, NoAttrs{}, {e.operand(0), e.permute(e.operand(1), {1, 0}), ValueId()});
}

// (N, C, L) or unbatched -> (N, C, 1, L) and back; unbatched 2-d and 3-d convolutions get a batch axis.
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

ValueId expand_adaptive_avg_pool(Emitter& e) {
  const Shape in = e.type(e.operand(0)).shape, out = e.result_type().shape;
  const std::size_t rank = in.size(), spatial = e.attrs<ShapeAttrs>().shape.size();
  bool even = true;
  for (std::size_t i = rank - spatial; i < rank; ++i)
    even = even && in[i] % std::max<std::int64_t>(1, out[i]) == 0;
  if (even && spatial <= 2) {
    PoolAttrs pool;
    for (std::size_t i = rank - spatial; i < rank; ++i) {
      pool.kernel.push_back(in[i] / out[i]);
      pool.stride.push_back(in[i] / out[i]);
      pool.padding.push_back(0);
      pool.dilation.push_back(1);
    }
    return e.emit(Op::kAvgPool, pool, {e.operand(0)});
  }
  ValueId x = e.operand(0);
  for (std::size_t i = rank - spatial; i < rank; ++i) {
    const Dims perm = swap_axes(rank, i, rank - 1);
    x = e.permute(average_windows(e, e.permute(x, perm), out[i]), perm);
  }
  return x;
}

// An axis at a time: nearest picks elements; bilinear is a linear layer with a constant matrix.
ValueId expand_resize(Emitter& e) {
  const auto& attrs = e.attrs<ResizeAttrs>();
  ValueId x = e.operand(0);
  for (std::size_t axis = 2; axis < 4; ++axis) {
    const std::int64_t in = e.type(x).shape[axis], out = attrs.size[axis - 2];
    const double scale = attrs.scales.empty() ? 0.0 : attrs.scales[axis - 2];
    if (attrs.mode == ResizeMode::kNearest) {
      const std::vector<std::int64_t> elements = nearest_elements(in, out, scale);
      const ValueId index = e.constant(DType::kI64, {out}, {elements.begin(), elements.end()});
      x = e.emit(Op::kIndexSelect, AxisAttrs{static_cast<std::int64_t>(axis)}, {x, index});
    } else {
      const Dims perm = swap_axes(4, axis, 3);
      const std::vector<double> weights = bilinear_weights(in, out, attrs.align_corners, scale);
      const ValueId matrix = e.constant(e.type(x).dtype, {out, in}, weights);
      x = e.permute(e.emit(Op::kLinear, NoAttrs{}, {e.permute(x, perm), matrix, ValueId()}), perm);
    }
  }
  return x;
}

// Pools and resize of (C, L), (N, C, L) or (C, H, W) run on (N, C, H, W).
ValueId expand_to_rank4(Emitter& e) {
  Shape shape = e.type(e.operand(0)).shape;
  Attrs attrs = *e.node().attrs;
  const auto* const of_pool = std::get_if<PoolAttrs>(&attrs);
  const auto* const of_resize = std::get_if<ResizeAttrs>(&attrs);
  const bool one_spatial_axis = (of_pool != nullptr && of_pool->kernel.size() == 1) ||
                                (of_resize != nullptr && of_resize->size.size() == 1);
  if (one_spatial_axis) {
    shape.insert(shape.size() - 1, 1);
    if (auto* pool = std::get_if<PoolAttrs>(&attrs)) {
      for (Dims* dims : {&pool->kernel, &pool->stride, &pool->dilation}) dims->insert(0, 1);
      pool->padding.insert(0, 0);
    } else if (auto* resize = std::get_if<ResizeAttrs>(&attrs)) {
      resize->size.insert(0, 1);
      if (!resize->scales.empty()) resize->scales.insert(resize->scales.begin(), 1.0);
    }
  }
  if (shape.size() == 3) shape.insert(0, 1);
  const ValueId y = e.emit(e.node().op, std::move(attrs), {e.reshape(e.operand(0), shape)});
  return e.reshape(y, e.result_type().shape);
}

}  // namespace tosaic::passes
