// Dim orders of tensors that are moved: how an order reads once axes are permuted, dropped or regrouped.
#pragma once

#include <optional>

#include "tosaic/ir/type.h"

namespace tosaic::layout {

// The order of permute(x) if no element moves: x with `order` relabelled by `perm`.
[[nodiscard]] DimOrder relabelled(const DimOrder& order, const Dims& perm);
// The order of x with `axes` removed.
[[nodiscard]] DimOrder without_axes(const DimOrder& order, std::size_t rank, const Dims& axes);
// The reverse: axes of a result placed each behind the one that precedes it logically.
[[nodiscard]] DimOrder with_axes(const DimOrder& order, std::size_t rank, const Dims& axes);
// Axes in memory, outermost first, with those of `rank` that the sequence lacks placed likewise.
[[nodiscard]] DimOrder completed(Dims sequence, std::size_t rank);
// The same order with one axis moved behind all others.
[[nodiscard]] DimOrder with_innermost(const DimOrder& order, std::size_t rank, std::int64_t axis);
// The order of the last axes of x, `rank` of them, when those in front have extent 1.
[[nodiscard]] DimOrder trailing(const DimOrder& order, std::size_t from, std::size_t rank);
// True if a tensor of this logical shape lies in memory alike under both orders (axes of extent 1 do not
// count).
[[nodiscard]] bool same_in_memory(const Shape& shape, const DimOrder& a, const DimOrder& b);
// The order of a reshape to `to` if no element moves. Extents of both shapes are matched in the least groups
// of neighbours with equal products; each group has to lie together, its axes in logical order. None if they
// do not.
[[nodiscard]] std::optional<DimOrder> reshaped(const Shape& from, const DimOrder& order, const Shape& to);

}  // namespace tosaic::layout
