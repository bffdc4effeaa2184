// Placement: how elements lie in memory, whatever shape they are seen in. Elements are counted in row-major
// order of the logical shape; a reshape changes no count, so a value and its reshapes have one placement.
//
//   f32[1,2,2,4] in order (0,2,3,1)   count = 8 c + 4 h + w, memory h w c:   (8, 1) (2, 8)
//   f32[1,2,4,2] in order (0,2,3,1)   count = 8 c + 2 h + w, memory h w c:   (8, 1) (2, 8)
//
// A run (extent, stride) is an axis of the memory: so many elements whose counts differ by the stride. Runs
// stand outermost first; extents of 1 are left out, and runs that continue one another are one, so equal
// placements have equal runs.
#pragma once

#include <optional>
#include <span>

#include "tosaic/base/small_vector.h"
#include "tosaic/ir/type.h"

namespace tosaic::layout {

struct Run {
  std::int64_t extent = 1, stride = 1;
  bool operator==(const Run&) const = default;
};
using Placement = SmallVector<Run, 4>;

// Of a tensor without axes of extent 0.
[[nodiscard]] Placement placement_of(const Shape& shape, const DimOrder& order);
// The order in which a tensor of that shape has the placement; none if it would have to split an axis.
[[nodiscard]] std::optional<DimOrder> order_with(const Shape& shape, const Placement& placement);

// The placement of permute(x) if no element moves; none if an axis of x does not lie in memory as axes that
// can be told apart: (2,3) of 6 elements that lie as (3,2) do in another order.
[[nodiscard]] std::optional<Placement> relabelled(const Shape& shape, const Placement& placement,
                                                  const Dims& perm);

// A cut of a shape is the number of elements behind one of its axes: (2,3,4) has the cuts 24, 12, 4, 1.
// Ascending, each once, and each divides the next one.
using Cuts = SmallVector<std::int64_t, 10>;
[[nodiscard]] Cuts cuts_of(const Shape& shape);
[[nodiscard]] Cuts cuts_of(const Placement& placement, std::int64_t elements);
// Both; none if no shape has them, since one does not divide the next.
[[nodiscard]] std::optional<Cuts> merged(const Cuts& a, const Cuts& b);
[[nodiscard]] bool contains(const Cuts& cuts, std::int64_t cut);
// The runs between the cuts as they lie in memory under the placement, whose cuts must be among them.
[[nodiscard]] Placement split_at(const Cuts& cuts, const Placement& placement);

}  // namespace tosaic::layout
