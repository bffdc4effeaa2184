// Patches that are read in place give the same sums, bit by bit, as patches that are gathered.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tosaic/kernels/isa_tables.h"
#include "tosaic/kernels/lines.h"
#include "tosaic/kernels/options.h"

namespace tosaic::kernels {
namespace {

using Index = std::int64_t;

// A convolution with channels last and one group.
struct Shape {
  Index batch, channels, cols;
  Index in[3], taps[3], step[3], pad_before[3], dilation[3], out[3];
};

Index draw(std::mt19937& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}

Shape draw_shape(std::mt19937& random) {
  Shape shape{};
  shape.batch = draw(random, 1, 2);
  shape.channels = draw(random, 1, 3) == 1 ? draw(random, 1, 4) : draw(random, 5, 70);
  shape.cols = draw(random, 1, 70);
  for (int axis = 0; axis < 3; ++axis) {
    const bool is_plane = axis == 0 && draw(random, 0, 2) > 0;
    shape.taps[axis] = is_plane ? 1 : draw(random, 1, 4);
    shape.step[axis] = draw(random, 1, 3);
    shape.dilation[axis] = axis == 2 ? 1 : draw(random, 1, 2);  // dilated along w, patches are gathered
    shape.in[axis] = is_plane ? 1 : draw(random, 1, 20);
    shape.pad_before[axis] = is_plane ? 0 : draw(random, -1, 3);
    const Index span = (shape.taps[axis] - 1) * shape.dilation[axis] + 1;
    const Index before = shape.in[axis] + shape.pad_before[axis];
    const Index after = std::max(is_plane ? 0 : draw(random, 0, 3), span - before);
    shape.out[axis] = (before + after - span) / shape.step[axis] + 1;
  }
  return shape;
}

template <class T>
std::vector<T> draw_values(std::mt19937& random, Index count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  std::normal_distribution<float> normal;
  for (T& value : values)
    if constexpr (std::is_same_v<T, float>)
      value = normal(random);
    else
      value = static_cast<T>(random());
  return values;
}

// A product of drawn patches, whose weights may be infinite.
template <class T>
struct Product {
  const GemmKernels<T>& kernels;
  std::vector<Index> offsets[3];
  Patches<T> patches;
  std::vector<Source<T>> image;
  std::vector<Factor<T>> packed, gathered;
  std::vector<Sum<T>> bias;
  GemmBlocking blocking;
  GemmProblem<T> problem;

  Product(const Shape& shape, const GemmKernels<T>& by, std::mt19937& random, bool is_infinite = false)
      : kernels(by) {
    Index stride = shape.channels, depth = shape.channels, pixels = shape.batch;
    for (int axis = 2; axis >= 0; --axis) {
      for (Index tap = 0; tap < shape.taps[axis]; ++tap)
        offsets[axis].push_back(tap * shape.dilation[axis] - shape.pad_before[axis]);
      patches.offset[axis] = offsets[axis].data();
      patches.stride[axis] = stride;
      patches.in[axis] = shape.in[axis];
      patches.out[axis] = shape.out[axis];
      patches.step[axis] = shape.step[axis];
      patches.taps[axis] = shape.taps[axis];
      stride *= shape.in[axis];
      depth *= shape.taps[axis];
      pixels *= shape.out[axis];
    }
    image = draw_values<Source<T>>(random, stride * shape.batch);
    patches.input = image.data();
    patches.batch_stride = stride;
    patches.channels = shape.channels;
    patches.row_is_contiguous = true;
    if constexpr (!kReadsInPlace<T>) patches.zero_point = static_cast<Factor<T>>(draw(random, -128, 127));

    const Bands<T> bands(kernels, depth, shape.cols);
    std::vector<Factor<T>> weights = draw_values<Factor<T>>(random, depth * shape.cols);
    if constexpr (kReadsInPlace<T>)
      for (Factor<T>& weight : weights)
        if (is_infinite && draw(random, 0, 3 * depth) == 0) weight = INFINITY;
    bias = draw_values<Sum<T>>(random, shape.cols + 32);
    packed.resize(static_cast<std::size_t>(bands.elements()));
    pack_bands(kernels, bands, weights.data(), shape.cols, 1, packed.data());
    blocking = gemm_blocking(kernels, pixels, bands);
    problem.rows = pixels;
    problem.cols = shape.cols;
    problem.patches = &patches;
    problem.zero_point = patches.zero_point;
    problem.b = packed.data();
    problem.bands = bands;
    problem.c_stride = shape.cols;
    problem.column_bias = draw(random, 0, 1) == 1 ? bias.data() : nullptr;
    problem.clamp = draw(random, 0, 1) == 1;
    problem.low = static_cast<Sum<T>>(kReadsInPlace<T> ? -1 : 1000);
    problem.high = static_cast<Sum<T>>(kReadsInPlace<T> ? 1.5 : 4e9);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  void compute_gathered(std::vector<Sum<T>>& to) {
    gathered.assign(static_cast<std::size_t>(blocking.gather_elements()), Factor<T>{});
    problem.gathered = gathered.data();
    problem.c = to.data();
    multiply(kernels, blocking, problem);
  }
  void compute_lines(std::vector<Sum<T>>& to) {
    const Index elements = Lines<T>(patches).elements(lines_of_block(blocking.rows, patches.out));
    gathered.assign(static_cast<std::size_t>(elements), static_cast<Factor<T>>(kReadsInPlace<T> ? NAN : 99));
    problem.gathered = gathered.data();
    problem.c = to.data();
    multiply_lines(kernels, blocking, problem);
  }
};

template <class T>
void check(const Shape& shape, const GemmKernels<T>& kernels, std::mt19937& random) {
  Product<T> product(shape, kernels, random);
  GemmProblem<T>& problem = product.problem;
  const Index pixels = problem.rows;
  problem.first_row = draw(random, 0, pixels - 1);  // a thread's part begins anywhere
  problem.rows = draw(random, problem.first_row + 1, pixels);
  std::vector<Sum<T>> expected(static_cast<std::size_t>(pixels * shape.cols), 7), found = expected;
  product.compute_gathered(expected);
  product.compute_lines(found);
  CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(Sum<T>)) == 0);
}

// A 3x3 convolution of an image of size x size pixels with padding 1.
Shape square(Index channels, Index cols, Index size) {
  return {1, channels, cols, {1, size, size}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}, {1, size, size}};
}

TEST_CASE("patches read in place give the same sums as gathered ones", "[lines]") {
  std::mt19937 random(17);
  for (int i = 0; i < 200; ++i) {
    const Shape shape = draw_shape(random);
    CAPTURE(i, shape.channels, shape.cols, shape.in[0], shape.in[1], shape.in[2], shape.taps[0],
            shape.taps[1], shape.taps[2], shape.step[2], shape.pad_before[2]);
    for (const Isa isa : usable_isas()) check(shape, gemm_kernels_f32(isa), random);
  }
}

TEST_CASE("patches of quads read from copied lines give the same sums as gathered ones", "[lines]") {
  std::mt19937 random(18);
  for (int i = 0; i < 300; ++i) {
    Shape shape = draw_shape(random);
    if (shape.taps[2] != 4) shape.channels = ceil_div(shape.channels, 4) * 4;  // runs are whole quads
    CAPTURE(i, shape.channels, shape.cols, shape.in[0], shape.in[1], shape.in[2], shape.taps[0],
            shape.taps[1], shape.taps[2], shape.step[2], shape.pad_before[2]);
    for (const Isa isa : usable_isas())
      if (const GemmKernels<Quads>* kernels = gemm_kernels_quads(isa);
          kernels != nullptr && kernels->reads_lines)
        check(shape, *kernels, random);
  }
}

TEST_CASE("padding of floats is not multiplied", "[lines]") {
  std::mt19937 random(19);
  const Index channels = 3, size = 16, cols = 5;
  for (const Isa isa : usable_isas()) {
    Product<float> product(square(channels, cols, size), gemm_kernels_f32(isa), random);
    product.problem.clamp = false;
    std::vector<float> weights(static_cast<std::size_t>(9 * channels * cols), 1);
    for (Index tap = 0; tap < 9; ++tap) {
      INFO(to_string(isa) << ", tap " << tap);
      std::vector<float> some_infinite = weights;
      std::fill_n(some_infinite.begin() + tap * channels * cols, channels * cols, INFINITY);
      pack_bands(product.kernels, product.problem.bands, some_infinite.data(), cols, 1,
                 product.packed.data());
      std::vector<float> found(static_cast<std::size_t>(size * size * cols));
      product.compute_lines(found);
      Index wrong = 0;
      for (Index h = 0; h < size; ++h)
        for (Index w = 0; w < size; ++w) {
          const Index from_h = h + tap / 3 - 1, from_w = w + tap % 3 - 1;
          const bool reads = from_h >= 0 && from_h < size && from_w >= 0 && from_w < size;
          wrong += std::isfinite(found[static_cast<std::size_t>((h * size + w) * cols)]) == reads;
        }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("runs are those of lines inside of the image", "[lines]") {
  std::mt19937 random(20);
  const Index channels = 10, size = 4, depth = 9 * channels, line = size * channels;
  const Product<float> product(square(channels, 1, size), gemm_kernels_f32(best_isa()), random);
  Lines<float> lines(product.patches);
  lines.load(product.kernels, 0, size, nullptr);
  std::array<Run<float>, 128> runs;
  CHECK(lines.elements(size) == 0);  // no copies
  REQUIRE(lines.runs(0, 0, size, 0, depth, runs) == 2);
  CHECK(runs[0].at == 3 * channels);
  CHECK(runs[0].a + channels == product.image.data());
  CHECK(runs[1].at == 6 * channels);
  CHECK(runs[1].a + channels == product.image.data() + line);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(runs[i].depth == 3 * channels);
    CHECK(runs[i].not_first == channels);
    CHECK(runs[i].not_last == channels);
  }
  CHECK(lines.runs(1, 0, size, 0, depth, runs) == 3);
  // A band that begins and ends within a line, for a part without the last pixel.
  REQUIRE(lines.runs(size - 1, 0, size - 1, channels / 2, 4 * channels, runs) == 2);
  CHECK(runs[0].at == 0);
  CHECK(runs[0].not_first == channels / 2);
  CHECK(runs[0].not_last == 0);
  CHECK(lines.runs(size - 1, 1, size, 2 * channels + 3, channels - 3, runs) == 1);
  CHECK(runs[0].not_first == 0);
  CHECK(runs[0].not_last == channels - 3);
  CHECK(lines.runs(0, 0, size, 0, 3 * channels, runs) == 0);
}

TEST_CASE("parts of a product give the same sums, even with infinite weights", "[lines]") {
  std::mt19937 random(21);
  const auto are_same = [](float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b; };
  for (int i = 0; i < 100; ++i) {
    const Shape shape = draw_shape(random);
    CAPTURE(i, shape.channels, shape.cols, shape.in[0], shape.in[1], shape.in[2], shape.taps[0],
            shape.taps[1], shape.taps[2], shape.step[2], shape.pad_before[2]);
    for (const Isa isa : usable_isas()) {
      Product<float> product(shape, gemm_kernels_f32(isa), random, true);
      const Index pixels = product.problem.rows;
      std::vector<float> expected(static_cast<std::size_t>(pixels * shape.cols)), found = expected;
      product.compute_lines(expected);
      product.blocking.rows = draw(random, 1, 40);
      product.blocking.cols = product.kernels.panel;
      for (Index row = 0; row < pixels; row = product.problem.rows) {
        product.problem.first_row = row;
        product.problem.rows = draw(random, row + 1, pixels);
        product.compute_lines(found);
      }
      CHECK(std::equal(found.begin(), found.end(), expected.begin(), are_same));
    }
  }
}

TEST_CASE("lines are read if gathering would take longer", "[lines]") {
  const GemmKernels<float>& kernels = gemm_kernels_f32(best_isa());
  std::mt19937 random(22);
  const auto prefers = [&](Index channels, Index cols, Index size) {
    const Product<float> product(square(channels, cols, size), kernels, random);
    return prefers_lines(kernels, product.blocking, product.patches, cols, 9 * channels);
  };
  CHECK(prefers(64, 64, 56));
  CHECK_FALSE(prefers(64, 512, 3));  // tiles of three rows
  // The lines of adjacent pixels are in the same cache set, which has no place for more than seven rows.
  CHECK(prefers(1024, 64, 56) == (kernels.max_rows <= 7));
}

}  // namespace
}  // namespace tosaic::kernels
