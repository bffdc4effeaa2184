#include "run_kernel.h"

namespace tosaic::kernels::testing {
namespace {

using Numbers = std::vector<double>;

Call samples(GridSampleAttrs attrs, const Array& image, const Array& grid) {
  Shape shape{image.shape[0], image.shape[1]};
  for (std::size_t axis = 1; axis + 1 < grid.shape.size(); ++axis) shape.push_back(grid.shape[axis]);
  return {
      .op = Op::kGridSample, .attrs = attrs, .operands = {image, grid}, .dtype = image.dtype, .shape = shape};
}

// Samples of an image of one line, at the coordinates x.
Numbers along_a_line(GridSampleAttrs attrs, Numbers pixels, const Numbers& x) {
  const auto extent = static_cast<std::int64_t>(pixels.size()), outputs = static_cast<std::int64_t>(x.size());
  Numbers grid;
  for (const double coordinate : x) {
    grid.push_back(coordinate);
    grid.push_back(0);
  }
  return reference(samples(attrs, array(DType::kF32, {1, 1, 1, extent}, std::move(pixels)),
                           array(DType::kF32, {1, 1, outputs, 2}, std::move(grid))));
}

constexpr GridPadding kPaddings[] = {GridPadding::kZeros, GridPadding::kBorder, GridPadding::kReflection};

TEST_CASE("-1 and 1 are the outer pixels with align_corners, and else the outer edges of these pixels") {
  const auto at = [](bool corners) {
    return along_a_line({ResizeMode::kBilinear, GridPadding::kBorder, corners}, {0, 8}, {-1, -0.5, 0, 1});
  };
  CHECK(at(true) == Numbers{0, 2, 4, 8});
  CHECK(at(false) == Numbers{0, 0, 4, 8});
}

TEST_CASE("beside the image are zeros, the edge or mirrored pixels") {
  const auto at = [](GridPadding padding) {
    return along_a_line({ResizeMode::kNearest, padding, true}, {1, 2, 3}, {-2, -1, 2, 4});
  };
  CHECK(at(GridPadding::kZeros) == Numbers{0, 1, 0, 0});
  CHECK(at(GridPadding::kBorder) == Numbers{1, 1, 3, 3});
  CHECK(at(GridPadding::kReflection) == Numbers{2, 1, 2, 2});
}

TEST_CASE("nearest rounds half to even") {
  const GridSampleAttrs nearest{ResizeMode::kNearest, GridPadding::kZeros, true};
  CHECK(along_a_line(nearest, {1, 2, 3, 4, 5}, {-0.75, -0.25, 0.25, 0.75}) == Numbers{1, 3, 3, 5});
}

TEST_CASE("bicubic samples of a line of equal pixels are these pixels") {
  for (const double value : along_a_line({ResizeMode::kBicubic, GridPadding::kBorder, false}, {3, 3, 3, 3},
                                         {-0.9, -0.3, 0.1, 0.77}))
    CHECK(value == Approx(3));
}

Array positions(std::mt19937& random, const Shape& shape) {
  std::uniform_real_distribution<float> numbers(-2, 2);
  Array grid{DType::kF32, shape, Numbers(static_cast<std::size_t>(num_elements(shape)))};
  for (double& value : grid.values) value = numbers(random);
  return grid;
}

// The tolerance is relative to 8. Sums of bicubic samples are smaller: the absolute values of their weights
// add up to 1.9 at most, and pixels are drawn from a normal distribution.
void check_samples(const Call& call) {
  check_fast_paths(call, Numbers(static_cast<std::size_t>(num_elements(call.shape)), 8.0));
}

TEST_CASE("fast samplers of images stay within tolerance of the reference") {
  std::mt19937 random(3);
  for (const ResizeMode mode : {ResizeMode::kNearest, ResizeMode::kBilinear, ResizeMode::kBicubic})
    for (const GridPadding padding : kPaddings)
      for (const bool corners : {false, true})
        for (const std::int64_t channels : {1, 2, 3, 8})
          check_samples(samples({mode, padding, corners}, normal_array(random, {2, channels, 6, 7}),
                                positions(random, {2, 5, 61, 2})));
}

TEST_CASE("fast samplers of volumes stay within tolerance of the reference") {
  std::mt19937 random(4);
  for (const ResizeMode mode : {ResizeMode::kNearest, ResizeMode::kBilinear})
    for (const GridPadding padding : kPaddings)
      for (const bool corners : {false, true})
        check_samples(samples({mode, padding, corners}, normal_array(random, {2, 3, 4, 1, 6}),
                              positions(random, {2, 3, 9, 11, 3})));
}

TEST_CASE("an image or a volume of one pixel has that pixel everywhere but beside it with zeros") {
  const Array image = array(DType::kF32, {1, 1, 1, 1}, {5}),
              volume = array(DType::kF32, {1, 1, 1, 1, 1}, {5});
  for (const GridPadding padding : {GridPadding::kBorder, GridPadding::kReflection})
    for (const bool corners : {false, true}) {
      const GridSampleAttrs attrs{ResizeMode::kBilinear, padding, corners};
      CHECK(reference(samples(attrs, image, array(DType::kF32, {1, 1, 1, 2}, {0.75, -3}))) == Numbers{5});
      CHECK(reference(samples(attrs, volume, array(DType::kF32, {1, 1, 1, 1, 3}, {0.75, -3, 9}))) ==
            Numbers{5});
    }
  const GridSampleAttrs zeros{ResizeMode::kNearest, GridPadding::kZeros, false};
  CHECK(reference(samples(zeros, image, array(DType::kF32, {1, 1, 2, 2}, {0.5, -0.5, 3, 0}))) ==
        Numbers{5, 0});
}

// ---- over integers ----

Call integer_samples(const GridSampleAttrs& sample, DType dtype, std::int64_t zero_point, const Array& image,
                     const Array& grid) {
  const bool nearest = sample.mode == ResizeMode::kNearest;
  const std::int64_t limit = dtype == DType::kI8 ? 128 : 32768;
  const IntegerGridSampleAttrs attrs{.sample = sample,
                                     .input_zp = zero_point,
                                     .input_low = -limit,
                                     .grid_zp = 0,
                                     .grid_low = -120,
                                     .grid_high = 115,
                                     .multiplier = {1 << 30, (1 << 30) + 12345},
                                     .shift = {14, 15},
                                     .fraction = {20, 20}};
  return {.op = Op::kIntegerGridSample,
          .attrs = attrs,
          .operands = {image, grid},
          .dtype = nearest ? dtype : DType::kI32,
          .shape = {image.shape[0], image.shape[1], grid.shape[1], grid.shape[2]}};
}

TEST_CASE("all kernels of samplers over integers compute the same integers") {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> bytes(-128, 127), words(-32768, 32767);
  const auto drawn = [&](DType dtype, const Shape& shape, auto& numbers) {
    Array out{dtype, shape, Numbers(static_cast<std::size_t>(num_elements(shape)))};
    for (double& value : out.values) value = numbers(random);
    return out;
  };
  for (const DType dtype : {DType::kI8, DType::kI16})
    for (const std::int64_t zero_point :
         dtype == DType::kI8 ? std::vector<std::int64_t>{0, 100, -128} : std::vector<std::int64_t>{0})
      for (const ResizeMode mode : {ResizeMode::kNearest, ResizeMode::kBilinear, ResizeMode::kBicubic})
        for (const GridPadding padding : kPaddings) {
          const Array image = drawn(dtype, {2, 3, 9, 5}, dtype == DType::kI8 ? bytes : words);
          const Array grid = drawn(DType::kI16, {2, 3, 50, 2}, bytes);
          const Call call = integer_samples({mode, padding, false}, dtype, zero_point, image, grid);
          check_fast_paths(call);
        }
}

}  // namespace
}  // namespace tosaic::kernels::testing
