// Result types of samplers: operators that make grids of positions or sample images at such positions.
#include "tosaic/ir/infer_rules.h"
#include "tosaic/ir/integer_sampler.h"

namespace tosaic::rules {
namespace {

// The input is (N, C, H, W), the grid (N, H', W', 2), and the result (N, C, H', W'). A volume has one more
// axis.
Shape sampled_shape(const Call& call, std::size_t spatial) {
  call.require_rank(0, spatial + 2);
  call.require_rank(1, spatial + 2);
  const Shape& grid = call.operand(1).shape;
  const Shape& input = call.operand(0).shape;
  call.require_extent(1, 0, input[0]);
  call.require_extent(1, spatial + 1, static_cast<std::int64_t>(spatial));
  Shape shape{input[0], input[1]};
  for (std::size_t i = 0; i < spatial; ++i) {
    call.require_nonempty_axis(0, i + 2);
    shape.push_back(grid[i + 1]);
  }
  return shape;
}

void require_bits(const Call& call, std::size_t i, bool wide) {
  const DType dtype = call.operand(i).dtype;
  if (dtype != DType::kI8 && dtype != DType::kI16 && !(wide && dtype == DType::kI32))
    call.fail_dtype(i, wide ? "i8, i16 or i32" : "i8 or i16");
}

void require_within(const Call& call, const char* name, std::int64_t value, ValueRange range) {
  if (!range.contains(value))
    call.fail(std::string("attribute '") + name + "'",
              std::to_string(range.low) + " to " + std::to_string(range.high), std::to_string(value));
}

}  // namespace

Types infer_grid_sample(const Call& call) {
  call.require_float(0);
  call.require_same_dtype(1, 0);
  const bool volume = call.operand(0).shape.size() == 5;
  if (volume && call.attrs<GridSampleAttrs>().mode == ResizeMode::kBicubic)
    call.fail("attribute 'mode' of a sampler of volumes", "bilinear or nearest", "bicubic");
  return single_result(call.operand(0).dtype, sampled_shape(call, volume ? 3 : 2));
}

// The zero point of the image is an integer of i8, and 0 for i16. An axis has the arithmetic of a RESCALE.
Types infer_integer_grid_sample(const Call& call) {
  const auto& attrs = call.attrs<IntegerGridSampleAttrs>();
  require_bits(call, 0, false);
  require_bits(call, 1, true);
  const Shape shape = sampled_shape(call, 2);
  const DType input = call.operand(0).dtype, grid = call.operand(1).dtype;
  const auto limits = [](DType dtype) { return *integer_limits(dtype); };
  const auto zero_points = [&](DType dtype) {
    return dtype == DType::kI8 ? limits(dtype) : ValueRange{0, 0};
  };
  require_within(call, "input_zp", attrs.input_zp, zero_points(input));
  require_within(call, "input_low", attrs.input_low, limits(input));
  require_within(call, "grid_zp", attrs.grid_zp, zero_points(grid));
  require_within(call, "grid_low", attrs.grid_low, limits(grid));
  require_within(call, "grid_high", attrs.grid_high, {attrs.grid_low, limits(grid).high});
  for (const auto* list : {&attrs.multiplier, &attrs.shift, &attrs.fraction})
    if (list->size() != 2)
      call.fail("wrong number of entries in 'multiplier', 'shift' or 'fraction'", "2",
                std::to_string(list->size()));
  for (std::size_t i = 0; i < 2; ++i) {
    require_within(call, "multiplier", attrs.multiplier[i], {0, kInt32Values.high});
    require_within(call, "shift", attrs.shift[i], {kMinShift, kMaxShift});
    require_within(call, "fraction", attrs.fraction[i], {1, kMostFractionBits});
  }
  return single_result(attrs.sample.mode == ResizeMode::kNearest ? input : DType::kI32, shape);
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
