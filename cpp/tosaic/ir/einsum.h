// The equation of an einsum, read over the shapes of its operands.
//
//   "...ij,jk->...ik" over [2,3,4,5] and [5,6]:  operands {0,1,i,j} {j,k}, result {0,1,i,k}
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/dims.h"

namespace tosaic {

// Labels name axes; a letter may stand twice in an operand (its diagonal), never in the result. The axes of
// an ellipsis have labels of their own, aligned at their ends.
struct Einsum {
  std::vector<std::vector<int>> operands;
  std::vector<int> result;
  std::map<int, std::int64_t> extents;  // the broadcast one of each label
  [[nodiscard]] Shape result_shape() const;
};

// Throws InvalidGraph where the equation is malformed or does not fit the shapes.
[[nodiscard]] Einsum parse_einsum(const std::string& equation, std::span<const Shape> shapes);

}  // namespace tosaic
