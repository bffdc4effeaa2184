// Products of drawn image patches, for tests of the ways to multiply them.
#pragma once

#include <array>
#include <cmath>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "tosaic/kernels/gemm/excess.h"
#include "tosaic/kernels/gemm/forms.h"
#include "tosaic/kernels/gemm/lines.h"
#include "tosaic/kernels/options.h"

namespace tosaic::kernels {

using Index = std::int64_t;

// A convolution with channels last and one group.
struct Shape {
  Index batch, channels, cols;
  Index in[3], taps[3], step[3], pad_before[3], dilation[3], out[3];
};

inline Index draw(std::mt19937& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}

inline Shape draw_shape(std::mt19937& random) {
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
      value = static_cast<T>(static_cast<std::int8_t>(random()));
  return values;
}

// A product of drawn patches, whose weights may be infinite.
template <class T>
struct Product {
  const GemmKernels<T>& kernels;
  std::vector<Index> offsets[3];
  Patches<T> patches;
  std::vector<Source<T>> image;
  std::vector<Factor<T>> gathered;
  LargeArray<Factor<T>> packed;
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
    if constexpr (kRescales<T>) patches.zero_point = static_cast<Factor<T>>(draw(random, -128, 127));

    const Bands<T> bands(kernels, depth, shape.cols);
    std::vector<Factor<T>> weights = draw_values<Factor<T>>(random, depth * shape.cols);
    if constexpr (kReadsInPlace<T>)
      for (Factor<T>& weight : weights)
        if (is_infinite && draw(random, 0, 3 * depth) == 0) weight = INFINITY;
    bias = draw_values<Sum<T>>(random, shape.cols + 32);
    packed = LargeArray<Factor<T>>(static_cast<std::size_t>(bands.elements()));
    pack_bands(kernels, bands, weights.data(), shape.cols, 1, packed.data());
    if constexpr (kIsCapped<T>) {
      packed = with_excess(kernels, bands, 1, std::move(packed));
      problem.excess = excess_of(packed, bands, 1, 0);
    }
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

// A 3x3 convolution of an image of size x size pixels with padding 1.
inline Shape square(Index channels, Index cols, Index size) {
  return {1, channels, cols, {1, size, size}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}, {1, size, size}};
}

}  // namespace tosaic::kernels
