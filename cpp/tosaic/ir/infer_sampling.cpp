// Result types of samplers: operators that make grids of positions or sample images at such positions.
#include "tosaic/ir/infer_rules.h"

namespace tosaic::rules {

// The input is (N, C, H, W), the grid (N, H', W', 2), and the result (N, C, H', W').
Types infer_grid_sample(const Call& call) {
  call.require_float(0);
  call.require_same_dtype(1, 0);
  call.require_rank(0, 4);
  call.require_rank(1, 4);
  const Shape& grid = call.operand(1).shape;
  const Shape& input = call.operand(0).shape;
  call.require_extent(1, 0, input[0]);
  call.require_extent(1, 3, 2);
  call.require_nonempty_axis(0, 2);
  call.require_nonempty_axis(0, 3);
  return single_result(call.operand(0).dtype, {input[0], input[1], grid[1], grid[2]});
}

// theta is (N, 2, 3) for images and (N, 3, 4) for volumes. The result is (N, H, W, 2) or (N, D, H, W, 3).
Types infer_affine_grid(const Call& call) {
  const Dims& size = call.attrs<AffineGridAttrs>().size;
  call.require_float(0);
  call.require_rank(0, 3);
  if (size.size() != 4 && size.size() != 5)
    call.fail("wrong number of entries in 'size'", "4 or 5", to_string(size));
  call.require_at_least("size", size, 1);
  const auto spatial = static_cast<std::int64_t>(size.size()) - 2;
  call.require_extent(0, 0, size[0]);
  call.require_extent(0, 1, spatial);
  call.require_extent(0, 2, spatial + 1);
  Shape shape{size[0]};
  for (std::size_t i = 2; i < size.size(); ++i) shape.push_back(size[i]);
  shape.push_back(spatial);
  return single_result(call.operand(0).dtype, shape);
}

}  // namespace tosaic::rules
