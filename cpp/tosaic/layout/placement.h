// placement: the places of elements in memory, described independently of the shape.
//
// The count of an element is its index in row-major order of the logical shape. A reshape does not change
// counts, so a value and its reshapes have one placement.
//
//   f32[1,2,2,4] in order (0,2,3,1)   count = 8 c + 4 h + w, memory h w c:   (8, 1) (2, 8)
//   f32[1,2,4,2] in order (0,2,3,1)   count = 8 c + 2 h + w, memory h w c:   (8, 1) (2, 8)
//
// A run (extent, stride) is an axis of the memory. It has `extent` places, and the count grows by `stride`
// from one place to the next. Runs are listed outermost first. Runs of extent 1 are dropped, and runs that
// continue one another are merged, so equal placements have equal runs.
#pragma once

#include <optional>

#include "tosaic/base/small_vector.h"
#include "tosaic/ir/type.h"

namespace tosaic::layout {

struct Run {
  std::int64_t extent = 1, stride = 1;
  bool operator==(const Run&) const = default;
};
using Placement = SmallVector<Run, 4>;

// Adds a run as the innermost one. A run of extent 1 is dropped, and a run that continues the last one is
// merged with it.
void append(Placement& placement, Run run);
// The placement of a tensor of this shape and order. No axis may have extent 0.
[[nodiscard]] Placement placement_of(const Shape& shape, const DimOrder& order);
// The order in which a tensor of this shape has the placement. Returns nothing if an axis would have to be
// split.
[[nodiscard]] std::optional<DimOrder> order_with(const Shape& shape, const Placement& placement);

// The placement of permute(x) if no element moves. Returns nothing if the runs cannot be split into parts
// that are each within one axis of x. Example: x has shape (2,3), and its 6 elements are placed as a (3,2)
// tensor in order (1,0).
[[nodiscard]] std::optional<Placement> relabelled(const Shape& shape, const Placement& placement,
                                                  const Dims& perm);

// The cuts of a shape are its row-major strides and its number of elements: (2,3,4) has the cuts 1, 4, 12,
// 24. Cuts are in ascending order without duplicates, and each divides the next one.
using Cuts = SmallVector<std::int64_t, 10>;
[[nodiscard]] Cuts cuts_of(const Shape& shape);
[[nodiscard]] Cuts cuts_of(const Placement& placement, std::int64_t elements);
// All cuts of both lists. Returns nothing if no shape has all of them, since some cut does not divide the
// next.
[[nodiscard]] std::optional<Cuts> merged(const Cuts& a, const Cuts& b);
[[nodiscard]] bool contains(const Cuts& cuts, std::int64_t cut);
// The placement with its runs split at the cuts: one run from each cut to the next, in memory order. `cuts`
// must include the cuts of the placement.
[[nodiscard]] Placement split_at(const Cuts& cuts, const Placement& placement);

}  // namespace tosaic::layout
