// Weights that are capped so that sums of two products do not saturate, and what is taken off them.
#include "tosaic/kernels/excess.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "patch_products.h"
#include "tosaic/kernels/gemm.h"

namespace tosaic::kernels {
namespace {

// Bytes with a normal distribution of this width, or of the whole range if it is 0.
std::vector<std::int8_t> draw_bytes(std::mt19937& random, Index count, float width) {
  std::vector<std::int8_t> bytes = draw_values<std::int8_t>(random, count);
  std::normal_distribution<float> normal(0, width);
  if (width > 0)
    for (std::int8_t& byte : bytes)
      byte = static_cast<std::int8_t>(std::clamp(std::round(normal(random)), -128.0F, 127.0F));
  return bytes;
}

struct Packed {
  const GemmKernels<CappedQuads>& kernels;
  Bands<CappedQuads> bands;
  Index matrices;
  std::vector<std::int8_t> weights;  // [matrices][depth][cols]
  LargeArray<std::int8_t> packed;

  Packed(const GemmKernels<CappedQuads>& by, Index depth, Index cols, Index count,
         std::vector<std::int8_t> drawn)
      : kernels(by), bands(by, depth, cols), matrices(count), weights(std::move(drawn)) {
    LargeArray<std::int8_t> quads(static_cast<std::size_t>(matrices * bands.elements()));
    for (Index m = 0; m < matrices; ++m)
      pack_bands(kernels, bands, weights.data() + m * depth * cols, cols, 1,
                 quads.data() + m * bands.elements());
    packed = with_excess(kernels, bands, matrices, std::move(quads));
  }
  [[nodiscard]] Excess excess(Index matrix) const { return excess_of(packed, bands, matrices, matrix); }
};

// An element of a panel of quads.
std::int8_t& at(std::int8_t* panel, Index width, Index k, Index j) {
  return panel[k / 4 * 4 * width + 4 * j + k % 4];
}

TEST_CASE("capped weights and their excess are the weights, and no pair saturates", "[excess]") {
  const GemmKernels<CappedQuads>* kernels = gemm_kernels_capped_quads(best_isa());
  for (const Isa isa : usable_isas())
    if (kernels == nullptr) kernels = gemm_kernels_capped_quads(isa);
  if (kernels == nullptr) return;
  std::mt19937 random(41);
  for (int i = 0; i < 60; ++i) {
    const Index depth = i == 0 ? 20000 : draw(random, 1, 300), cols = draw(random, 1, 40),
                matrices = draw(random, 1, 3);
    const float width = static_cast<float>(draw(random, 0, 3)) * 25;
    CAPTURE(i, depth, cols, matrices, width);
    Packed p(*kernels, depth, cols, matrices, draw_bytes(random, matrices * depth * cols, width));
    const Bands<CappedQuads>& bands = p.bands;
    for (Index m = 0; m < matrices; ++m) {
      const Excess excess = p.excess(m);
      const std::uint32_t* rounds = excess.rounds;
      for (Index from = 0; from < depth; from += bands.band)
        for (Index col = 0; col < bands.padded_cols; col += Excess::kCols) {
          const Index first = col / kernels->panel * kernels->panel;
          const Index width_of_panel = cols - first <= kernels->lanes ? kernels->lanes : kernels->panel;
          if (col - first >= width_of_panel) {
            if (rounds != nullptr) ++rounds;
            continue;
          }
          std::int8_t* panel = p.packed.data() + m * bands.elements() + bands.offset(from, first);
          const Index steps = whole_steps<CappedQuads>(bands.depth_at(from));
          std::vector<std::int32_t> sums(static_cast<std::size_t>(steps * Excess::kCols));
          for (Index k = 0; k < steps; ++k)
            for (Index j = 0; j < Excess::kCols; ++j) {
              const std::int32_t element = at(panel, width_of_panel, k, col - first + j);
              sums[static_cast<std::size_t>(k * Excess::kCols + j)] = element;
              if (k % 2 == 1) {
                const std::int32_t before = at(panel, width_of_panel, k - 1, col - first + j);
                REQUIRE(std::max(element, 0) + std::max(before, 0) <= kMostOfPair);
                REQUIRE(std::min(element, 0) + std::min(before, 0) >= -kMostOfPair);
              }
            }
          if (rounds != nullptr) {
            for (std::uint32_t round = rounds[0]; round < rounds[1]; ++round) {
              std::int32_t positive[Excess::kCols] = {}, negative[Excess::kCols] = {};
              for (std::uint32_t s = excess.begin[round]; s < excess.begin[round + 1]; ++s)
                for (Index j = 0; j < Excess::kCols; ++j)
                  for (Index half = 0; half < 2; ++half) {
                    const std::int8_t factor = excess.steps[s].factors[j][half];
                    REQUIRE(excess.steps[s].factors[j][half + 2] == factor);
                    const Index k = 2 * (excess.steps[s].at[j] / ExcessStep::kPairBytes) + half;
                    sums[static_cast<std::size_t>(k * Excess::kCols + j)] += factor;
                    (factor > 0 ? positive : negative)[j] += factor;
                  }
              for (Index j = 0; j < Excess::kCols; ++j) {
                REQUIRE(positive[j] <= kMostOfPair);
                REQUIRE(negative[j] >= -kMostOfPair);
              }
            }
            ++rounds;
          }
          for (Index k = 0; k < steps; ++k)
            for (Index j = 0; j < Excess::kCols; ++j) {
              const bool exists = from + k < depth && k < bands.depth_at(from) && col + j < cols;
              const std::size_t weight = static_cast<std::size_t>((m * depth + from + k) * cols + col + j);
              REQUIRE(sums[static_cast<std::size_t>(k * Excess::kCols + j)] ==
                      (exists ? p.weights[weight] : 0));
            }
        }
    }
  }
}

TEST_CASE("products of capped quads are exact for all bytes", "[excess]") {
  std::mt19937 random(42);
  for (const Isa isa : usable_isas()) {
    const GemmKernels<CappedQuads>* kernels = gemm_kernels_capped_quads(isa);
    if (kernels == nullptr) continue;
    for (int i = 0; i < 200; ++i) {
      const Index depth = i == 0 ? 20000 : draw(random, 1, i % 3 == 0 ? 20 : 400), cols = draw(random, 1, 80),
                  rows = draw(random, 1, 100);
      const bool is_extreme = i % 5 == 0;  // all bytes are the least or the greatest
      const float width = static_cast<float>(draw(random, 0, 3)) * 25;
      CAPTURE(i, depth, cols, rows, width, is_extreme);
      std::vector<std::int8_t> left = draw_bytes(random, rows * depth, 0),
                               right = draw_bytes(random, depth * cols, width);
      if (is_extreme)
        for (std::vector<std::int8_t>* side : {&left, &right})
          for (std::int8_t& byte : *side) byte = byte < 0 ? -128 : 127;
      const Packed p(*kernels, depth, cols, 1, right);
      GemmProblem<CappedQuads> problem;
      problem.rows = rows;
      problem.cols = cols;
      problem.a = left.data();
      problem.a_stride = depth;
      problem.b = p.packed.data();
      problem.excess = p.excess(0);
      problem.bands = p.bands;
      problem.zero_point = static_cast<std::int8_t>(draw(random, -128, 127));
      problem.right_zero_point = static_cast<std::int8_t>(draw(random, 0, 1) * draw(random, -128, 127));
      std::vector<std::uint32_t> bias(static_cast<std::size_t>(cols + 32)),
          found(static_cast<std::size_t>(rows * cols));
      column_terms(*kernels, p.bands, problem.b, problem.excess, problem.zero_point, whole_depth(p.bands),
                   bias.data());
      problem.column_bias = bias.data();
      problem.c = found.data();
      problem.c_stride = cols;
      const GemmBlocking blocking = gemm_blocking(*kernels, rows, p.bands);
      std::vector<std::int8_t> gathered(static_cast<std::size_t>(blocking.gather_elements()));
      problem.gathered = gathered.data();
      multiply(*kernels, blocking, problem);
      for (Index r = 0; r < rows; ++r)
        for (Index j = 0; j < cols; ++j) {
          std::int64_t sum = 0;
          for (Index k = 0; k < depth; ++k)
            sum += (left[static_cast<std::size_t>(r * depth + k)] - std::int64_t{problem.zero_point}) *
                   (right[static_cast<std::size_t>(k * cols + j)] - std::int64_t{problem.right_zero_point});
          REQUIRE(found[static_cast<std::size_t>(r * cols + j)] == static_cast<std::uint32_t>(sum));
        }
    }
  }
}

}  // namespace
}  // namespace tosaic::kernels
