// windows: finds operators whose windows are side by side.
//
// No element is in two windows, so the result of a window is a reduction of a part of an axis. An operator
// over such windows may compute in any order of its axes.
//
//   f32[1,8,12,12]  avg_pool, kernel [12,12]              sum over axes 2 and 3, times 1 / 144
//   f32[1,8,20,1]   avg_pool, kernel [4,1], stride [4,1]  as [8,5,4,1]: sum over the axis of 4,
//                                                         times 1 / 4
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic::layout {

// A row of windows along one axis: `windows` of them, of `size` elements each, from the first element of the
// axis on.
struct WindowedAxis {
  std::int64_t axis = 0, windows = 1, size = 1;
};

struct Windows {
  std::array<WindowedAxis, 2> axes;
  std::int64_t count = 1;  // the divisor of a mean
};

// The windows of avg_pool, max_pool, tosa.avg_pool2d (of integers), and of an integer convolution that sums
// each channel on its own. Returns nothing if windows overlap or skip elements, if an axis has several
// windows and one of them reaches into padding, or if sums of integers may exceed 32 bits. A max_pool must
// have only one window along each axis that it reduces: for maxima of a few elements each, MAX_POOL2D in its
// own order is better.
[[nodiscard]] std::optional<Windows> side_by_side(const Graph& graph, const Node& node);

}  // namespace tosaic::layout
