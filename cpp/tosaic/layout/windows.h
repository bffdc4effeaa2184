// Windows that lie side by side: no element is in two of them, so what is computed of a window is a reduction
// of part of an axis. An operator over such windows may compute in any order of its axes.
//
//   f32[1,8,12,12]  avg_pool, kernel [12,12]              sum over axes 2 and 3, times 1 / 144
//   f32[1,8,20,1]   avg_pool, kernel [4,1], stride [4,1]  seen as [8,5,4,1]: sum over the axis of 4, times 1
//   / 4
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic::layout {

// The first `windows` * `size` elements of an axis.
struct WindowedAxis {
  std::int64_t axis = 0, windows = 1, size = 1;
};

struct Windows {
  std::array<WindowedAxis, 2> axes;
  std::int64_t count = 1;  // what a mean divides its sum by
};

// Of avg_pool, max_pool, tosa.avg_pool2d, and of an integer convolution that sums each channel on its own;
// none where windows overlap, skip elements, or reach into padding while there are several along an axis. A
// maximum has to be of whole axes: MAX_POOL2D in its own order is what a maximum of a few elements each is
// for.
[[nodiscard]] std::optional<Windows> side_by_side(const Graph& graph, const Node& node);

}  // namespace tosaic::layout
