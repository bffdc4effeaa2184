// Legalizes contractions. Convolutions compute in channels-last order, linear layers as 1x1 convolutions, and
// matmul in rank 3.
//
// TOSA requires that the stride divides (in + pads - dilation * (k - 1) - 1). The trailing padding therefore
// becomes exactly what the last window needs. If that is negative, the end of the input is sliced off
// instead. If this would slice off the whole input, because all windows read leading padding only, the
// leading padding becomes elements (PAD), since TOSA has no empty axis. A depthwise weight (C*M, 1, H, W)
// becomes (H, W, C, M). Other grouped convolutions are split into one convolution per group.

#include <algorithm>

#include "tosaic/layout/options.h"
#include "tosaic/passes/byte_integers.h"
#include "tosaic/passes/legalize_tosa/legalizer.h"

namespace tosaic::passes {
namespace {

DimOrder nhwc() { return DimOrder::channels_last(4); }

// The accumulator of floats is f32: torch's is, and TOSA has no other for bf16.
DType accumulator(const Legalizer& l) {
  const DType dtype = l.result_type().dtype;
  return is_float(dtype) ? DType::kF32 : dtype;
}

// The padding of one axis. `crop` elements are sliced off the end of the input.
struct Window {
  std::int64_t pad_before, pad_after, crop;
};

// The exact padding of one axis for `out` windows.
Window exact_window(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                    std::int64_t dilation, std::int64_t pad_before) {
  const std::int64_t after = (out - 1) * stride + dilation * (kernel - 1) + 1 - in - pad_before;
  return {pad_before, std::max<std::int64_t>(after, 0), std::max<std::int64_t>(-after, 0)};
}

// A convolution of floats, or of integers from which the zero points are subtracted.
struct Site {
  ConvAttrs conv;
  std::int64_t input_zp = 0, weight_zp = 0;
};

Site site_of(const Legalizer& l) {
  if (l.node().op == Op::kConv) return {l.attrs<ConvAttrs>()};
  const auto& attrs = l.attrs<IntegerConvAttrs>();
  return {attrs.conv, attrs.input_zp, attrs.weight_zp};
}

ValueId bias_or_zero(Legalizer& l, ValueId x) {
  const DType dtype = l.type(x).dtype;
  return l.has(2) ? l.operand(2) : l.zero_bias(is_float(dtype) ? dtype : l.result_type().dtype);
}

// Converts the weight of a depthwise convolution from (C*M, 1, H, W) to (H, W, C, M).
ValueId depthwise_weight(Legalizer& l, std::int64_t groups) {
  const Shape& shape = l.logical_type(1).shape;
  return l.reshape(l.operand(1, DimOrder({2, 3, 0, 1})), {shape[2], shape[3], groups, shape[0] / groups});
}

struct ConvInput {
  ValueId value;  // the physical operand, cropped
  Dims pad;       // before/after per spatial axis
};

ConvInput conv_input(Legalizer& l, const ConvAttrs& attrs, std::int64_t zero_point) {
  const TensorType& x = l.logical_type(0);
  const std::size_t rank = x.rank();
  ConvInput input{l.operand(0, DimOrder::channels_last(rank)), {}};
  Shape size = l.type(input.value).shape;
  Dims in_front = Dims::filled(rank, 0);
  for (std::size_t i = 0; i < rank - 2; ++i) {
    const Window window =
        exact_window(x.shape[i + 2], l.result_type().shape[i + 2], l.logical_type(1).shape[i + 2],
                     attrs.stride[i], attrs.dilation[i], attrs.pad_before[i]);
    const bool reads_padding_alone = window.crop >= size[i + 1];
    if (reads_padding_alone) in_front[i + 1] = window.pad_before;
    size[i + 1] += in_front[i + 1] - window.crop;
    input.pad.push_back(window.pad_before - in_front[i + 1]);
    input.pad.push_back(window.pad_after);
  }
  input.value = l.pad(input.value, in_front, Dims::filled(rank, 0), static_cast<double>(zero_point));
  input.value = l.slice(input.value, Dims::filled(rank, 0), size);
  return input;
}

// A convolution whose large strides are folded into channels: an axis of stride s > 3 and its kernel of
// extent k are cut into blocks of s elements, which become channels, and the stride becomes 1. Of blocks that
// are larger than the kernel, only the first k elements are read.
//
//   conv (16x16, stride 16) of (N, 224, 224, 3)   ->   conv (1x1) of (N, 14, 14, 16 * 16 * 3)
//
// Ethos-U has strides up to 3; of a larger one, Vela makes an operation for each window. A larger kernel that
// is no multiple of s is padded with weights that are 0. Floats have no such weights: 0 times infinity is
// NaN.
struct Blocks {
  ValueId input, weight;
  Dims pad, stride;
};

std::optional<Blocks> in_blocks(Legalizer& l, const ConvInput& input, const Site& site) {
  constexpr std::int64_t kLargestStride = 3, kMostChannels = 65536;
  const ConvAttrs& attrs = site.conv;
  if (l.logical_type(0).rank() != 4 || attrs.groups != 1) return std::nullopt;
  if (l.source().value(l.logical(1)).kind != ValueKind::kConstant) return std::nullopt;
  const Shape x = l.type(input.value).shape, &kernel = l.logical_type(1).shape;
  Dims block{1, 1}, read{1, 1}, count{x[1], x[2]}, taps{kernel[2], kernel[3]};
  Dims stride = attrs.stride, pad = input.pad;
  Dims before = Dims::filled(4, 0), after = Dims::filled(4, 0), more_taps = Dims::filled(4, 0);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t s = attrs.stride[i], k = kernel[i + 2];
    if (s <= kLargestStride) continue;
    const bool pads_kernel = k > s && k % s != 0;
    if (attrs.dilation[i] != 1 || (pads_kernel && is_float(l.type(input.value).dtype))) return std::nullopt;
    block[i] = s;
    read[i] = std::min(k, s);
    taps[i] = (k + s - 1) / s;
    count[i] = l.result_type().shape[i + 2] - 1 + taps[i];
    before[i + 1] = input.pad[2 * i];
    after[i + 1] = count[i] * s - x[i + 1] - before[i + 1];
    more_taps[i + 1] = taps[i] * read[i] - k;
    stride[i] = 1;
    pad[2 * i] = pad[2 * i + 1] = 0;
  }
  const std::int64_t channels = read[0] * read[1] * x[3];
  if (block[0] * block[1] == 1 || channels > kMostChannels) return std::nullopt;
  // (n, size[0] * blocks[0], size[1] * blocks[1], c) -> (n, blocks[0], blocks[1], read[0] * read[1] * c)
  const auto cut = [&](ValueId value, std::int64_t n, const Dims& blocks, const Dims& size) {
    const ValueId rows = l.reshape(value, {n * blocks[0], size[0], blocks[1], size[1] * x[3]});
    const ValueId kept =
        l.slice(rows, Dims::filled(4, 0), {n * blocks[0], read[0], blocks[1], read[1] * x[3]});
    return l.reshape(l.transpose(kept, {0, 2, 1, 3}), {n, blocks[0], blocks[1], channels});
  };
  const ValueId padded = l.pad(input.value, before, after, static_cast<double>(site.input_zp));
  const ValueId weight =
      l.pad(l.operand(1, nhwc()), Dims::filled(4, 0), more_taps, static_cast<double>(site.weight_zp));
  return Blocks{cut(padded, x[0], count, block), cut(weight, kernel[0], taps, read), pad, stride};
}

ValueId group_slice(Legalizer& l, ValueId x, std::size_t axis, std::int64_t group, std::int64_t groups) {
  const std::int64_t size = l.type(x).shape[axis] / groups;
  return l.slice_axis(x, axis, group * size, size);
}

ValueId group_bias(Legalizer& l, ValueId bias, std::int64_t group, std::int64_t groups) {
  return l.type(bias).shape[0] == 1 ? bias : group_slice(l, bias, 0, group, groups);
}

Physical forward_conv(Legalizer& l, const Site& site) {
  const ConvAttrs& attrs = site.conv;
  const std::size_t rank = l.logical_type(0).rank();
  const ConvInput input = conv_input(l, attrs, site.input_zp);
  const ValueId bias = bias_or_zero(l, input.value);
  TosaConvAttrs conv{input.pad,      attrs.stride,   attrs.dilation, site.input_zp,
                     site.weight_zp, accumulator(l), false};
  const DimOrder order = DimOrder::channels_last(rank);
  if (const std::optional<Blocks> blocks = in_blocks(l, input, site)) {
    conv.pad = blocks->pad;
    conv.stride = blocks->stride;
    return {l.emit(Op::kTosaConv2d, conv, {blocks->input, blocks->weight, bias}), order};
  }
  if (layout::is_depthwise(l.logical_type(0).shape, l.logical_type(1).shape, attrs))
    return {l.emit(Op::kTosaDepthwiseConv2d, conv, {input.value, depthwise_weight(l, attrs.groups), bias}),
            order};
  const Op op = rank == 4 ? Op::kTosaConv2d : Op::kTosaConv3d;
  const ValueId weight = l.operand(1, order);
  std::vector<ValueId> parts;
  for (std::int64_t g = 0; g < attrs.groups; ++g)
    parts.push_back(
        l.emit(op, conv,
               {group_slice(l, input.value, rank - 1, g, attrs.groups),
                group_slice(l, weight, 0, g, attrs.groups), group_bias(l, bias, g, attrs.groups)}));
  return {l.concat(parts, rank - 1), order};
}

// Inserts dilation - 1 elements of value `zero_point` between the taps of a kernel axis of extent k. Its new
// extent is (k - 1) * dilation + 1. TRANSPOSE_CONV2D has no dilation.
ValueId dilated_kernel(Legalizer& l, ValueId weight, std::size_t axis, std::int64_t dilation,
                       std::int64_t zero_point) {
  if (dilation == 1) return weight;
  const Shape shape = l.type(weight).shape;
  Shape apart = shape, merged = shape;
  apart.insert(axis + 1, 1);
  merged[axis] = shape[axis] * dilation;
  Dims after = Dims::filled(apart.size(), 0);
  after[axis + 1] = dilation - 1;
  const ValueId padded = l.pad(l.reshape(weight, apart), Dims::filled(apart.size(), 0), after, zero_point);
  return l.slice_axis(l.reshape(padded, merged), axis, 0, (shape[axis] - 1) * dilation + 1);
}

Physical transposed_conv(Legalizer& l, const Site& site) {
  const ConvAttrs& attrs = site.conv;
  if (l.logical_type(0).rank() != 4) l.refuse("a transposed 3-d convolution has no TOSA counterpart");
  const ValueId x = l.operand(0, nhwc());
  const ValueId bias = bias_or_zero(l, x);
  TosaTransposeConvAttrs conv{{}, attrs.stride, site.input_zp, site.weight_zp, accumulator(l), false};
  for (std::size_t i = 0; i < 2; ++i) {
    conv.out_pad.push_back(-attrs.pad_before[i]);
    conv.out_pad.push_back(attrs.output_padding[i] - attrs.pad_after[i]);
  }
  // (I, O/groups, H, W) -> (O/groups, H, W, I)
  ValueId weight = l.operand(1, DimOrder({1, 2, 3, 0}));
  for (std::size_t i = 0; i < 2; ++i)
    weight = dilated_kernel(l, weight, i + 1, attrs.dilation[i], site.weight_zp);
  // TOSA requires out_pad > -kernel. A crop beyond that becomes a slice of the result.
  Dims crop_start = Dims::filled(4, 0);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t limit = 1 - l.type(weight).shape[i + 1];
    crop_start[i + 1] = std::max<std::int64_t>(0, limit - conv.out_pad[2 * i]);
    conv.out_pad[2 * i] = std::max(conv.out_pad[2 * i], limit);
    conv.out_pad[2 * i + 1] = std::max(conv.out_pad[2 * i + 1], limit);
  }
  std::vector<ValueId> parts;
  for (std::int64_t g = 0; g < attrs.groups; ++g)
    parts.push_back(l.emit(Op::kTosaTransposeConv2d, conv,
                           {group_slice(l, x, 3, g, attrs.groups), group_slice(l, weight, 3, g, attrs.groups),
                            group_bias(l, bias, g, attrs.groups)}));
  const ValueId y = l.concat(parts, 3);
  return {l.slice(y, crop_start, physical_dims(l.result_type().shape, nhwc())), nhwc()};
}

// Broadcasts the batch extents to `batch` and merges them: (.., r, c) -> (B, r, c).
ValueId flat_batch(Legalizer& l, ValueId x, const Shape& batch) {
  Shape shape = l.type(x).shape;
  while (shape.size() < batch.size() + 2) shape.insert(0, 1);
  x = l.reshape(x, shape);
  Dims multiples = Dims::filled(shape.size(), 1);
  for (std::size_t i = 0; i < batch.size(); ++i) multiples[i] = shape[i] == batch[i] ? 1 : batch[i];
  x = l.tile(x, multiples);
  return l.reshape(x, {num_elements(batch), shape[shape.size() - 2], shape.back()});
}

// Casts operand i of a matmul of bytes to i8, after its zero point is added, or without profile INT to f32.
// Operands of other matmuls are unchanged.
ValueId factor(Legalizer& l, std::size_t i, ValueId x) {
  if (!is_integer(l.result_type().dtype)) return x;
  if (!l.has_integers()) return l.cast(x, DType::kF32);
  const std::int64_t zero_point = byte_zero_point(l.source(), l.logical(i)).value_or(0);
  if (zero_point != 0) x = l.binary(Op::kTosaSub, x, l.number_like(x, -static_cast<double>(zero_point)));
  return l.cast(x, DType::kI8);
}

// The matmul in rank 3. Integer products are summed in i32. Without profile INT, MATMULs in f32 sum
// kMostExact products each, which is exact, and ADDs in i32 add up these sums.
ValueId matrix_product(Legalizer& l, ValueId a, ValueId b) {
  constexpr std::int64_t kMostExact = 256;  // a sum of so many products of 16 bits has at most 24 bits
  if (!is_integer(l.result_type().dtype)) return l.binary(Op::kTosaMatmul, a, b);
  if (l.has_integers())
    return l.emit(Op::kTosaMatmul,
                  TosaMatmulAttrs{byte_zero_point(l.source(), l.logical(0)).value_or(0),
                                  byte_zero_point(l.source(), l.logical(1)).value_or(0), std::nullopt},
                  {a, b});
  const std::int64_t depth = l.type(a).shape[2];
  ValueId sum;
  for (std::int64_t at = 0; at < depth; at += kMostExact) {
    const std::int64_t size = std::min(kMostExact, depth - at);
    const ValueId part =
        l.binary(Op::kTosaMatmul, l.slice_axis(a, 2, at, size), l.slice_axis(b, 1, at, size));
    if (depth <= kMostExact) return part;
    const ValueId whole = l.cast(part, DType::kI32);
    sum = sum.valid() ? l.binary(Op::kTosaAdd, sum, whole) : whole;
  }
  return sum;
}

Shape batch_of(const Shape& shape) { return Dims(shape.span().first(shape.size() - 2)); }

}  // namespace

Physical legalize_conv(Legalizer& l) {
  if (std::optional<Physical> made = reduced_windows(l)) return *std::move(made);
  const Site site = site_of(l);
  return site.conv.transposed ? transposed_conv(l, site) : forward_conv(l, site);
}

// Multiplies x (.., I) by the weight (O, I), where I is the number of input features and O that of output
// features. This is the 1x1 convolution of (1, 1, rows, I) by (O, 1, 1, I). The rows are its width, not its
// height: Ethos-U computes several columns at once, and would leave half of its multipliers idle.
Physical legalize_linear(Legalizer& l) {
  const Shape& weight = l.logical_type(1).shape;
  const Shape& shape = l.result_type().shape;
  if (weight.size() != 2) l.refuse("linear with a weight of rank " + std::to_string(weight.size()));
  const std::int64_t in = weight[1], out = weight[0];
  const std::int64_t rows = num_elements(shape) / std::max<std::int64_t>(out, 1);
  const DimOrder order = l.planned_order();  // the rows in any order, the channels innermost
  const ValueId x = l.reshape(l.operand(0, order), {1, 1, rows, in});
  const ValueId w = l.reshape(l.operand(1), {out, 1, 1, in});
  const TosaConvAttrs conv{{0, 0, 0, 0}, {1, 1}, {1, 1}, 0, 0, accumulator(l), false};
  const ValueId made = l.emit(Op::kTosaConv2d, conv, {x, w, bias_or_zero(l, x)});
  return {l.reshape(made, physical_dims(shape, order)), order};
}

// The batch axes may be in any order that both operands share. If b is a single matrix, the rows of `a` may
// be anywhere among the batch axes, since all these axes become rows.
Physical legalize_matmul(Legalizer& l) {
  const DimOrder order = l.planned_order();
  const std::size_t rank = l.result_type().rank();
  ValueId a = factor(l, 0, l.operand(0, order));
  const bool shares = !order.is_identity() && num_elements(batch_of(l.logical_type(1).shape)) != 1;
  ValueId b = factor(l, 1, shares ? l.aligned(1, rank, order) : l.operand(1));
  if (l.type(a).rank() == 1) a = l.reshape(a, {1, l.type(a).shape[0]});
  if (l.type(b).rank() == 1) b = l.reshape(b, {l.type(b).shape[0], 1});
  const Shape batch_b = batch_of(l.type(b).shape);
  Shape batch = broadcast(batch_of(l.type(a).shape), batch_b);
  if (num_elements(batch_b) == 1) {  // one matrix b: the batch of a becomes rows
    const Shape shape = l.type(a).shape;
    a = l.reshape(a, {1, num_elements(shape) / std::max<std::int64_t>(shape.back(), 1), shape.back()});
    b = l.reshape(b, {1, l.type(b).shape[l.type(b).rank() - 2], l.type(b).shape.back()});
  } else {
    a = flat_batch(l, a, batch);
    b = flat_batch(l, b, batch);
  }
  // MATMUL of bf16 has a result of f32.
  const bool is_whole = is_integer(l.result_type().dtype);
  const ValueId product =
      l.cast(matrix_product(l, a, b), is_whole ? l.result_dtype() : l.result_type().dtype);
  return {l.reshape(product, physical_dims(l.result_type().shape, order)), order};
}

}  // namespace tosaic::passes
