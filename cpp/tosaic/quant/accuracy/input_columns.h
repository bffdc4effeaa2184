// input_columns: where the columns of a contraction are in its input.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tosaic/quant/accuracy/contraction.h"

namespace tosaic::quant {

// The input element of a row and a column (channel, tap) is at offset(row, tap) + channel * channel_stride. A
// tap outside the image has no element.
class InputColumns {
 public:
  // Throws LayoutMismatch for a shape that does not suit the contraction.
  InputColumns(const Contraction& contraction, const Shape& input);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t channel_stride() const { return channel_stride_; }
  // Writes the offsets of rows [row, row + out.size()) for a tap; -1 outside the image.
  void offsets(std::int64_t row, std::int64_t tap, std::span<std::int64_t> out) const;

 private:
  struct Axis {
    std::int64_t in = 1, out = 1, taps = 1, stride = 1, dilation = 1, pad = 0;
  };
  void read_windows(const Contraction& contraction, const Shape& input);
  [[nodiscard]] std::int64_t coordinate(const Axis& axis, std::int64_t out, std::int64_t tap) const;

  std::int64_t rows_ = 0, channel_stride_ = 1;
  std::int64_t inner_ = 1, outer_stride_ = 1, inner_stride_ = 0;  // without windows
  bool windows_ = false, transposed_ = false;
  std::array<Axis, 3> axes_;
};

}  // namespace tosaic::quant
