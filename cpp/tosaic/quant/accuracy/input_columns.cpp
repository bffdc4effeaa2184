#include "tosaic/quant/accuracy/input_columns.h"

#include "tosaic/base/error.h"

namespace tosaic::quant {
namespace {

void require_shape(bool suits, const Contraction& contraction, const Shape& input) {
  if (suits) return;
  throw LayoutMismatch({.where = "accuracy",
                        .what = "the input does not suit the contraction",
                        .expected = std::to_string(contraction.matrix.inputs()) + " input channels",
                        .got = to_string(input)});
}

}  // namespace

InputColumns::InputColumns(const Contraction& contraction, const Shape& input) {
  const std::size_t least = contraction.kind == ContractionKind::kConv ? contraction.kernel.size() + 1
                            : contraction.kind == ContractionKind::kSecondLastAxis ? 2
                                                                                   : 1;
  require_shape(input.size() >= least, contraction, input);
  const std::size_t axis = input_axis(contraction, input);
  require_shape(input[axis] == contraction.matrix.inputs(), contraction, input);
  if (contraction.kind == ContractionKind::kConv) {
    require_shape(input.size() <= least + 1, contraction, input);
    read_windows(contraction, input);
    return;
  }
  // Rows are [outer, inner]: the axes before and after that of the columns, the last or the last but one.
  std::int64_t outer = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= input[i];
  inner_ = axis + 1 < input.size() ? input[axis + 1] : 1;
  rows_ = outer * inner_;
  outer_stride_ = input[axis] * inner_;
  inner_stride_ = 1;
  channel_stride_ = inner_;
}

void InputColumns::read_windows(const Contraction& contraction, const Shape& input) {
  const ConvAttrs& conv = contraction.conv;
  const std::size_t spatial = contraction.kernel.size(), channels = input.size() - spatial - 1;
  windows_ = true;
  transposed_ = conv.transposed;
  rows_ = channels == 1 ? input[0] : 1;
  for (std::size_t s = 0; s < spatial; ++s) {
    Axis& axis = axes_[3 - spatial + s];
    axis = {.in = input[channels + 1 + s],
            .taps = contraction.kernel[s],
            .stride = conv.stride[s],
            .dilation = conv.dilation[s],
            .pad = conv.pad_before[s]};
    const std::int64_t reach = axis.dilation * (axis.taps - 1) + 1;
    const std::int64_t pads = conv.pad_before[s] + conv.pad_after[s];
    axis.out = transposed_ ? (axis.in - 1) * axis.stride + reach + conv.output_padding[s] - pads
                           : (axis.in + pads - reach) / axis.stride + 1;
    require_shape(axis.in > 0 && axis.out > 0 && (transposed_ || axis.in + pads >= reach), contraction,
                  input);
    channel_stride_ *= axis.in;
    rows_ *= axis.out;
  }
  outer_stride_ = input[channels] * channel_stride_;
}

// The input coordinate that a tap of an output position reads; -1 if there is none.
std::int64_t InputColumns::coordinate(const Axis& axis, std::int64_t out, std::int64_t tap) const {
  std::int64_t at = 0;
  if (transposed_) {
    const std::int64_t moved = out + axis.pad - tap * axis.dilation;
    if (moved < 0 || moved % axis.stride != 0) return -1;
    at = moved / axis.stride;
  } else {
    at = out * axis.stride + tap * axis.dilation - axis.pad;
  }
  return at >= 0 && at < axis.in ? at : -1;
}

void InputColumns::offsets(std::int64_t row, std::int64_t tap, std::span<std::int64_t> out) const {
  if (!windows_) {
    for (std::int64_t& offset : out) {
      offset = row / inner_ * outer_stride_ + row % inner_ * inner_stride_;
      ++row;
    }
    return;
  }
  const auto& [d, h, w] = axes_;
  const std::int64_t tap_d = tap / (h.taps * w.taps), tap_h = tap / w.taps % h.taps, tap_w = tap % w.taps;
  for (std::int64_t& offset : out) {
    const std::int64_t at_w = coordinate(w, row % w.out, tap_w);
    const std::int64_t at_h = coordinate(h, row / w.out % h.out, tap_h);
    const std::int64_t at_d = coordinate(d, row / (w.out * h.out) % d.out, tap_d);
    const std::int64_t batch = row / (w.out * h.out * d.out);
    const bool inside = at_w >= 0 && at_h >= 0 && at_d >= 0;
    offset = inside ? batch * outer_stride_ + (at_d * h.in + at_h) * w.in + at_w : -1;
    ++row;
  }
}

}  // namespace tosaic::quant
