#include "tosaic/layout/windows.h"

#include <algorithm>
#include <limits>

namespace tosaic::layout {
namespace {

// The window attributes of an operator over images [.., H, W, ..], where H is axis `first_axis`.
struct Site {
  std::size_t first_axis = 2;
  Dims kernel, stride, before;
  bool counts_padding = false;
  std::optional<std::int64_t> divisor = {};
};

struct Part {
  WindowedAxis axis;
  std::int64_t count = 1;  // the elements of a window that a mean counts
};

bool is_one(std::int64_t extent) { return extent == 1; }

std::optional<Part> part_of(const Site& site, std::size_t i, std::int64_t in, std::int64_t out) {
  const std::int64_t size = site.kernel[i], before = site.before[i];
  Part part{{static_cast<std::int64_t>(site.first_axis + i), out, size}, size};
  if (out == 1) {  // one window: its size is that of its part inside of the image
    part.axis.size = std::min(size - before, in);
    part.count = site.counts_padding ? std::min(size, in + 2 * before) : part.axis.size;
    return part.axis.size > 0 ? std::optional(part) : std::nullopt;
  }
  const bool is_dense = site.stride[i] == size && before == 0 && out * size <= in;
  return is_dense ? std::optional(part) : std::nullopt;
}

std::optional<Windows> windows_of(const Graph& graph, const Node& node, const Site& site) {
  const Shape& in = graph.type(graph.operands(node)[0]).shape;
  const Shape& out = graph.type(graph.result(node)).shape;
  Windows windows;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::size_t axis = site.first_axis + i;
    const std::optional<Part> part = part_of(site, i, in[axis], out[axis]);
    if (!part) return std::nullopt;
    windows.axes[i] = part->axis;
    windows.count *= part->count;
  }
  if (site.divisor) windows.count = *site.divisor;
  return windows;
}

// True if at least one axis has a single window of several elements, and the other axis does, too, or is
// unchanged.
bool cover_axes(const Windows& windows) {
  const auto covers = [](const WindowedAxis& axis) { return axis.windows == 1 && axis.size > 1; };
  const auto covers_or_stays = [](const WindowedAxis& axis) { return axis.windows == 1 || axis.size == 1; };
  return std::any_of(windows.axes.begin(), windows.axes.end(), covers) &&
         std::all_of(windows.axes.begin(), windows.axes.end(), covers_or_stays);
}

// True if the sum of a window fits in 32 bits. Each term is an integer minus its zero point, whose magnitude
// is below 2^8 for dtypes of one byte and below 2^16 for dtypes of two bytes.
bool sums_fit(DType dtype, const Windows& windows) {
  const std::int64_t count = windows.axes[0].size * windows.axes[1].size;
  return byte_size(dtype) <= 2 && count <= std::numeric_limits<std::int32_t>::max() >> (8 * byte_size(dtype));
}

// True if the convolution sums each channel on its own: all weights are 1, and there is no bias.
bool sums_channels(const Graph& graph, const Node& node, const IntegerConvAttrs& attrs) {
  const std::span<const ValueId> operands = graph.operands(node);
  const Constant* weight = graph.value(operands[1]).constant.get();
  const std::int64_t channels = graph.type(operands[0]).shape[1];
  if (weight == nullptr || attrs.weight_zp != 0 || (operands.size() > 2 && operands[2].valid())) return false;
  if (attrs.conv.groups != channels || weight->shape[0] != channels || attrs.conv.transposed) return false;
  const Elements elements(*weight);
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (elements.as_int(i) != 1) return false;
  return true;
}

std::optional<Windows> of_pool(const Graph& graph, const Node& node) {
  const auto& attrs = Graph::attrs<PoolAttrs>(node);
  if (attrs.kernel.size() != 2 || !std::all_of(attrs.dilation.begin(), attrs.dilation.end(), is_one))
    return std::nullopt;
  std::optional<Windows> windows = windows_of(
      graph, node,
      {2, attrs.kernel, attrs.stride, attrs.padding, attrs.count_include_pad, attrs.divisor_override});
  return windows && (node.op == Op::kAvgPool || cover_axes(*windows)) ? windows : std::nullopt;
}

std::optional<Windows> of_integer_mean(const Graph& graph, const Node& node) {
  const auto& attrs = Graph::attrs<TosaAvgPoolAttrs>(node);
  const DType dtype = graph.type(graph.operands(node)[0]).dtype;
  if (is_float(dtype)) return std::nullopt;
  std::optional<Windows> windows =
      windows_of(graph, node, {1, attrs.kernel, attrs.stride, {attrs.pad[0], attrs.pad[2]}});
  return windows && sums_fit(dtype, *windows) ? windows : std::nullopt;
}

std::optional<Windows> of_integer_sum(const Graph& graph, const Node& node) {
  const auto& attrs = Graph::attrs<IntegerConvAttrs>(node);
  const DType dtype = graph.type(graph.operands(node)[0]).dtype;
  const Dims& dilation = attrs.conv.dilation;
  if (graph.type(graph.result(node)).dtype != DType::kI32 ||
      !std::all_of(dilation.begin(), dilation.end(), is_one))
    return std::nullopt;
  const Shape& weight = graph.type(graph.operands(node)[1]).shape;
  std::optional<Windows> windows =
      windows_of(graph, node, {2, {weight[2], weight[3]}, attrs.conv.stride, attrs.conv.pad_before});
  return windows && sums_fit(dtype, *windows) && sums_channels(graph, node, attrs) ? windows : std::nullopt;
}

}  // namespace

std::optional<Windows> side_by_side(const Graph& graph, const Node& node) {
  if (node.result_count != 1 || graph.type(graph.result(node)).rank() != 4 ||
      graph.type(graph.operands(node)[0]).rank() != 4)
    return std::nullopt;
  if (holds<PoolAttrs>(*node.attrs)) return of_pool(graph, node);
  if (holds<TosaAvgPoolAttrs>(*node.attrs)) return of_integer_mean(graph, node);
  if (holds<IntegerConvAttrs>(*node.attrs)) return of_integer_sum(graph, node);
  return std::nullopt;
}

}  // namespace tosaic::layout
