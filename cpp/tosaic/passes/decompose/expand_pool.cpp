// expand_pool: expands pools and transposed convolutions for which TOSA has no operator.
//
//   pool over (D, H, W)   ->  pool over (H, W) of D times as many channels, then over (D, 1)
//   dilated max pool      ->  an axis at a time: the maximum of strided slices, one for each tap
//   adaptive pool         ->  a pool if all windows are equal. If not, an axis at a time: the taps of all
//                             windows are looked up, then reduced
//   transposed conv, 3-d  ->  a convolution by the flipped kernel, of the input with zeros inserted

#include <algorithm>
#include <limits>

#include "tosaic/passes/decompose/expansions.h"

namespace tosaic::passes {
namespace {

// The shape with a batch axis in front if it lacks one. `spatial` is the number of spatial axes.
Shape batched(const Shape& shape, std::size_t spatial) {
  Shape out = shape;
  if (out.size() == spatial + 1) out.insert(0, 1);
  return out;
}

double lowest(DType dtype) {
  switch (dtype) {  // NOLINT: what is pooled
    case DType::kI8:
      return -128;
    case DType::kI16:
      return -32768;
    case DType::kI32:
      return std::numeric_limits<std::int32_t>::min();
    case DType::kI64:
      return static_cast<double>(std::numeric_limits<std::int64_t>::min());
    case DType::kU8:
    case DType::kU16:
    case DType::kBool:
      return 0;
    default:
      return -std::numeric_limits<double>::infinity();
  }
}

ValueId pad_axis(Emitter& e, ValueId x, std::size_t axis, std::int64_t before, std::int64_t after,
                 const Scalar& value) {
  if (before == 0 && after == 0) return x;
  PadAttrs pad{Dims::filled(e.type(x).rank(), 0), Dims::filled(e.type(x).rank(), 0), PadMode::kConstant,
               value};
  pad.before[axis] = before;
  pad.after[axis] = after;
  return e.emit(Op::kPad, pad, {x});
}

Scalar lowest_scalar(DType dtype) {
  if (is_float(dtype)) return lowest(dtype);
  if (dtype == DType::kI64) return std::numeric_limits<std::int64_t>::min();
  return static_cast<std::int64_t>(lowest(dtype));
}

// Looks up `places` along an axis and splits the axis into (.., windows, taps, ..).
ValueId taps_of(Emitter& e, ValueId x, std::size_t axis, const std::vector<double>& places,
                std::int64_t windows) {
  const auto count = static_cast<std::int64_t>(places.size());
  const ValueId index = e.constant(DType::kI64, {count}, places);
  const ValueId picked = e.emit(Op::kIndexSelect, AxisAttrs{static_cast<std::int64_t>(axis)}, {x, index});
  Shape split = e.type(picked).shape;
  split[axis] = windows;
  split.insert(axis + 1, count / windows);
  return e.reshape(picked, split);
}

struct Windows {
  std::vector<std::int64_t> begin, size;
  std::int64_t widest = 1;
};

// torch's adaptive windows [floor(o * in / out), ceil((o + 1) * in / out)).
Windows adaptive_windows(std::int64_t in, std::int64_t out) {
  Windows windows;
  for (std::int64_t o = 0; o < out; ++o) {
    windows.begin.push_back(o * in / out);
    windows.size.push_back(((o + 1) * in + out - 1) / out - windows.begin.back());
    windows.widest = std::max(windows.widest, windows.size.back());
  }
  return windows;
}

// Each window gets as many taps as the widest one. For a maximum, the added taps repeat the first element of
// the window; for a mean, they read a row of zeros that is appended to the axis.
ValueId adaptive_axis(Emitter& e, ValueId x, std::size_t axis, std::int64_t out, bool mean) {
  const std::int64_t in = e.type(x).shape[axis];
  const Windows windows = adaptive_windows(in, out);
  const bool ragged = std::any_of(windows.size.begin(), windows.size.end(),
                                  [&](std::int64_t size) { return size != windows.widest; });
  std::vector<double> places, shares;
  for (std::size_t o = 0; o < windows.begin.size(); ++o) {
    for (std::int64_t tap = 0; tap < windows.widest; ++tap) {
      const bool inside = tap < windows.size[o];
      places.push_back(static_cast<double>(inside ? windows.begin[o] + tap : mean ? in : windows.begin[o]));
    }
    shares.push_back(1.0 / static_cast<double>(windows.size[o]));
  }
  if (mean && ragged) x = pad_axis(e, x, axis, 0, 1, Scalar{0.0});
  const ValueId taps = taps_of(e, x, axis, places, out);
  const Dims reduced{static_cast<std::int64_t>(axis) + 1};
  const ValueId y = e.reduce(mean ? Op::kSum : Op::kAmax, taps, reduced, false);
  if (!mean) return y;
  Shape column{out};
  for (std::size_t i = axis + 1; i < e.type(x).rank(); ++i) column.push_back(1);
  return e.mul(y, e.constant(e.type(x).dtype, column, shares));
}

PoolAttrs part_of(const PoolAttrs& attrs, std::size_t first, std::size_t count) {
  PoolAttrs out = attrs;
  const auto cut = [&](Dims& dims) {
    if (!dims.empty()) dims = Dims(dims.span().subspan(first, count));
  };
  cut(out.kernel);
  cut(out.stride);
  cut(out.padding);
  cut(out.dilation);
  return out;
}

void append_unit_axis(PoolAttrs& attrs) {
  attrs.kernel.push_back(1);
  attrs.stride.push_back(1);
  attrs.padding.push_back(0);
  attrs.dilation.push_back(1);
}

// Inserts stride - 1 zeros between neighbours of an axis.
ValueId spread_apart(Emitter& e, ValueId x, std::size_t axis, std::int64_t stride) {
  if (stride == 1) return x;
  const Shape shape = e.type(x).shape;
  std::int64_t before = 1, behind = 1;
  for (std::size_t i = 0; i < axis; ++i) before *= shape[i];
  for (std::size_t i = axis + 1; i < shape.size(); ++i) behind *= shape[i];
  Shape apart = shape;
  apart[axis] = shape[axis] * stride;
  const ValueId padded =
      pad_axis(e, e.reshape(x, {before, shape[axis], 1, behind}), 2, 0, stride - 1, Scalar{0.0});
  return e.slice(e.reshape(padded, apart), axis, 0, (shape[axis] - 1) * stride + 1);
}

}  // namespace

// A 3-d pool is a pool over height and width, followed by a pool over the depth. For averages this is exact:
// the number of elements in a window is the product of the numbers in both pools. Divisors multiply, too, so
// with a divisor_override the first pool divides by 1.
ValueId expand_pool3d(Emitter& e) {
  const auto& attrs = e.attrs<PoolAttrs>();
  const Shape in = batched(e.type(e.operand(0)).shape, 3), out = batched(e.result_type().shape, 3);
  PoolAttrs image = part_of(attrs, 1, 2), depth = part_of(attrs, 0, 1);
  append_unit_axis(depth);
  if (attrs.divisor_override) image.divisor_override = 1;
  const ValueId flat = e.reshape(e.operand(0), {in[0], in[1] * in[2], in[3], in[4]});
  const ValueId planes = e.emit(e.node().op, image, {flat});
  const ValueId columns = e.reshape(planes, {in[0], in[1], in[2], out[3] * out[4]});
  return e.reshape(e.emit(e.node().op, depth, {columns}), e.result_type().shape);
}

ValueId expand_dilated_pool(Emitter& e) {
  const auto& attrs = e.attrs<PoolAttrs>();
  ValueId x = e.operand(0);
  const std::size_t first = e.type(x).rank() - attrs.kernel.size();
  const Scalar edge = lowest_scalar(e.type(x).dtype);
  for (std::size_t i = 0; i < attrs.kernel.size(); ++i) {
    const std::size_t axis = first + i;
    const std::int64_t out = e.result_type().shape[axis], in = e.type(x).shape[axis];
    const std::int64_t reach = (out - 1) * attrs.stride[i] + attrs.dilation[i] * (attrs.kernel[i] - 1) + 1;
    x = pad_axis(e, x, axis, attrs.padding[i], std::max<std::int64_t>(0, reach - in - attrs.padding[i]),
                 edge);
    ValueId top;
    for (std::int64_t tap = 0; tap < attrs.kernel[i]; ++tap) {
      const std::int64_t start = tap * attrs.dilation[i];
      const SliceAttrs slice{static_cast<std::int64_t>(axis), start, start + (out - 1) * attrs.stride[i] + 1,
                             attrs.stride[i]};
      const ValueId part = e.emit(Op::kSlice, slice, {x});
      top = top.valid() ? e.binary(Op::kMaximum, top, part) : part;
    }
    x = top;
  }
  return x;
}

ValueId expand_adaptive_pool(Emitter& e) {
  const Shape in = e.type(e.operand(0)).shape, out = e.result_type().shape;
  const bool mean = e.node().op == Op::kAdaptiveAvgPool;
  const std::size_t rank = in.size(), spatial = e.attrs<ShapeAttrs>().shape.size();
  bool even = true;
  for (std::size_t i = rank - spatial; i < rank; ++i) even = even && out[i] != 0 && in[i] % out[i] == 0;
  if (even) {
    PoolAttrs pool;
    for (std::size_t i = rank - spatial; i < rank; ++i) {
      pool.kernel.push_back(in[i] / out[i]);
      pool.stride.push_back(in[i] / out[i]);
      pool.padding.push_back(0);
      pool.dilation.push_back(1);
    }
    return e.emit(mean ? Op::kAvgPool : Op::kMaxPool, pool, {e.operand(0)});
  }
  ValueId x = e.operand(0);
  for (std::size_t i = rank - spatial; i < rank; ++i)
    if (in[i] != out[i]) x = adaptive_axis(e, x, i, out[i], mean);
  return x;
}

// Output o of a transposed convolution reads the input, with zeros inserted, at o - dilation * k + padding.
ValueId expand_transposed_conv3d(Emitter& e) {
  const auto& attrs = e.attrs<ConvAttrs>();
  ValueId x = e.operand(0);
  const Shape shape = e.type(e.operand(1)).shape;  // (I, O / groups, k...)
  const std::int64_t inputs = shape[0] / attrs.groups;
  Shape split = shape, merged = shape;
  split[0] = attrs.groups;
  split.insert(1, inputs);
  merged[0] = attrs.groups * shape[1];
  merged[1] = inputs;
  ValueId weight = e.permute(e.reshape(e.operand(1), split), {0, 2, 1, 3, 4, 5});
  weight = e.emit(Op::kFlip, AxesAttrs{{2, 3, 4}}, {e.reshape(weight, merged)});
  ConvAttrs conv{.stride = {1, 1, 1},
                 .pad_before = {},
                 .pad_after = {},
                 .dilation = attrs.dilation,
                 .output_padding = {0, 0, 0},
                 .groups = attrs.groups,
                 .transposed = false};
  for (std::size_t i = 0; i < 3; ++i) {
    x = spread_apart(e, x, i + 2, attrs.stride[i]);
    const std::int64_t reach = attrs.dilation[i] * (shape[i + 2] - 1);
    const std::int64_t before = reach - attrs.pad_before[i];
    const std::int64_t after = reach - attrs.pad_after[i] + attrs.output_padding[i];
    x = pad_axis(e, x, i + 2, std::min<std::int64_t>(before, 0), std::min<std::int64_t>(after, 0),
                 Scalar{0.0});
    conv.pad_before.push_back(std::max<std::int64_t>(before, 0));
    conv.pad_after.push_back(std::max<std::int64_t>(after, 0));
  }
  return e.emit(Op::kConv, conv, {x, weight, e.has(2) ? e.operand(2) : ValueId()});
}

}  // namespace tosaic::passes
