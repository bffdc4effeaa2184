// transpose_steps: a transpose of any number of axes as a sequence of transposes of a few axes.
//
// Between two transposes, neighbouring axes are joined and split by reshapes, which move no element:
//
//   [2,2,2,2,3,4,5] perm (0,4,1,5,2,6,3)       7 axes, and none stays next to its neighbour
//     -> [2,4,2,3,4,5] perm (0,3,2,4,1,5)      6 axes: the axes 1 and 2 move together
//     -> ...
#pragma once

#include <cstddef>
#include <vector>

#include "tosaic/ir/dims.h"

namespace tosaic::passes {

// One transpose: its operand is reshaped to `shape` first. The result has the shape permuted(shape, perm).
struct TransposeStep {
  Shape shape;
  Dims perm;
  bool operator==(const TransposeStep&) const = default;
};

// The transpose with the fewest axes that moves the elements in the same way: axes of extent 1 are dropped,
// and axes that stay side by side are joined. No transpose with fewer axes does it. A tensor of one element
// has one axis.
[[nodiscard]] TransposeStep with_fewest_axes(const Shape& shape, const Dims& perm);

// Transposes of at most `most` axes that together do what one transpose of `shape` by `perm` does. There is
// one step if the transpose has at most `most` axes after joining, and otherwise there are two: one step is
// too few then, since joining is the only way to have fewer axes. If `most` is 6, two steps suffice for all
// permutations of up to 8 axes (kMaxRank; they do for 9 and 10, too). Throws InternalError if two do not
// suffice.
[[nodiscard]] std::vector<TransposeStep> transpose_steps(const Shape& shape, const Dims& perm,
                                                         std::size_t most);

}  // namespace tosaic::passes
