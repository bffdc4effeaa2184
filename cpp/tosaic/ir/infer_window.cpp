// Result types of pools and resize. Operands are (C, spatial...) or (N, C, spatial...) with 1 to 3 spatial
// axes.
#include <cmath>

#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {
namespace {

// The first spatial axis of operand 0. The spatial axes must be non-empty, and unless `no_channels` the axis
// of channels, too. `sizes` is the name of the attribute that has `spatial` entries, for messages.
std::size_t first_spatial_axis(const Call& call, std::size_t spatial, const char* sizes,
                               bool no_channels = false) {
  if (spatial < 1 || spatial > 3)
    call.fail(std::string("wrong number of entries in '") + sizes + "'", "1 to 3", std::to_string(spatial));
  call.require_rank_between(0, spatial + 1, spatial + 2);
  const std::size_t rank = call.operand(0).rank();
  for (std::size_t axis = rank - spatial - (no_channels ? 0 : 1); axis < rank; ++axis)
    call.require_nonempty_axis(0, axis);
  return rank - spatial;
}

void require_pool_attrs(const Call& call, const PoolAttrs& attrs, std::size_t spatial) {
  call.require_size("stride", attrs.stride, spatial);
  call.require_size("padding", attrs.padding, spatial);
  if (!attrs.dilation.empty()) call.require_size("dilation", attrs.dilation, spatial);
  call.require_at_least("kernel", attrs.kernel, 1);
  call.require_at_least("stride", attrs.stride, 1);
  call.require_at_least("padding", attrs.padding, 0);
  call.require_at_least("dilation", attrs.dilation, 1);
  if (call.op() == Op::kMaxPool) {
    call.require_size("dilation", attrs.dilation, spatial);
    return;
  }
  for (const std::int64_t dilation : attrs.dilation)
    if (dilation != 1) call.fail("'dilation' is not taken", "ones", to_string(attrs.dilation));
  if (attrs.divisor_override && *attrs.divisor_override == 0)
    call.fail("attribute 'divisor_override'", "not 0", "0");
}

// torch's rule: with ceil_mode the last window may extend beyond the right pad, but it must start in the
// input or in the left pad.
std::int64_t pool_extent(const Call& call, const PoolAttrs& attrs, std::size_t s, std::int64_t in) {
  const std::int64_t dilation = attrs.dilation.empty() ? 1 : attrs.dilation[s];
  const std::int64_t stride = attrs.stride[s], pad = attrs.padding[s];
  const std::int64_t reach = call.plus(call.times(dilation, call.minus(attrs.kernel[s], 1)), 1);
  if (pad > attrs.kernel[s] / 2)
    call.fail("'padding' on spatial axis " + std::to_string(s),
              "at most half of the kernel " + std::to_string(attrs.kernel[s]), std::to_string(pad));
  const std::int64_t room = call.minus(call.plus(in, call.times(pad, 2)), reach);
  const std::int64_t numerator = attrs.ceil_mode ? call.plus(room, stride - 1) : room;
  const std::int64_t rounded_down = numerator / stride - (numerator % stride < 0 ? 1 : 0);
  std::int64_t out = call.plus(rounded_down, 1);
  if (attrs.ceil_mode && call.times(out - 1, stride) >= call.plus(in, pad)) --out;
  if (out < 1)
    call.fail("the result is empty on spatial axis " + std::to_string(s), "at least 1", std::to_string(out));
  return out;
}

// Let `size` be the extent of the result. Requires |in * scale - size| <= 1 + 1e-6 * size: with other scales,
// source positions would be far outside the input.
void require_scale(const Call& call, const ResizeAttrs& attrs, std::size_t s, std::int64_t in) {
  const double scale = attrs.scales[s];
  const bool usable = std::isfinite(scale) && scale > 0;
  const double expected = static_cast<double>(attrs.size[s]);
  if (!usable || std::abs(static_cast<double>(in) * scale - expected) > 1.0 + 1e-6 * expected)
    call.unsupported("'scales' disagrees with 'size' on spatial axis " + std::to_string(s),
                     "about " + std::to_string(expected / static_cast<double>(in)), std::to_string(scale));
}

}  // namespace

Types infer_pool(const Call& call) {
  const auto& attrs = call.attrs<PoolAttrs>();
  call.require_number(0);
  const std::size_t spatial = attrs.kernel.size();
  const std::size_t first = first_spatial_axis(call, spatial, "kernel");
  require_pool_attrs(call, attrs, spatial);
  Shape shape = call.operand(0).shape;
  for (std::size_t s = 0; s < spatial; ++s) shape[first + s] = pool_extent(call, attrs, s, shape[first + s]);
  return single_result(call.operand(0).dtype, shape);
}

Types infer_adaptive_pool(const Call& call) {
  const Shape& target = call.attrs<ShapeAttrs>().shape;
  if (call.op() == Op::kAdaptiveAvgPool)
    call.require_float(0);
  else
    call.require_number(0);
  const std::size_t first =
      first_spatial_axis(call, target.size(), "shape", call.op() == Op::kAdaptiveAvgPool);
  call.require_at_least("shape", target, 0);
  Shape shape = call.operand(0).shape;
  for (std::size_t s = 0; s < target.size(); ++s) shape[first + s] = target[s];
  return single_result(call.operand(0).dtype, shape);
}

Types infer_resize(const Call& call) {
  const auto& attrs = call.attrs<ResizeAttrs>();
  call.require_number(0);
  const std::size_t spatial = attrs.size.size();
  const std::size_t first = first_spatial_axis(call, spatial, "size");
  call.require_at_least("size", attrs.size, 1);
  if (attrs.mode == ResizeMode::kNearest && attrs.align_corners)
    call.fail("'align_corners' with mode nearest", "false", "true");
  if (!attrs.scales.empty() && attrs.scales.size() != spatial)
    call.fail("wrong number of entries in 'scales'", std::to_string(spatial),
              std::to_string(attrs.scales.size()));
  Shape shape = call.operand(0).shape;
  for (std::size_t s = 0; s < spatial; ++s) {
    if (!attrs.scales.empty()) require_scale(call, attrs, s, shape[first + s]);
    shape[first + s] = attrs.size[s];
  }
  return single_result(call.operand(0).dtype, shape);
}

}  // namespace tosaic::rules
