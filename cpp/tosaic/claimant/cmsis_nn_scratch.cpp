// The source of the sizes is CMSIS-NN at commit 99f736a6, compiled by GCC or Clang: its functions
// *_get_buffer_size, or its kernels if they need more than these functions say. ExecuTorch's Cortex-M backend
// decides which kernel a convolution gets.
#include "tosaic/claimant/cmsis_nn_scratch.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>

namespace tosaic::claimant {
namespace {

constexpr std::int64_t kSumBytes = 4;  // of an int32

std::int64_t rounded_up(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit * unit; }

// A convolution as the kernels see it: images with channels; one stride, padding and dilation for each axis.
// A convolution over one axis has images of height 1.
struct Convolution {
  struct Axis {
    std::int64_t in = 1, kernel = 1, out = 1, stride = 1, pad = 0, dilation = 1;
  };
  Axis height, width;
  std::int64_t batch = 1, in_channels = 1, out_channels = 1, groups = 1;
  bool transposed = false;

  [[nodiscard]] std::int64_t kernel_area() const { return height.kernel * width.kernel; }
  [[nodiscard]] bool dilates() const { return height.dilation != 1 || width.dilation != 1; }
  [[nodiscard]] bool pads() const { return height.pad != 0 || width.pad != 0; }
};

std::optional<Convolution> convolution_of(const Graph& graph, const Node& node) {
  const auto& conv = Graph::attrs<ConvAttrs>(node);
  const Shape& in = graph.type(graph.operands(node)[0]).shape;
  const Shape& weight = graph.type(graph.operands(node)[1]).shape;
  const Shape& out = graph.type(graph.result(node)).shape;
  const std::size_t axes = conv.stride.size();
  if (axes == 0 || axes > 2) return std::nullopt;
  Convolution found;
  found.batch = in[0];
  found.in_channels = in[1];
  found.out_channels = out[1];
  found.groups = conv.groups;
  found.transposed = conv.transposed;
  const auto axis = [&](std::size_t i) {
    return Convolution::Axis{in[2 + i],      weight[2 + i],      out[2 + i],
                             conv.stride[i], conv.pad_before[i], conv.dilation[i]};
  };
  found.width = axis(axes - 1);
  if (axes == 2) found.height = axis(0);
  return found;
}

// ---- 8 bits ----

// Kernels for vectors gather the windows of four results as 16-bit integers, other kernels those of two.
std::int64_t gathered_bytes(const Convolution& conv, CmsisNnKernels kernels) {
  const std::int64_t window = conv.kernel_area() * conv.in_channels;
  return kernels == CmsisNnKernels::kMve ? 4 * rounded_up(window, 16) : 2 * 2 * rounded_up(window, 4);
}

// The number of results of a row whose windows reach over an end that has `pad` elements of padding.
std::int64_t results_at_end(std::int64_t pad, std::int64_t stride) {
  return pad == 0 ? 0 : std::max<std::int64_t>(1, (pad + stride - 1) / stride);
}

// Convolutions along rows read the input in place, but for the ends of a row, which they copy with the
// padding.
std::int64_t row_bytes(const Convolution& conv) {
  const Convolution::Axis& row = conv.width;
  const std::int64_t uneven = ((row.out - 1) * row.stride + row.kernel - row.in) % 2;
  const std::int64_t left = results_at_end(row.pad, row.stride);
  const std::int64_t right = results_at_end(row.pad + uneven, row.stride);
  if (left + right > row.out) return gathered_bytes(conv, CmsisNnKernels::kMve);
  const std::int64_t first = row.kernel + row.pad;
  const std::int64_t last = row.kernel - 1 + (uneven != 0 ? right : row.pad);
  return std::max(first, last) * conv.in_channels;
}

std::int64_t dense_bytes(const Convolution& conv, CmsisNnKernels kernels) {
  const bool grouped = conv.groups != 1;
  if (conv.kernel_area() == 1 && !conv.pads() && !conv.dilates() && !grouped)
    return 0;  // a product of matrices
  const bool along_rows = conv.height.in == 1 && conv.height.kernel == 1 && conv.width.dilation == 1 &&
                          conv.width.stride * conv.in_channels % 4 == 0 && !grouped;
  return along_rows && kernels == CmsisNnKernels::kMve ? row_bytes(conv) : gathered_bytes(conv, kernels);
}

std::int64_t depthwise_bytes(const Convolution& conv, CmsisNnKernels kernels) {
  constexpr std::int64_t kBlock = 124;  // the channels that a kernel for vectors handles together
  if (kernels == CmsisNnKernels::kPlain) return 0;
  const bool vectors = kernels == CmsisNnKernels::kMve;
  // With one input channel it is a dense convolution. The kernel transposes the weights first.
  if (vectors && conv.in_channels == 1 && conv.out_channels > 1)
    return dense_bytes(conv, kernels) + conv.out_channels * conv.kernel_area();
  if (conv.in_channels != conv.out_channels || conv.dilates()) return 0;
  if (vectors) return 4 * kBlock * conv.kernel_area();
  const bool has_own_kernel =
      conv.height.kernel == 3 && conv.width.kernel == 3 && conv.height.pad <= 1 && conv.width.pad <= 1;
  return has_own_kernel ? 0 : 2 * conv.in_channels * conv.kernel_area();
}

std::int64_t transposed_bytes(const Convolution& conv, CmsisNnKernels kernels) {
  const Convolution::Axis &y = conv.height, &x = conv.width;
  // The kernel convolves the upsampled image. A second buffer has the reversed weights.
  if (y.stride <= 2 && x.stride <= 2 && conv.in_channels > 16)
    return gathered_bytes(conv, kernels) + conv.in_channels * conv.kernel_area() * conv.out_channels;
  // The buffer has sums for all output rows to which one input row adds. CMSIS-NN's size function uses the
  // stride of the height where the kernel uses the stride of the width: too little if the width's is larger.
  const std::int64_t columns = (x.in - 1) * x.stride + std::max({x.kernel, x.stride, y.stride});
  return columns * std::max(y.kernel, y.stride) * conv.out_channels * kSumBytes;
}

// ---- 16 bits ----

std::int64_t wide_dense_bytes(const Convolution& conv, CmsisNnKernels kernels) {
  const std::int64_t window = conv.kernel_area() * conv.in_channels;
  return 2 * (kernels == CmsisNnKernels::kMve ? 4 * rounded_up(window, 8) : 2 * window);
}

std::int64_t wide_depthwise_bytes(const Convolution& conv, CmsisNnKernels kernels) {
  const bool has_fast_kernel =
      conv.in_channels == conv.out_channels && !conv.dilates() && conv.kernel_area() < 512;
  if (!has_fast_kernel || kernels == CmsisNnKernels::kPlain) return 0;
  const std::int64_t window = 2 * conv.in_channels * conv.kernel_area();
  return kernels == CmsisNnKernels::kMve ? 4 * window + 8
                                         : window;  // a vector may reach 8 bytes over the end
}

// ---- operators ----

std::int64_t conv_bytes(const Graph& graph, const Node& node, bool wide, CmsisNnKernels kernels) {
  const std::optional<Convolution> conv = convolution_of(graph, node);
  if (!conv) return 0;
  const bool depthwise = !conv->transposed && conv->groups == conv->in_channels;
  if (wide) {
    if (conv->transposed || (conv->groups != 1 && !depthwise)) return 0;  // no kernel
    return depthwise ? wide_depthwise_bytes(*conv, kernels) : wide_dense_bytes(*conv, kernels);
  }
  if (conv->transposed) return transposed_bytes(*conv, kernels);
  // Kernels for depthwise convolutions are fast for one image only.
  return depthwise && conv->batch == 1 ? depthwise_bytes(*conv, kernels) : dense_bytes(*conv, kernels);
}

// Products of int8 matrices correct for the zero point of the input by the sums of the weights: one for each
// column of the result.
std::int64_t weight_sum_bytes(const Graph& graph, const Node& node, bool wide, CmsisNnKernels kernels) {
  const Shape& out = graph.type(graph.result(node)).shape;
  return wide || out.empty() || kernels != CmsisNnKernels::kMve ? 0 : out.back() * kSumBytes;
}

// One sum for each channel. A mean over images is an average pool.
std::int64_t average_bytes(const Graph& graph, const Node& node, bool /*wide*/, CmsisNnKernels kernels) {
  const Shape& in = graph.type(graph.operands(node)[0]).shape;
  const std::int64_t channels = in.size() < 3 ? 1 : in[in.size() - 3];
  return kernels == CmsisNnKernels::kDsp && in.size() <= 4 ? channels * kSumBytes : 0;
}

// The operators whose kernels have buffers.
struct Row {
  Op op;
  std::int64_t (*bytes)(const Graph& graph, const Node& node, bool wide, CmsisNnKernels kernels);
};

constexpr Row kRows[] = {
    {Op::kConv, conv_bytes},       {Op::kLinear, weight_sum_bytes},       {Op::kMatmul, weight_sum_bytes},
    {Op::kAvgPool, average_bytes}, {Op::kAdaptiveAvgPool, average_bytes}, {Op::kMean, average_bytes},
};

}  // namespace

std::int64_t scratch_bytes(const Graph& graph, const Node& node, CmsisNnKernels kernels) {
  const std::span<const ValueId> operands = graph.operands(node);
  if (operands.empty() || !operands[0].valid()) return 0;
  const DType dtype = graph.type(operands[0]).dtype;
  if (dtype != DType::kI8 && dtype != DType::kI16) return 0;
  const bool wide = dtype == DType::kI16;
  const auto* const row = std::ranges::find(kRows, node.op, &Row::op);
  return row == std::end(kRows) ? 0 : row->bytes(graph, node, wide, kernels);
}

}  // namespace tosaic::claimant
