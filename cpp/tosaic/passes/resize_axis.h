// How one axis of a resize is read: as RESIZE can say it, or element by element.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Position of output o: (o * d + offset) / n, for o in [0, out); `border` as RESIZE wants it. `extent` is how
// many elements of the input take part: the rest is cut off behind.
struct ResizeAxis {
  std::int64_t n = 1, d = 1, offset = 0, border = 0, extent = 1;
};

// The axis `i` (0: height, 1: width) of a resize over rank 4, if RESIZE gives what torch gives within the
// specification's limits and level 8K.
[[nodiscard]] std::optional<ResizeAxis> exact_resize_axis(const ResizeAttrs& attrs, std::size_t i,
                                                          std::int64_t in, std::int64_t out);

// torch's nearest element for each output, by the given scale (0: by the extents). `whole_steps`, as it is
// with two axes: whatever the scale, elements are copied where out = in, and taken twice where out = 2 in.
[[nodiscard]] std::vector<std::int64_t> nearest_elements(std::int64_t in, std::int64_t out, double scale,
                                                         bool whole_steps);

// What an output reads of its axis: the sum of elements times weights.
struct ResizeTap {
  std::vector<std::int64_t> elements;  // one for each output
  std::vector<double> weights;
};

// torch's two taps of a bilinear axis, or the four of a bicubic one.
[[nodiscard]] std::vector<ResizeTap> resize_taps(const ResizeAttrs& attrs, std::int64_t in, std::int64_t out,
                                                 double scale);

}  // namespace tosaic::passes
