// einsum: parses the equation of an einsum for given operand shapes.
//
//   "...ij,jk->...ik" over [2,3,4,5] and [5,6]:  operands {0,1,i,j} {j,k}, result {0,1,i,k}
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/dims.h"

namespace tosaic {

// A label identifies an axis. A letter may occur more than once in an operand, which selects the diagonal,
// but only once in the result. The axes of an ellipsis have labels of their own; ellipses of different
// lengths are aligned at the last axis.
struct Einsum {
  std::vector<std::vector<int>> operands;
  std::vector<int> result;
  std::map<int, std::int64_t> extents;  // the broadcast extent of each label
  [[nodiscard]] Shape result_shape() const;
};

// Throws InvalidGraph if the equation is malformed or does not fit the shapes.
[[nodiscard]] Einsum parse_einsum(const std::string& equation, std::span<const Shape> shapes);

}  // namespace tosaic
