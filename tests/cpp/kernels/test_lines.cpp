// Patches that are read in place give the same sums, bit by bit, as patches that are gathered.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "patch_products.h"

namespace tosaic::kernels {
namespace {

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

TEST_CASE("patches read in place give the same sums as gathered ones", "[lines]") {
  std::mt19937 random(17);
  for (int i = 0; i < 200; ++i) {
    const Shape shape = draw_shape(random);
    CAPTURE(i, shape.channels, shape.cols, shape.in[0], shape.in[1], shape.in[2], shape.taps[0],
            shape.taps[1], shape.taps[2], shape.step[2], shape.pad_before[2]);
    for (const Isa isa : usable_isas()) check(shape, gemm_kernels<F32>(isa), random);
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
      if (const GemmKernels<Quads>* kernels = form_loops<Quads>({.isa = isa}).gemm;
          kernels != nullptr && kernels->reads_lines)
        check(shape, *kernels, random);
  }
}

TEST_CASE("padding of floats is not multiplied", "[lines]") {
  std::mt19937 random(19);
  const Index channels = 3, size = 16, cols = 5;
  for (const Isa isa : usable_isas()) {
    Product<float> product(square(channels, cols, size), gemm_kernels<F32>(isa), random);
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

TEST_CASE("runs are the lines inside of the image", "[lines]") {
  std::mt19937 random(20);
  const Index channels = 10, size = 4, depth = 9 * channels, line = size * channels;
  const Product<float> product(square(channels, 1, size), gemm_kernels<F32>(best_isa()), random);
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
      Product<float> product(shape, gemm_kernels<F32>(isa), random, true);
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
  const GemmKernels<float>& kernels = gemm_kernels<F32>(best_isa());
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
