#include "run_kernel.h"

#include "tosaic/base/error.h"

namespace tosaic::kernels::testing {
namespace {

Call resize(ResizeAttrs attrs, Array input) {
  Shape shape = input.shape;
  const std::size_t first = shape.size() - attrs.size.size();
  for (std::size_t i = 0; i < attrs.size.size(); ++i) shape[first + i] = attrs.size[i];
  return {.op = Op::kResize,
          .attrs = std::move(attrs),
          .operands = {input},
          .dtype = input.dtype,
          .shape = shape};
}

Array line(std::vector<double> values) {
  const auto extent = static_cast<std::int64_t>(values.size());
  return array(DType::kF32, {1, 1, extent}, std::move(values));
}

TEST_CASE("nearest takes the floor of the scaled coordinate") {
  CHECK(reference(resize({ResizeMode::kNearest, {5}, false, {}}, line({0, 1, 2}))) ==
        std::vector<double>{0, 0, 1, 1, 2});
  CHECK(reference(resize({ResizeMode::kNearest, {2}, false, {}}, line({0, 1, 2, 3, 4}))) ==
        std::vector<double>{0, 2});
}

TEST_CASE("nearest over two axes copies an axis of unchanged extent, whatever the scale factor") {
  const Array image = array(DType::kF32, {1, 1, 2, 1}, {0, 1});
  CHECK(reference(resize({ResizeMode::kNearest, {2, 1}, false, {1.3, 1.0}}, image)) ==
        std::vector<double>{0, 1});
  CHECK(reference(resize({ResizeMode::kNearest, {2}, false, {1.3}}, line({0, 1}))) ==
        std::vector<double>{0, 0});
}

TEST_CASE("bilinear samples at half-pixel positions and clamps at the edge of the image") {
  CHECK(reference(resize({ResizeMode::kBilinear, {4}, false, {}}, line({0, 4}))) ==
        std::vector<double>{0, 1, 3, 4});
  CHECK(reference(resize({ResizeMode::kBilinear, {3}, true, {}}, line({0, 4}))) ==
        std::vector<double>{0, 2, 4});
  CHECK(reference(resize({ResizeMode::kBilinear, {1}, true, {}}, line({3, 4}))) == std::vector<double>{3});
}

TEST_CASE("bilinear uses the inverse of the scale factor if there is one, not the ratio of extents") {
  // The step is 1 / 2.5 = 0.4, not 3 / 7. Output 1 has position 1.5 * 0.4 - 0.5 = 0.1.
  const std::vector<double> values =
      reference(resize({ResizeMode::kBilinear, {7}, false, {2.5}}, line({0, 10, 20})));
  CHECK(values[1] == Approx(1.0));
}

TEST_CASE("fast resizes stay within tolerance of the reference") {
  std::mt19937 random(11);
  for (const ResizeMode mode : {ResizeMode::kNearest, ResizeMode::kBilinear})
    for (const bool align : {false, true}) {
      if (align && mode == ResizeMode::kNearest) continue;
      for (const Dims& size : {Dims{1, 1}, Dims{7, 3}, Dims{12, 21}, Dims{5, 8}})
        check_fast_paths(resize({mode, size, align, {}}, normal_array(random, {2, 3, 5, 8})));
      check_fast_paths(resize({mode, {9}, align, {}}, normal_array(random, {2, 3, 5})));
      check_fast_paths(resize({mode, {3, 4, 5}, align, {}}, normal_array(random, {1, 2, 2, 3, 4})));
    }
}

Call tosa_resize(TosaResizeAttrs attrs, Array input, Shape shape, DType dtype) {
  return {
      .op = Op::kTosaResize, .attrs = std::move(attrs), .operands = {input}, .dtype = dtype, .shape = shape};
}

TEST_CASE("TOSA's resize computes positions and weights in integers") {
  // Scale 4 / 2, offset -1: the outputs have the positions -1/4, 1/4, 3/4, 5/4.
  const TosaResizeAttrs bilinear{ResizeMode::kBilinear, {1, 1, 4, 2}, {0, -1}, {0, 1}};
  const Array bytes = array(DType::kI8, {1, 1, 2, 1}, {10, 20});
  CHECK(reference(tosa_resize(bilinear, bytes, {1, 1, 4, 1}, DType::kI32)) ==
        std::vector<double>{40, 50, 70, 80});
  const TosaResizeAttrs nearest{ResizeMode::kNearest, {1, 1, 4, 2}, {0, -1}, {0, 1}};
  CHECK(reference(tosa_resize(nearest, bytes, {1, 1, 4, 1}, DType::kI8)) ==
        std::vector<double>{10, 10, 20, 20});
  const Array floats = array(DType::kF32, {1, 1, 2, 1}, {10, 20});
  CHECK(reference(tosa_resize(bilinear, floats, {1, 1, 4, 1}, DType::kF32)) ==
        std::vector<double>{10, 12.5, 17.5, 20});
}

TEST_CASE("fast TOSA resizes stay within tolerance of the reference") {
  std::mt19937 random(13);
  for (const ResizeMode mode : {ResizeMode::kNearest, ResizeMode::kBilinear})
    check_fast_paths(tosa_resize({mode, {4, 2, 6, 4}, {-1, 1}, {1, 1}}, normal_array(random, {2, 5, 6, 17}),
                                 {2, 9, 8, 17}, DType::kF32));
}

TEST_CASE("fast TOSA resizes of integers equal the reference over the whole range") {
  std::mt19937 random(17);
  for (const DType from : {DType::kI8, DType::kI16})
    for (const std::int64_t channels : {1, 17, 64})
      for (const ResizeMode mode : {ResizeMode::kNearest, ResizeMode::kBilinear})
        for (const std::int64_t finer : {1, 512}) {
          const bool narrow = from == DType::kI8;
          const double largest = narrow ? 127 : 32767;
          Array image = random_array(random, from, {2, 5, 6, channels});
          for (double& value : image.values) value = std::clamp(value * largest / 12, -largest - 1, largest);
          const DType to = mode == ResizeMode::kNearest ? from : narrow ? DType::kI32 : DType::kI48;
          for (double& value : image.values) value = std::floor(value);
          check_fast_paths(tosa_resize(
              {mode, {4 * finer, 2 * finer, 3 * finer, 2 * finer}, {-finer, finer}, {finer, finer}}, image,
              {2, 9, 8, channels}, to));
        }
}

TEST_CASE("a bilinear resize of integers is refused") {
  const Call call = resize({ResizeMode::kBilinear, {4}, false, {}}, array(DType::kU8, {1, 1, 2}, {0, 4}));
  CHECK_THROWS_WITH(run(call, {}), Catch::Contains("[kernels] no kernel for 'resize' with weights on u8"));
  CHECK_THROWS_AS(run(call, {}), UnsupportedOp);
}

}  // namespace
}  // namespace tosaic::kernels::testing
