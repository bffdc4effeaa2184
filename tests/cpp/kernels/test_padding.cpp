// Taps in the padding, which blocks of integers do not multiply.
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "patch_products.h"
#include "tosaic/kernels/padding.h"

namespace tosaic::kernels {
namespace {

template <class T>
void check(const Shape& shape, const GemmKernels<T>& kernels, std::mt19937& random) {
  Product<T> product(shape, kernels, random);
  GemmProblem<T>& problem = product.problem;
  const Index pixels = problem.rows, depth = problem.bands.depth;
  const std::vector<Depths> depths = depths_of_lines(product.patches, depth);
  problem.clamp = false;
  problem.first_row = draw(random, 0, pixels - 1);
  problem.rows = draw(random, problem.first_row + 1, pixels);
  if constexpr (kCompensates<T>)
    problem.right_zero_point = static_cast<Factor<T>>(draw(random, 0, 1) * draw(random, 0, 127));
  std::vector<Sum<T>> biases(depths.size() * static_cast<std::size_t>(shape.cols + 32));
  problem.bias_stride = shape.cols;
  for (std::size_t i = 0; i < depths.size(); ++i) {
    Sum<T>* to = biases.data() + static_cast<Index>(i) * shape.cols;
    if constexpr (kCompensates<T>)
      column_terms(kernels, problem.bands, problem.b, problem.excess, problem.zero_point, depths[i], to);
    for (Index j = 0; j < shape.cols; ++j) to[j] += product.bias[static_cast<std::size_t>(j)];
  }
  problem.column_bias = biases.data();
  std::vector<Sum<T>> expected(static_cast<std::size_t>(pixels * shape.cols), 7), found = expected;
  product.compute_gathered(expected);
  problem.depths = &depths;
  product.compute_gathered(found);
  CHECK(found == expected);
}

TEST_CASE("integers that are not multiplied by padding give the same sums", "[padding]") {
  std::mt19937 random(31);
  for (int i = 0; i < 200; ++i) {
    const Shape shape = i % 4 == 0 ? square(draw(random, 1, 40), draw(random, 1, 40), draw(random, 1, 20))
                                   : draw_shape(random);
    CAPTURE(i, shape.channels, shape.cols, shape.in[0], shape.in[1], shape.in[2], shape.taps[0],
            shape.taps[1], shape.taps[2], shape.step[1], shape.pad_before[1]);
    for (const Isa isa : usable_isas()) {
      check(shape, gemm_kernels_pairs(isa), random);
      check(shape, gemm_kernels_wide_pairs(isa), random);
      if (const auto* kernels = gemm_kernels_positive_pairs(isa)) check(shape, *kernels, random);
      if (const auto* kernels = gemm_kernels_capped_quads(isa)) check(shape, *kernels, random);
      if (const auto* kernels = gemm_kernels_quads(isa); kernels != nullptr && !kernels->reads_lines)
        check(shape, *kernels, random);
    }
  }
}

Index multiplied = 0;  // rows times depth

TEST_CASE("blocks of integers leave out the taps of lines in the padding", "[padding]") {
  std::mt19937 random(32);
  GemmKernels<Pairs> kernels = gemm_kernels_pairs(best_isa());
  kernels.multiply = [](const GemmBlock<Pairs>& block) { multiplied += block.rows * block.depth; };
  const auto count = [&](Index size) {
    Product<Pairs> product(square(32, 8, size), kernels, random);
    const std::vector<Depths> depths = depths_of_lines(product.patches, product.problem.bands.depth);
    product.problem.depths = &depths;
    std::vector<std::uint32_t> sums(static_cast<std::size_t>(size * size * 8));
    multiplied = 0;
    product.compute_gathered(sums);
    return multiplied;
  };
  constexpr Index run = 3 * 32;
  CHECK(count(7) == 7 * run * (2 + 5 * 3 + 2));
  CHECK(count(28) == 28 * run * (2 + 26 * 3 + 2));
  CHECK(count(2) == 4 * run * 3);  // tiles of two rows would take more time
}

TEST_CASE("depths of lines are whole steps, from the first tap inside of the image to the last one",
          "[padding]") {
  std::mt19937 random(33);
  const Shape shape{1, 3, 1, {4, 5, 1}, {3, 3, 1}, {1, 1, 1}, {1, 1, 0}, {1, 1, 1}, {4, 5, 1}};
  const Product<Pairs> product(shape, gemm_kernels_pairs(best_isa()), random);
  const Patches<Pairs>& patches = product.patches;
  CHECK(depths_of_line(patches, 0) == Depths{12, 28});      // taps 4 to 9 of (d, h), of which 6 is outside
  CHECK(depths_of_line(patches, 5 + 2) == Depths{0, 28});   // all
  CHECK(depths_of_line(patches, 15 + 4) == Depths{0, 16});  // taps 0 to 5, of which 2 is outside
  CHECK(depths_of_lines(patches, 27).front() == Depths{0, 28});
  CHECK(depths_of_lines(patches, 27).size() == 9);
}

}  // namespace
}  // namespace tosaic::kernels
