#include "tosaic/ir/scale_grid.h"

#include <algorithm>

namespace tosaic {
namespace {

bool is_axis(const Shape& shape, std::int64_t axis) {
  return axis >= 0 && axis < static_cast<std::int64_t>(shape.size());
}

}  // namespace

const char* scale_grid_fault(const Shape& shape, const std::optional<std::int64_t>& axis,
                             const std::optional<Groups>& groups) {
  if (axis && !is_axis(shape, *axis)) return "an axis of the tensor";
  if (!groups) return nullptr;
  if (!axis) return "an axis of channels in addition to the axis of the groups";
  if (!is_axis(shape, groups->axis) || groups->axis == *axis)
    return "groups along another axis of the tensor";
  if (groups->size < 1 || shape[static_cast<std::size_t>(groups->axis)] % groups->size != 0)
    return "a group size that divides the extent of its axis";
  return nullptr;
}

std::int64_t scale_count(const Shape& shape, const std::optional<std::int64_t>& axis,
                         const std::optional<Groups>& groups) {
  const auto extent = [&](std::int64_t of) { return shape[static_cast<std::size_t>(of)]; };
  return (axis ? extent(*axis) : 1) * (groups ? extent(groups->axis) / groups->size : 1);
}

ScaleGrid::ScaleGrid(const Shape& shape, const std::optional<std::int64_t>& axis,
                     const std::optional<Groups>& groups) {
  run_ = std::max<std::int64_t>(num_elements(shape), 1);
  if (!axis) return;
  const auto elements_behind = [&](std::int64_t of) {
    std::int64_t behind = 1;
    for (std::size_t k = static_cast<std::size_t>(of) + 1; k < shape.size(); ++k) behind *= shape[k];
    return std::max<std::int64_t>(behind, 1);
  };
  channels_ = shape[static_cast<std::size_t>(*axis)];
  behind_channel_ = run_ = elements_behind(*axis);
  if (!groups) return;
  groups_ = shape[static_cast<std::size_t>(groups->axis)] / groups->size;
  if (groups_ == 0) return;
  behind_group_ = elements_behind(groups->axis) * groups->size;
  run_ = std::min(run_, behind_group_);
}

}  // namespace tosaic
