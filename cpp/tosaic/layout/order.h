// order: computes the dim order that results if axes are permuted, dropped, added or regrouped and no element
// moves.
#pragma once

#include <optional>

#include "tosaic/ir/type.h"

namespace tosaic::layout {

// The order of permute(x, perm) if x has `order` and no element moves.
[[nodiscard]] DimOrder relabelled(const DimOrder& order, const Dims& perm);
// The order of x, which has `rank` axes, after `axes` are removed.
[[nodiscard]] DimOrder without_axes(const DimOrder& order, std::size_t rank, const Dims& axes);
// The reverse of without_axes: the order of x, which has `rank` axes, if `order` is that of x without `axes`.
// Each of `axes` is placed in memory directly after the axis that precedes it logically; axis 0 is placed
// outermost.
[[nodiscard]] DimOrder with_axes(const DimOrder& order, std::size_t rank, const Dims& axes);
// The order of `rank` axes that are in memory as `sequence` lists them, outermost first. Axes that
// `sequence` lacks are placed as by with_axes.
[[nodiscard]] DimOrder completed(Dims sequence, std::size_t rank);
// The same order with `axis` moved to the innermost place.
[[nodiscard]] DimOrder with_innermost(const DimOrder& order, std::size_t rank, std::int64_t axis);
// The order of the last `rank` axes of x, which has `from` axes. The axes in front of them have extent 1.
[[nodiscard]] DimOrder trailing(const DimOrder& order, std::size_t from, std::size_t rank);
// True if a tensor of this logical shape has the same elements in the same places of memory under both
// orders: axes of extent 1 may be anywhere.
[[nodiscard]] bool same_in_memory(const Shape& shape, const DimOrder& a, const DimOrder& b);
// The order of a reshape from `from` to `to`, if no element moves. The extents of both shapes are matched in
// the smallest groups of neighbouring axes that have equal products. The axes of each group must be adjacent
// in memory and in logical order. If they are not, returns nothing.
//
//   (2,3,4) -> (6,4)   groups {0,1} -> {0}, {2} -> {1}   order (2,0,1) becomes (1,0); (0,2,1) has none
[[nodiscard]] std::optional<DimOrder> reshaped(const Shape& from, const DimOrder& order, const Shape& to);

// The shape of a tensor in memory: the extents of its axes, outermost first. dims[order[k]] for each k.
[[nodiscard]] Dims physical_dims(const Dims& dims, const DimOrder& order);

}  // namespace tosaic::layout
