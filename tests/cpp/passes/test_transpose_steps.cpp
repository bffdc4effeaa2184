#include "tosaic/passes/legalize_tosa/transpose_steps.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

namespace tosaic::passes {
namespace {

std::vector<int> transposed(const std::vector<int>& elements, const Shape& shape, const Dims& perm) {
  const Dims strides = permuted(contiguous_strides(shape), perm);
  const Shape result = permuted(shape, perm);
  std::vector<int> out(elements.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::size_t rest = i, from = 0;
    for (std::size_t axis = result.size(); axis-- > 0;) {
      from += rest % static_cast<std::size_t>(result[axis]) * static_cast<std::size_t>(strides[axis]);
      rest /= static_cast<std::size_t>(result[axis]);
    }
    out[i] = elements[from];
  }
  return out;
}

// True if the steps move the elements as one transpose does, and none has more than 6 axes.
bool moves_alike(const Shape& shape, const Dims& perm, const std::vector<TransposeStep>& steps) {
  std::vector<int> elements(static_cast<std::size_t>(num_elements(shape)));
  std::iota(elements.begin(), elements.end(), 0);
  std::vector<int> moved = elements;
  for (const TransposeStep& step : steps) {
    if (step.shape.size() > 6 || num_elements(step.shape) != num_elements(shape)) return false;
    moved = transposed(moved, step.shape, step.perm);
  }
  return moved == transposed(elements, shape, perm);
}

TEST_CASE("axes of extent 1 and axes that stay side by side do not count") {
  CHECK(with_fewest_axes({2, 1, 3, 4, 1, 5}, {2, 4, 3, 0, 1, 5}) == TransposeStep{{2, 12, 5}, {1, 0, 2}});
  CHECK(with_fewest_axes({2, 3, 4}, {0, 1, 2}) == TransposeStep{{24}, {0}});
  CHECK(with_fewest_axes({1, 1}, {1, 0}) == TransposeStep{{1}, {0}});
}

TEST_CASE("every transpose of 7 or 8 axes takes one step if 6 axes are left, and otherwise two") {
  for (const Shape& shape :
       {Shape{2, 1, 2, 3, 2, 1, 2}, Shape{2, 2, 2, 2, 2, 2, 2}, Shape{2, 1, 2, 2, 2, 2, 2, 2}}) {
    Dims perm = Dims::iota(shape.size());
    std::size_t wrong = 0;
    do {
      const std::vector<TransposeStep> steps = transpose_steps(shape, perm, 6);
      const std::size_t expected = with_fewest_axes(shape, perm).shape.size() > 6 ? 2 : 1;
      wrong += steps.size() == expected && moves_alike(shape, perm, steps) ? 0 : 1;
    } while (std::next_permutation(perm.begin(), perm.end()));
    INFO(to_string(shape));
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace tosaic::passes
