// resize_axis: describes which elements one axis of a resize reads, as parameters of TOSA's RESIZE or element
// by element.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// Output o in [0, out) reads position (o * d + offset) / n of the input. `border` is RESIZE's border. Only
// the first `extent` elements of the input take part; the caller has to slice off the others.
struct ResizeAxis {
  std::int64_t n = 1, d = 1, offset = 0, border = 0, extent = 1;
};

// RESIZE's parameters for axis `i` (0: height, 1: width) of a resize of rank 4. Returns nothing if RESIZE
// would compute something else than torch, or if a parameter exceeds the specification's limits or level 8K.
[[nodiscard]] std::optional<ResizeAxis> exact_resize_axis(const ResizeAttrs& attrs, std::size_t i,
                                                          std::int64_t in, std::int64_t out);

// The element that torch's nearest mode reads for each output. `scale` is torch's scale factor; 0 means out /
// in. `whole_steps` is torch's rule for two axes: whatever the scale, each element is read once if out = in,
// and twice if out = 2 * in.
[[nodiscard]] std::vector<std::int64_t> nearest_elements(std::int64_t in, std::int64_t out, double scale,
                                                         bool whole_steps);

// One tap of an interpolation: output o is the sum over all taps of weights[o] * input[elements[o]].
struct ResizeTap {
  std::vector<std::int64_t> elements;  // one for each output
  std::vector<double> weights;
};

// The two taps of torch for a bilinear axis, or its four taps for a bicubic one.
[[nodiscard]] std::vector<ResizeTap> resize_taps(const ResizeAttrs& attrs, std::int64_t in, std::int64_t out,
                                                 double scale);

}  // namespace tosaic::passes
