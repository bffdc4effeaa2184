#include "tosaic/claimant/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "tosaic/ir/constant_factor.h"
#include "tosaic/ir/constant_value.h"
#include "tosaic/ir/quantized.h"

namespace tosaic::claimant {
namespace {

using Numbers = std::vector<std::int64_t>;

// ---- windows ----

// A convolution, pool or resize: one entry for each spatial axis, height and width last. A single spatial
// axis is the width of images of height 1.
struct Window {
  Dims kernel, stride, dilation, padding;
  std::int64_t channels = 1;  // of the input that one output channel reads
};

Dims part(const Dims& dims, std::size_t first, std::size_t count) {
  return Dims(dims.span().subspan(first, count));
}

Dims widest(const Dims& before, const Dims& after) {
  Dims out = before;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::max(before[i], after[i]);
  return out;
}

// TOSA lists the pads as (top, bottom, left, right).
Dims widest_pairs(const Dims& pads) {
  Dims out;
  for (std::size_t i = 0; i + 1 < pads.size(); i += 2) out.push_back(std::max(pads[i], pads[i + 1]));
  return out;
}

Dims ones(const Dims& like) { return Dims::filled(like.size(), 1); }

Window conv_window(const NodeView& view, const ConvAttrs& conv) {
  const Shape& weight = view.graph.type(view.operands()[1]).shape;
  return {part(weight, 2, weight.size() - 2), conv.stride, conv.dilation,
          widest(conv.pad_before, conv.pad_after), conv.transposed ? weight[0] / conv.groups : weight[1]};
}

std::optional<Window> tosa_window(const NodeView& view) {
  const Attrs& attrs = *view.node.attrs;
  if (const auto* conv = get_if<TosaConvAttrs>(&attrs)) {
    const Shape& weight = view.graph.type(view.operands()[1]).shape;
    const bool depthwise = view.node.op == Op::kTosaDepthwiseConv2d;
    return Window{depthwise ? part(weight, 0, 2) : part(weight, 1, weight.size() - 2), conv->stride,
                  conv->dilation, widest_pairs(conv->pad), depthwise ? 1 : weight.back()};
  }
  if (const auto* conv = get_if<TosaTransposeConvAttrs>(&attrs)) {
    const Shape& weight = view.graph.type(view.operands()[1]).shape;
    return Window{part(weight, 1, 2), conv->stride, ones(conv->stride), widest_pairs(conv->out_pad),
                  weight.back()};
  }
  if (const auto* pool = get_if<TosaAvgPoolAttrs>(&attrs))
    return Window{pool->kernel, pool->stride, ones(pool->stride), widest_pairs(pool->pad)};
  if (const auto* pool = get_if<TosaMaxPoolAttrs>(&attrs))
    return Window{pool->kernel, pool->stride, ones(pool->stride), widest_pairs(pool->pad)};
  return std::nullopt;
}

// The windows of an adaptive pool, if all of them have one size.
std::optional<Window> adaptive_window(const NodeView& view, const ShapeAttrs& attrs) {
  Window out;
  const Shape& in = view.input().shape;
  const std::size_t first = in.size() - attrs.shape.size();
  for (std::size_t i = 0; i < attrs.shape.size(); ++i) {
    if (attrs.shape[i] == 0 || in[first + i] % attrs.shape[i] != 0) return std::nullopt;
    out.kernel.push_back(in[first + i] / attrs.shape[i]);
  }
  out.stride = out.kernel;
  out.dilation = ones(out.kernel);
  out.padding = Dims::filled(out.kernel.size(), 0);
  return out;
}

std::optional<Window> window_of(const NodeView& view) {
  const Attrs& attrs = *view.node.attrs;
  if (const auto* conv = get_if<ConvAttrs>(&attrs)) return conv_window(view, *conv);
  if (const auto* pool = get_if<PoolAttrs>(&attrs))
    return Window{pool->kernel, pool->stride, pool->dilation, pool->padding};
  if (view.node.op == Op::kAdaptiveAvgPool || view.node.op == Op::kAdaptiveMaxPool)
    return adaptive_window(view, Graph::attrs<ShapeAttrs>(view.node));
  return tosa_window(view);
}

// The entry of a spatial axis, counted back from the width. Returns `absent` if there is no such axis.
std::int64_t from_last(const Dims& dims, std::size_t place, std::int64_t absent = 1) {
  return place < dims.size() ? dims[dims.size() - 1 - place] : absent;
}

template <auto Field>
Numbers all_of(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  if (!window) return {};
  const Dims& dims = *window.*Field;
  return {dims.begin(), dims.end()};
}

template <auto Field>
Numbers planar(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  if (!window) return {};
  return {from_last(*window.*Field, 1), from_last(*window.*Field, 0)};
}

template <auto Field, std::size_t Place>
Numbers one_of(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  return window ? Numbers{from_last(*window.*Field, Place)} : Numbers{};
}

Numbers kernel_product(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  return window ? Numbers{from_last(window->kernel, 0) * from_last(window->kernel, 1)} : Numbers{};
}

Numbers kernel_volume(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  if (!window) return {};
  const std::int64_t channels = (window->channels + view.unit - 1) / view.unit * view.unit;
  return {from_last(window->kernel, 0) * from_last(window->kernel, 1) * channels};
}

// If the result has extent 1 along an axis, the stride of this axis has no effect and counts as 1.
Numbers strides(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  if (!window) return {};
  const Shape& made = view.result().shape;
  const std::size_t behind = info(view.node.op).is_tosa ? 1 : 0;
  Numbers out;
  for (const std::size_t place : {std::size_t{1}, std::size_t{0}})
    out.push_back(from_last(made, place + behind) == 1 ? 1 : from_last(window->stride, place));
  return out;
}

Numbers square_stride(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  if (!window) return {};
  // An axis on which input and kernel have extent 1 may have any stride.
  const Shape& in = view.input().shape;
  if (in.size() == 4 && in[1] == 1 && from_last(window->kernel, 1) == 1) return {1};
  if (in.size() == 4 && in[2] == 1 && from_last(window->kernel, 0) == 1) return {1};
  return {from_last(window->stride, 0) == from_last(window->stride, 1) ? 1 : 0};
}

template <auto Field, bool Equal>
Numbers below_kernel(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  if (!window) return {};
  const Dims& dims = *window.*Field;
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (Equal ? dims[i] > window->kernel[i] : dims[i] >= window->kernel[i]) return {0};
  return {1};
}

Numbers spatial_rank(const NodeView& view) {
  if (const auto* resize = get_if<ResizeAttrs>(view.node.attrs.get()))
    return {std::int64_t(resize->size.size())};
  if (const std::optional<Window> window = window_of(view)) return {std::int64_t(window->kernel.size())};
  return {};
}

// ---- weights ----

Numbers groups(const NodeView& view) {
  const auto* conv = get_if<ConvAttrs>(view.node.attrs.get());
  if (conv == nullptr) return {};
  const std::int64_t channels = view.input().shape[1];
  return {!conv->transposed && conv->groups == channels ? 1 : conv->groups};
}

Numbers output_padding(const NodeView& view) {
  const auto* conv = get_if<ConvAttrs>(view.node.attrs.get());
  if (conv == nullptr || !conv->transposed) return {};
  return {conv->output_padding.begin(), conv->output_padding.end()};
}

Numbers transposed(const NodeView& view) {
  const auto* conv = get_if<ConvAttrs>(view.node.attrs.get());
  return conv == nullptr ? Numbers{} : Numbers{conv->transposed ? 1 : 0};
}

std::size_t place_of(const NodeView& view, std::string_view name) {
  std::size_t place = 0;
  while (place < view.operands().size() && info(view.node.op).operand_name(place) != name) ++place;
  return place;
}

Numbers weight_sum(const NodeView& view) {
  const std::size_t place = place_of(view, "weight");
  if (place >= view.operands().size()) return {};
  const Constant* const weight = constant_of(view.graph, view.operands()[place]);
  if (weight == nullptr || !weight->storage.bound() || is_float(weight->dtype)) return {};
  // Output channels are the first axis of TOSA's weights but for depthwise ones, (H, W, C, M).
  const bool depthwise = view.node.op == Op::kTosaDepthwiseConv2d;
  const std::int64_t count = num_elements(weight->shape);
  const std::int64_t channels = depthwise ? weight->shape[2] * weight->shape[3] : weight->shape[0];
  if (count == 0) return {};
  std::int64_t zero = 0;
  if (const auto* conv = get_if<TosaConvAttrs>(view.node.attrs.get())) zero = conv->weight_zp;
  const Elements elements(*weight);
  Numbers sums(static_cast<std::size_t>(channels), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t channel = depthwise ? i % channels : i / (count / channels);
    sums[static_cast<std::size_t>(channel)] += std::abs(elements.as_int(static_cast<std::size_t>(i)) - zero);
  }
  return {*std::ranges::max_element(sums)};
}

Numbers bias_extremes(const NodeView& view) {
  const std::size_t place = place_of(view, "bias");
  if (place >= view.operands().size()) return {};
  const Constant* const bias = constant_of(view.graph, view.operands()[place]);
  if (bias == nullptr || !bias->storage.bound() || !is_integer(bias->dtype) || num_elements(bias->shape) == 0)
    return {};
  const ValueRange range = extremes_of(*bias);
  return {range.low, range.high};
}

template <std::size_t Place>
Numbers is_constant(const NodeView& view) {
  if (Place >= view.operands().size() || !view.operands()[Place].valid()) return {};
  return {view.graph.value(view.operands()[Place]).constant ? 1 : 0};
}

Numbers weight_axis(const NodeView& view) {
  const std::size_t place = place_of(view, "weight");
  if (place >= view.operands().size()) return {};
  const QParamsRef& q = view.graph.type(view.operands()[place]).qparams;
  return q && q->axis ? Numbers{*q->axis} : Numbers{};
}

// ---- extents ----

bool is_tosa(const NodeView& view) { return info(view.node.op).is_tosa; }

// The tensors of a node that are not constants.
std::vector<const TensorType*> tensors(const NodeView& view) {
  std::vector<const TensorType*> out;
  for (const ValueId operand : view.operands())
    if (operand.valid() && !view.graph.value(operand).constant) out.push_back(&view.graph.type(operand));
  for (std::uint32_t r = 0; r < view.node.result_count; ++r)
    out.push_back(&view.graph.type(view.graph.result(view.node, r)));
  return out;
}

std::vector<const TensorType*> input_and_result(const NodeView& view) {
  std::vector<const TensorType*> out;
  if (!view.operands().empty() && view.operands()[0].valid()) out.push_back(&view.input());
  if (view.node.result_count > 0) out.push_back(&view.result());
  return out;
}

Numbers batch(const NodeView& view) {
  Numbers out;
  for (const TensorType* type : tensors(view))
    if (type->rank() >= 4) out.push_back(type->shape[0]);
  return out;
}

std::size_t channel_axis(const NodeView& view, std::size_t rank) {
  return is_tosa(view) || rank < 3 ? rank - 1 : 1;
}

// The extents of a spatial axis: the last one if Place is 0, the one before if Place is 1.
template <std::size_t Place>
Numbers spatial_extent(const NodeView& view) {
  Numbers out;
  for (const TensorType* type : input_and_result(view)) {
    const std::size_t behind = Place + (is_tosa(view) ? 1 : 0);
    if (type->rank() >= 3 && type->rank() > behind + 1) out.push_back(type->shape[type->rank() - 1 - behind]);
  }
  return out;
}

Numbers channels(const NodeView& view) {
  Numbers out;
  for (const TensorType* type : input_and_result(view))
    if (type->rank() > 0) out.push_back(type->shape[channel_axis(view, type->rank())]);
  return out;
}

Numbers input_channels(const NodeView& view) {
  const Shape& shape = view.input().shape;
  return shape.empty() ? Numbers{} : Numbers{shape[channel_axis(view, shape.size())]};
}

Numbers spatial_product(const NodeView& view) {
  const Shape& shape = view.input().shape;
  std::int64_t product = 1;
  for (std::size_t axis = shape.size() >= 4 ? 1 : 0; axis < shape.size(); ++axis)
    if (axis != channel_axis(view, shape.size())) product *= shape[axis];
  return {product};
}

Numbers ranks(const NodeView& view) {
  Numbers out;
  for (const TensorType* type : tensors(view)) out.push_back(static_cast<std::int64_t>(type->rank()));
  return out;
}

Numbers elements(const NodeView& view) { return {num_elements(view.input().shape)}; }

// ---- axes ----

// The axes along which an operator works.
Dims axes_of(const NodeView& view) {
  const Attrs& attrs = *view.node.attrs;
  const auto one = [](std::int64_t axis) { return Dims{axis}; };
  if (const auto* a = get_if<AxisAttrs>(&attrs)) return one(a->axis);
  if (const auto* a = get_if<AxisDtypeAttrs>(&attrs)) return one(a->axis);
  if (const auto* a = get_if<TosaAxisNanAttrs>(&attrs)) return one(a->axis);
  if (const auto* a = get_if<ReduceAttrs>(&attrs)) return a->axes;
  if (const auto* a = get_if<AxesAttrs>(&attrs)) return a->axes;
  if (const auto* a = get_if<ArgAttrs>(&attrs); a != nullptr && a->axis) return one(*a->axis);
  return {};
}

template <class Function>
Numbers for_axes(const NodeView& view, Function function) {
  Numbers out;
  const Shape& shape = view.input().shape;
  for (const std::int64_t axis : axes_of(view))
    if (static_cast<std::size_t>(axis) < shape.size())
      out.push_back(function(shape, static_cast<std::size_t>(axis)));
  return out;
}

std::int64_t product(const Shape& shape, std::size_t first, std::size_t end) {
  std::int64_t out = 1;
  for (std::size_t i = first; i < end; ++i) out *= shape[i];
  return out;
}

Numbers axis_is_last(const NodeView& view) {
  return for_axes(view,
                  [](const Shape& shape, std::size_t axis) { return axis + 1 == shape.size() ? 1 : 0; });
}
Numbers axis_is_channel(const NodeView& view) {
  return for_axes(view, [&](const Shape& shape, std::size_t axis) {
    return axis == channel_axis(view, shape.size()) ? 1 : 0;
  });
}
Numbers axis_is_spatial(const NodeView& view) {
  return for_axes(view, [&](const Shape& shape, std::size_t axis) {
    const std::size_t end = shape.size() - (is_tosa(view) ? 1 : 0);
    return axis < end && axis + 2 >= end ? 1 : 0;
  });
}
Numbers axis_extent(const NodeView& view) {
  return for_axes(view, [](const Shape& shape, std::size_t axis) { return shape[axis]; });
}
Numbers axis_outer(const NodeView& view) {
  return for_axes(view, [](const Shape& shape, std::size_t axis) { return product(shape, 0, axis); });
}
Numbers axis_inner(const NodeView& view) {
  return for_axes(
      view, [](const Shape& shape, std::size_t axis) { return product(shape, axis + 1, shape.size()); });
}
Numbers row_count(const NodeView& view) {
  return for_axes(view, [](const Shape& shape, std::size_t axis) {
    return product(shape, 0, axis) * product(shape, axis + 1, shape.size());
  });
}

// ---- permutations ----

// Axes of extent 1 in front are dropped if the permutation does not move them.
std::pair<Shape, Dims> without_outer_ones(const Shape& shape, const Dims& perm) {
  std::size_t first = 0;
  while (shape.size() - first > 3 && shape[first] == 1 && perm[first] == static_cast<std::int64_t>(first))
    ++first;
  Dims rest = part(perm, first, perm.size() - first);
  for (std::int64_t& axis : rest) axis -= static_cast<std::int64_t>(first);
  return {part(shape, first, shape.size() - first), rest};
}

Numbers permuted_product(const NodeView& view) {
  const auto* permute = get_if<PermuteAttrs>(view.node.attrs.get());
  if (permute == nullptr) return {};
  auto [shape, perm] = without_outer_ones(view.input().shape, permute->perm);
  if (is_identity_permutation(perm)) return {1};
  if (shape.size() <= 3) return {*std::ranges::max_element(shape)};
  std::ranges::sort(shape);
  return {product(shape, 2, shape.size())};
}

Numbers simple_permutation(const NodeView& view) {
  const auto* permute = get_if<PermuteAttrs>(view.node.attrs.get());
  if (permute == nullptr) return {};
  const std::size_t missing = 4 - std::min<std::size_t>(4, permute->perm.size());
  Dims perm = Dims::iota(missing);
  for (const std::int64_t axis : permute->perm) perm.push_back(axis + static_cast<std::int64_t>(missing));
  const std::int64_t batches = missing > 0 ? 1 : view.input().shape[0];
  const bool any_batch = perm == Dims{0, 1, 2, 3} || perm == Dims{0, 2, 1, 3};
  const bool one_batch = perm == Dims{0, 2, 1, 3} || perm == Dims{0, 1, 3, 2} || perm == Dims{0, 3, 2, 1};
  return {any_batch || (one_batch && batches == 1) ? 1 : 0};
}

// ---- resize ----

std::int64_t power_of_two(std::int64_t numerator, std::int64_t denominator) {
  if (denominator <= 0 || numerator % denominator != 0) return 0;
  const std::int64_t factor = numerator / denominator;
  return (factor & (factor - 1)) == 0 ? factor : 0;
}

Numbers upscales(const NodeView& view) {
  const Attrs& attrs = *view.node.attrs;
  if (const auto* resize = get_if<TosaResizeAttrs>(&attrs))
    return {power_of_two(resize->scale[0], resize->scale[1]),
            power_of_two(resize->scale[2], resize->scale[3])};
  const auto* resize = get_if<ResizeAttrs>(&attrs);
  if (resize == nullptr) return {};
  Numbers out;
  const Shape &in = view.input().shape, &made = view.result().shape;
  const std::int64_t less = resize->align_corners ? 1 : 0;
  for (std::size_t i = in.size() - resize->size.size(); i < in.size(); ++i)
    out.push_back(power_of_two(made[i] - less, in[i] - less));
  return out;
}

bool is_bilinear(const NodeView& view) {
  const Attrs& attrs = *view.node.attrs;
  const auto* canonical = get_if<ResizeAttrs>(&attrs);
  const auto* tosa = get_if<TosaResizeAttrs>(&attrs);
  return (canonical != nullptr ? canonical->mode
          : tosa != nullptr    ? tosa->mode
                               : ResizeMode::kNearest) == ResizeMode::kBilinear;
}

Numbers bilinear_mode(const NodeView& view) { return {is_bilinear(view) ? 1 : 0}; }

// True if a nearest RESIZE copies each element of an axis k times. Its scale is then k/1, with offset and
// border 0, or 2k/2, with offset 1 - k and border k - 1.
bool replicates_axis(std::int64_t numerator, std::int64_t denominator, std::int64_t offset,
                     std::int64_t border) {
  if (denominator == 1) return offset == 0 && border == 0;
  return denominator == 2 && offset == 1 - numerator / 2 && border == numerator / 2 - 1;
}

Numbers replicates(const NodeView& view) {
  const auto* resize = get_if<TosaResizeAttrs>(view.node.attrs.get());
  if (resize == nullptr || resize->mode != ResizeMode::kNearest) return {};
  const Dims& scale = resize->scale;
  return {replicates_axis(scale[0], scale[1], resize->offset[0], resize->border[0]) &&
                  replicates_axis(scale[2], scale[3], resize->offset[1], resize->border[1])
              ? 1
              : 0};
}

Numbers aligns_corners(const NodeView& view) {
  const auto* resize = get_if<ResizeAttrs>(view.node.attrs.get());
  return resize == nullptr ? Numbers{} : Numbers{resize->align_corners ? 1 : 0};
}

Numbers rounding_shift(const NodeView& view) {
  const auto* shift = get_if<TosaShiftAttrs>(view.node.attrs.get());
  return shift == nullptr ? Numbers{} : Numbers{shift->round ? 1 : 0};
}

// ---- operands and qparams ----

Numbers same_shapes(const NodeView& view) {
  const Shape* first = nullptr;
  for (const ValueId operand : view.operands()) {
    if (!operand.valid()) continue;
    const Shape& shape = view.graph.type(operand).shape;
    if (first != nullptr && shape != *first) return {0};
    first = &shape;
  }
  return {1};
}

bool is_channel_list(const NodeView& view, const Shape& shape, const Shape& full) {
  const std::int64_t count = num_elements(shape);
  if (count == 1) return true;
  if (shape.size() > full.size() || full.empty()) return false;
  const std::size_t axis = channel_axis(view, full.size()), missing = full.size() - shape.size();
  return axis >= missing && shape[axis - missing] == count && full[axis] == count;
}

Numbers channel_broadcast(const NodeView& view) {
  for (const ValueId operand : view.operands()) {
    if (!operand.valid()) continue;
    const Shape &shape = view.graph.type(operand).shape, &full = view.result().shape;
    if (shape != full && !is_channel_list(view, shape, full)) return {0};
  }
  return {1};
}

Numbers full_operand(const NodeView& view) {
  for (const ValueId operand : view.operands())
    if (operand.valid() && num_elements(view.graph.type(operand).shape) == num_elements(view.result().shape))
      return {1};
  return {0};
}

Numbers shared_qparams(const NodeView& view) {
  const QParams* first = nullptr;
  for (const TensorType* type : tensors(view)) {
    if (!type->qparams) continue;
    if (first != nullptr && !same_grid(*first, *type->qparams)) return {0};
    first = type->qparams.get();
  }
  return {1};
}

Numbers per_tensor(const NodeView& view) {
  for (std::size_t i = 0; i < view.operands().size(); ++i) {
    const std::string_view name = info(view.node.op).operand_name(i);
    if (!view.operands()[i].valid() || name == "weight" || name == "bias") continue;
    if (const QParamsRef& q = view.graph.type(view.operands()[i]).qparams; q && q->axis) return {0};
  }
  for (std::uint32_t r = 0; r < view.node.result_count; ++r)
    if (const QParamsRef& q = view.graph.type(view.graph.result(view.node, r)).qparams; q && q->axis)
      return {0};
  return {1};
}

Numbers output_scale_256(const NodeView& view) {
  const QParamsRef& q = view.result().qparams;
  if (!q || q->scales.empty()) return {0};
  return {std::abs(q->scales[0] * 256 - 1) < 1e-6 && q->zero_points[0] == -128 ? 1 : 0};
}

// True if the integers -most..most represent -1..1. With `whole`, qmin and qmax must be -most and most.
bool is_unit(const TensorType& type, std::int64_t most, bool whole) {
  const QParamsRef& q = type.qparams;
  return q && !q->axis && q->zero_points[0] == 0 && (!whole || (q->qmin == -most && q->qmax == most)) &&
         std::abs(q->scales[0] * static_cast<double>(most) - 1) < 1e-6;
}

Numbers snorm(const NodeView& view) {
  return {is_unit(view.graph.type(view.operands()[0]), 127, false) && is_unit(view.result(), 127, true) ? 1
                                                                                                        : 0};
}

Numbers unit_grid(const NodeView& view) {
  const TensorType& grid = view.graph.type(view.operands()[1]);
  return {is_unit(grid, 127, false) || is_unit(grid, 32767, false) ? 1 : 0};
}

void append_zero_points(const TensorType& type, Numbers& out) {
  if (type.qparams) out.insert(out.end(), type.qparams->zero_points.begin(), type.qparams->zero_points.end());
}

Numbers input_zero_points(const NodeView& view) {
  Numbers out;
  for (const ValueId operand : view.operands())
    if (operand.valid()) append_zero_points(view.graph.type(operand), out);
  return out;
}

Numbers output_zero_points(const NodeView& view) {
  Numbers out;
  for (std::uint32_t r = 0; r < view.node.result_count; ++r)
    append_zero_points(view.graph.type(view.graph.result(view.node, r)), out);
  return out;
}

// ---- attributes ----

template <class Function>
Numbers of_pool(const NodeView& view, Function function) {
  const auto* pool = get_if<PoolAttrs>(view.node.attrs.get());
  return pool == nullptr ? Numbers{} : Numbers{function(*pool) ? 1 : 0};
}
bool is_padded(const Dims& padding) {
  return std::ranges::any_of(padding, [](std::int64_t pad) { return pad != 0; });
}
Numbers ceil_mode(const NodeView& view) {
  return of_pool(view, [](const PoolAttrs& pool) { return pool.ceil_mode; });
}
Numbers counts_padding(const NodeView& view) {
  return of_pool(view,
                 [](const PoolAttrs& pool) { return pool.count_include_pad || !is_padded(pool.padding); });
}
Numbers divisor_override(const NodeView& view) {
  return of_pool(view, [](const PoolAttrs& pool) { return pool.divisor_override.has_value(); });
}
Numbers divides_input(const NodeView& view) {
  return {adaptive_window(view, Graph::attrs<ShapeAttrs>(view.node)) ? 1 : 0};
}
Numbers alpha(const NodeView& view) {
  const auto* attrs = get_if<AlphaAttrs>(view.node.attrs.get());
  return attrs == nullptr ? Numbers{} : Numbers{as_double(attrs->alpha) == 1 ? 1 : 0};
}

Numbers by_number(const NodeView& view) {
  const bool has_floats =
      std::ranges::any_of(view.operands(), [&](ValueId id) { return is_float(view.graph.type(id).dtype); });
  if (!has_floats) return {};
  return {constant_factor(view.graph, view.node) ? 1 : 0};
}
Numbers scale_only(const NodeView& view) {
  const std::optional<ConstantFactor> found = constant_factor(view.graph, view.node);
  if (!found || !is_float(view.graph.type(view.operands()[1 - found->data]).dtype)) return {};
  const QParamsRef &from = view.graph.type(view.operands()[found->data]).qparams, &to = view.result().qparams;
  return {from && to && keeps_integers(*from, found->factor, *to) ? 1 : 0};
}

constexpr QuantityInfo kQuantities[] = {
    {Quantity::kKernelDepth, "kernel-depth", "the depth of the kernel", {}, {}, one_of<&Window::kernel, 2>},
    {Quantity::kKernelHeight,
     "kernel-height",
     "the height of the kernel",
     {},
     {},
     one_of<&Window::kernel, 1>},
    {Quantity::kKernelWidth, "kernel-width", "the width of the kernel", {}, {}, one_of<&Window::kernel, 0>},
    {Quantity::kKernelProduct,
     "kernel-product",
     "the height times the width of the kernel",
     {},
     {},
     kernel_product},
    {Quantity::kKernelVolume,
     "kernel-volume",
     "the product of the kernel's extents and the channels that it reads",
     {},
     {},
     kernel_volume},
    {Quantity::kStride, "stride", "the stride", {}, {}, strides},
    {Quantity::kStrideDepth,
     "stride-depth",
     "the stride along the depth",
     {},
     {},
     one_of<&Window::stride, 2>},
    {Quantity::kSquareStride, "square-stride", "the strides of height and width", "equal strides",
     "different strides", square_stride},
    {Quantity::kStrideInKernel, "stride-in-kernel", "the stride", "at most the kernel",
     "more than the kernel", below_kernel<&Window::stride, true>},
    {Quantity::kPaddingInKernel, "padding-in-kernel", "the padding", "less than the kernel",
     "as much as the kernel", below_kernel<&Window::padding, false>},
    {Quantity::kDilation, "dilation", "the dilation", {}, {}, planar<&Window::dilation>},
    {Quantity::kGroups, "groups", "the number of groups", {}, {}, groups},
    {Quantity::kOutputPadding, "output-padding", "the output padding", {}, {}, output_padding},
    {Quantity::kTransposed, "transposed", "the convolution", "a transposed one", "one that is not transposed",
     transposed},
    {Quantity::kWeightSum, "weight-sum", "the sum of the absolute weights of a channel", {}, {}, weight_sum},
    {Quantity::kBias, "bias", "the bias", {}, {}, bias_extremes},
    {Quantity::kConstantWeight, "constant-weight", "the second operand", "a constant", "a computed value",
     is_constant<1>},
    {Quantity::kConstantBias, "constant-bias", "the bias", "a constant", "a computed value", is_constant<2>},
    {Quantity::kWeightAxis, "weight-axis", "the axis of the weight's scales", {}, {}, weight_axis},
    {Quantity::kBatch, "batch", "the batch", {}, {}, batch},
    {Quantity::kHeight, "height", "the height", {}, {}, spatial_extent<1>},
    {Quantity::kWidth, "width", "the width", {}, {}, spatial_extent<0>},
    {Quantity::kChannels, "channels", "the number of channels", {}, {}, channels},
    {Quantity::kInputChannels, "input-channels", "the number of input channels", {}, {}, input_channels},
    {Quantity::kSpatial, "spatial", "the height times the width", {}, {}, spatial_product},
    {Quantity::kRank, "rank", "the number of axes", {}, {}, ranks},
    {Quantity::kSpatialRank, "spatial-rank", "the number of spatial axes", {}, {}, spatial_rank},
    {Quantity::kAxisIsLast, "axis", "the axis", "the last axis", "another axis", axis_is_last},
    {Quantity::kAxisIsChannel, "channel-axis", "the axis", "the channels", "another axis", axis_is_channel},
    {Quantity::kAxisIsSpatial, "spatial-axis", "the axis", "height or width", "another axis",
     axis_is_spatial},
    {Quantity::kAxisExtent, "axis-extent", "the extent of the axis", {}, {}, axis_extent},
    {Quantity::kAxisOuter, "axis-outer", "the product of the extents before the axis", {}, {}, axis_outer},
    {Quantity::kAxisInner, "axis-inner", "the product of the extents after the axis", {}, {}, axis_inner},
    {Quantity::kRowCount, "row-count", "the product of the extents of the other axes", {}, {}, row_count},
    {Quantity::kElements, "elements", "the number of elements", {}, {}, elements},
    {Quantity::kPermutedProduct,
     "permuted-product",
     "the product of all but two of the permuted extents",
     {},
     {},
     permuted_product},
    {Quantity::kSimplePermutation, "permutation", "the permutation", "a swap of neighbours",
     "another permutation", simple_permutation},
    {Quantity::kUpscale, "upscale", "the factor of the resize, 0 if it is no power of two", {}, {}, upscales},
    {Quantity::kBilinear, "bilinear", "the mode of the resize", "bilinear", "nearest", bilinear_mode},
    {Quantity::kReplicates, "resize-form", "the scale, offset and border",
     "those that repeat elements as Vela expects", "others", replicates},
    {Quantity::kAlignsCorners, "align-corners", "the resize", "aligned corners",
     "corners that are not aligned", aligns_corners},
    {Quantity::kRoundingShift, "rounding-shift", "the shift", "one that rounds", "one that truncates",
     rounding_shift},
    {Quantity::kSameShapes, "same-shapes", "the shapes of the operands", "equal shapes", "different shapes",
     same_shapes},
    {Quantity::kChannelBroadcast, "broadcast", "the shapes of the operands",
     "equal shapes, or one operand with one element or one for each channel", "another broadcast",
     channel_broadcast},
    {Quantity::kFullOperand, "full-operand", "the shapes of the operands",
     "one operand with the shape of the result", "operands that are both broadcast", full_operand},
    {Quantity::kSharedQParams, "shared-qparams", "the quantization of operands and results",
     "equal parameters", "different parameters", shared_qparams},
    {Quantity::kPerTensor, "per-tensor", "the quantization of operands and results", "one scale",
     "a scale for each channel", per_tensor},
    {Quantity::kOutputScale256, "output-scale", "the quantization of the result",
     "scale 1/256 and zero point -128", "other parameters", output_scale_256},
    {Quantity::kSnorm, "snorm", "the quantization of image and result",
     "scale 1/127, zero point 0 and range -127..127", "other parameters", snorm},
    {Quantity::kUnitGrid, "grid", "the quantization of the grid", "scale 1/127 or 1/32767 and zero point 0",
     "other parameters", unit_grid},
    {Quantity::kInputZeroPoint,
     "input-zero-point",
     "the zero point of the operands",
     {},
     {},
     input_zero_points},
    {Quantity::kOutputZeroPoint,
     "output-zero-point",
     "the zero point of the result",
     {},
     {},
     output_zero_points},
    {Quantity::kCeilMode, "ceil-mode", "the pool", "ceil_mode", "no ceil_mode", ceil_mode},
    {Quantity::kCountsPadding, "count-include-pad", "the average", "one that counts the padding",
     "one that does not count the padding", counts_padding},
    {Quantity::kDivisorOverride, "divisor-override", "the average", "a divisor_override",
     "no divisor_override", divisor_override},
    {Quantity::kDividesInput, "even-windows", "the windows of the pool", "one size", "different sizes",
     divides_input},
    {Quantity::kAlpha, "alpha", "the factor alpha", "1", "another factor", alpha},
    {Quantity::kNumber, "number", "the operand of floats", "one number that is finite and not 0",
     "another one", by_number},
    {Quantity::kScaleOnly, "scale-only", "the quantization of operand and result",
     "a scale that the factor changes, and the same integers", "other integers", scale_only},
};
static_assert(std::size(kQuantities) == static_cast<std::size_t>(Quantity::kCount));

struct Condition {
  When when;
  std::string_view name, text;
  bool (*holds)(const NodeView&);
};

bool has_bits(const NodeView& view, std::initializer_list<DType> dtypes) {
  return !view.operands().empty() && std::ranges::find(dtypes, view.input().dtype) != dtypes.end();
}
bool pads(const NodeView& view) {
  const std::optional<Window> window = window_of(view);
  return window && is_padded(window->padding);
}
bool is_transposed(const NodeView& view) {
  const auto* conv = get_if<ConvAttrs>(view.node.attrs.get());
  return conv != nullptr && conv->transposed;
}

constexpr Condition kConditions[] = {
    {When::kAlways, "always", "", [](const NodeView&) { return true; }},
    {When::kPadded, "padded", " with padding", pads},
    {When::kUnpadded, "unpadded", " without padding", [](const NodeView& view) { return !pads(view); }},
    {When::kInt32, "int32", " of 32-bit integers",
     [](const NodeView& view) { return has_bits(view, {DType::kI32}); }},
    {When::kNarrow, "narrow", " of 8- or 16-bit integers",
     [](const NodeView& view) { return has_bits(view, {DType::kI8, DType::kU8, DType::kI16}); }},
    {When::kWide, "wide", " of 16-bit integers",
     [](const NodeView& view) { return has_bits(view, {DType::kI16}); }},
    {When::kWideResult, "wide-result", " of 16-bit integers",
     [](const NodeView& view) { return view.result().dtype == DType::kI16; }},
    {When::kNotLast, "not-last", " along another axis than the last",
     [](const NodeView& view) {
       const Numbers last = axis_is_last(view);
       return !last.empty() && last[0] == 0;
     }},
    {When::kBilinear, "bilinear", " with bilinear mode", is_bilinear},
    {When::kHalfPixel, "half-pixel", " with half-pixel centers",
     [](const NodeView& view) { return is_bilinear(view) && aligns_corners(view) == Numbers{0}; }},
    {When::kForward, "forward", "", [](const NodeView& view) { return !is_transposed(view); }},
    {When::kTransposed, "transposed", " that is transposed", is_transposed},
    {When::kByNumber, "by-number", " by a number",
     [](const NodeView& view) { return constant_factor(view.graph, view.node).has_value(); }},
    {When::kByTensor, "by-tensor", "",
     [](const NodeView& view) { return !constant_factor(view.graph, view.node); }},
};

}  // namespace

const QuantityInfo& info(Quantity quantity) { return kQuantities[static_cast<std::size_t>(quantity)]; }
bool holds(When when, const NodeView& view) {
  return kConditions[static_cast<std::size_t>(when)].holds(view);
}
std::string_view text_of(When when) { return kConditions[static_cast<std::size_t>(when)].text; }
std::string_view name_of(When when) { return kConditions[static_cast<std::size_t>(when)].name; }

std::vector<std::string_view> quantity_names() {
  std::vector<std::string_view> out;
  for (const QuantityInfo& row : kQuantities) out.push_back(row.name);
  return out;
}
std::vector<std::string_view> when_names() {
  std::vector<std::string_view> out;
  for (const Condition& row : kConditions) out.push_back(row.name);
  return out;
}

}  // namespace tosaic::claimant
