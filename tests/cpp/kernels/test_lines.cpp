// Patches that are read in place give the same sums, bit by bit, as patches that are gathered.
#include <catch2/catch.hpp>
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

template <class T>
void check(const Shape& shape, const GemmKernels<T>& kernels, std::mt19937& random) {
  std::vector<Index> offsets[3];
  Patches<T> patches;
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
  const std::vector<Source<T>> image = draw_values<Source<T>>(random, stride * shape.batch);
  patches.input = image.data();
  patches.batch_stride = stride;
  patches.channels = shape.channels;
  patches.row_is_contiguous = true;
  if constexpr (!kReadsInPlace<T>) patches.zero_point = static_cast<Factor<T>>(draw(random, -128, 127));

  const Bands<T> bands(kernels, depth, shape.cols);
  const std::vector<Factor<T>> weights = draw_values<Factor<T>>(random, depth * shape.cols);
  const std::vector<Sum<T>> bias = draw_values<Sum<T>>(random, shape.cols + 32);
  std::vector<Factor<T>> packed(static_cast<std::size_t>(bands.elements()));
  pack_bands(kernels, bands, weights.data(), shape.cols, 1, packed.data());
  const GemmBlocking blocking = gemm_blocking(kernels, pixels, bands);

  GemmProblem<T> problem;
  problem.first_row = draw(random, 0, pixels - 1);  // a thread's part begins anywhere
  problem.rows = draw(random, problem.first_row + 1, pixels);
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
  std::vector<Sum<T>> expected(static_cast<std::size_t>(pixels * shape.cols), 7), found = expected;
  std::vector<Factor<T>> gathered(static_cast<std::size_t>(blocking.gather_elements()));
  problem.c = expected.data();
  problem.gathered = gathered.data();
  multiply(kernels, blocking, problem);
  std::vector<Factor<T>> lines(
      static_cast<std::size_t>(Lines<T>(patches).elements(lines_of_block(blocking.rows, patches.out))),
      static_cast<Factor<T>>(kReadsInPlace<T> ? NAN : 99));
  problem.c = found.data();
  problem.gathered = lines.data();
  multiply_lines(kernels, blocking, problem);
  CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(Sum<T>)) == 0);
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

TEST_CASE("lines are read if gathering would take longer", "[lines]") {
  const GemmKernels<float>& kernels = gemm_kernels_f32(best_isa());
  const auto prefers = [&](Index channels, Index cols, Index size) {
    const std::vector<Index> offsets = {-1, 0, 1}, none = {0};
    Patches<float> patches;
    patches.channels = channels;
    patches.row_is_contiguous = true;
    const Index taps[3] = {1, 3, 3}, sizes[3] = {1, size, size};
    for (int axis = 0; axis < 3; ++axis) {
      patches.offset[axis] = axis == 0 ? none.data() : offsets.data();
      patches.in[axis] = patches.out[axis] = sizes[axis];
      patches.step[axis] = 1;
      patches.taps[axis] = taps[axis];
    }
    const Index depth = 9 * channels;
    return prefers_lines(kernels, gemm_blocking(kernels, size * size, Bands<float>(kernels, depth, cols)),
                         patches, cols, depth);
  };
  CHECK(prefers(64, 64, 56));
  CHECK_FALSE(prefers(64, 512, 3));    // tiles of three rows
  CHECK_FALSE(prefers(1024, 64, 56));  // the lines of adjacent pixels are in the same cache sets
}

}  // namespace
}  // namespace tosaic::kernels
