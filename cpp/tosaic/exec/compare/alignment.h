// alignment: how the axes of a value of b map to the axes of the value of a that it is compared with.
//
//   a [1,8,6,6]    b [1,6,6,8]   permuted: axis i of b is axis (0,2,3,1)[i] of a
//   a [8,30]       b [8,3,10]    regrouped: the same elements in the same order
//   a [8,3,5]      b [24,5]      permuted by (1,0,2) and then regrouped
#pragma once

#include <vector>

#include "tosaic/exec/local_error.h"

namespace tosaic::exec {

// By default, axis i of b's value is axis permutation[i], and the permuted value is then reshaped to a's
// shape. If `regrouped_first`, b's value is first reshaped to permuted(a's shape, permutation), because b has
// joined or split axes after it permuted them. Then the permutation is undone. If `reshaped`, the elements
// are in the same order though the extents look permuted: [2,3] viewed as [1,3,2].
struct Alignment {
  Dims permutation;  // empty: none
  bool regrouped_first = false;
  bool reshaped = false;
};

// b's value in a's shape. Returns no data if the shapes do not fit.
[[nodiscard]] Held aligned(const ArrayView& view, const Shape& shape, const Alignment& alignment);

// True if both permutations order the axes with more than one element alike.
[[nodiscard]] bool is_same_permutation(const Shape& shape, const Dims& a, const Dims& b);

// All alignments of a value of shape `from` to the shape `to`. The alignments without permutation come first,
// then channels last, then all other permutations. A reshape that looks like a permutation is the last one,
// and only between values with different numbers of axes.
[[nodiscard]] std::vector<Alignment> alignments(const Shape& from, const Shape& to);
// The alignments by those `orders` that fit the shapes. Any other order would be an error of b, which the
// comparison must not hide. If none of the orders fits the shapes, returns all alignments.
[[nodiscard]] std::vector<Alignment> alignments_among(const std::vector<Dims>& orders, const Shape& from,
                                                      const Shape& to);

}  // namespace tosaic::exec
