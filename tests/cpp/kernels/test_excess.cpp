// Weights that are capped so that sums of two products do not saturate, and the excess that is taken off.
#include "tosaic/kernels/gemm/excess.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "patch_products.h"
#include "tosaic/kernels/gemm/gemm.h"

namespace tosaic::kernels {
namespace {

// Draws bytes from a normal distribution, or if `deviation` is 0, from the whole range.
std::vector<std::int8_t> draw_bytes(std::mt19937& random, Index count, float deviation) {
  std::vector<std::int8_t> bytes = draw_values<std::int8_t>(random, count);
  if (deviation == 0) return bytes;
  std::normal_distribution<float> normal(0, deviation);
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

// A panel of B: `depth` rows of `width` columns, as sums of the capped elements and their excess.
std::vector<std::int32_t> elements_of(const Packed& p, Index matrix, Index from, Index col, Index width) {
  const Index depth = whole_steps<CappedQuads>(p.bands.depth_at(from));
  const std::int8_t* quads = p.packed.data() + matrix * p.bands.elements() + p.bands.offset(from, col);
  std::vector<std::int32_t> elements(static_cast<std::size_t>(depth * width));
  for (Index k = 0; k < depth; ++k)
    for (Index j = 0; j < width; ++j)
      elements[static_cast<std::size_t>(k * width + j)] = quads[k / 4 * 4 * width + 4 * j + k % 4];
  for (Index k = 0; k < depth; k += 2)
    for (Index j = 0; j < width; ++j) {
      const std::int32_t a = elements[static_cast<std::size_t>(k * width + j)],
                         b = elements[static_cast<std::size_t>((k + 1) * width + j)];
      REQUIRE(std::max(a, 0) + std::max(b, 0) <= kMostOfPair);
      REQUIRE(std::min(a, 0) + std::min(b, 0) >= -kMostOfPair);
    }
  const Excess excess = p.excess(matrix);
  if (excess.rounds == nullptr) return elements;
  const std::uint32_t* rounds =
      excess.rounds + (from / p.bands.band * p.bands.padded_cols + col) / p.bands.panel;
  for (std::uint32_t round = rounds[0]; round < rounds[1]; ++round) {
    std::vector<std::int32_t> positive(static_cast<std::size_t>(width)), negative = positive;
    for (std::uint32_t at = excess.begin[round]; at < excess.begin[round + 1]; ++at) {
      const ExcessTerm& term = excess.terms[at];
      const Index k = 2 * (term.pair / ExcessTerm::kPairBytes), j = term.column / ExcessTerm::kPairBytes;
      for (Index half = 0; half < 2; ++half) {
        const std::int8_t factor = term.factors[half];
        REQUIRE(term.factors[half + 2] == factor);
        elements.at(static_cast<std::size_t>((k + half) * width + j)) += factor;
        (factor > 0 ? positive : negative).at(static_cast<std::size_t>(j)) += factor;
      }
    }
    for (Index j = 0; j < width; ++j) {  // sums of 16 bits, for factors of A from 0 to 255
      const std::int32_t start = excess.starts[static_cast<Index>(round) * Excess::kCols + j];
      REQUIRE(start + 255 * positive[static_cast<std::size_t>(j)] <= 32767);
      REQUIRE(start + 255 * negative[static_cast<std::size_t>(j)] >= -32768);
    }
  }
  return elements;
}

TEST_CASE("capped weights and their excess are the weights, and no pair saturates", "[excess]") {
  std::mt19937 random(41);
  for (const Isa isa : usable_isas()) {
    const GemmKernels<CappedQuads>* kernels = form_loops<CappedQuads>({.isa = isa}).gemm;
    CHECK((kernels != nullptr) == (isa >= Isa::kAvx2 && isa <= Isa::kAmx));
    if (kernels == nullptr) continue;
    for (int i = 0; i < 60; ++i) {
      const Index depth = i == 0 ? 20000 : draw(random, 1, 300), cols = draw(random, 1, 40),
                  matrices = draw(random, 1, 3);
      const auto deviation = static_cast<float>(draw(random, 0, 3) * 25);
      CAPTURE(i, depth, cols, matrices, deviation);
      const Packed p(*kernels, depth, cols, matrices, draw_bytes(random, matrices * depth * cols, deviation));
      for (Index m = 0; m < matrices; ++m)
        for (Index from = 0; from < depth; from += p.bands.band)
          for (Index col = 0; col < cols; col += kernels->panel) {
            const Index width = cols - col <= kernels->lanes ? kernels->lanes : kernels->panel;
            const std::vector<std::int32_t> elements = elements_of(p, m, from, col, width);
            for (std::size_t e = 0; e < elements.size(); ++e) {
              const Index k = static_cast<Index>(e) / width, j = col + static_cast<Index>(e) % width;
              const bool exists = k < p.bands.depth_at(from) && j < cols;
              const Index at = (m * depth + from + k) * cols + j;
              REQUIRE(elements[e] == (exists ? p.weights[static_cast<std::size_t>(at)] : 0));
            }
          }
    }
  }
}

TEST_CASE("a pair of weights has an excess if weights of one sign are more than 128 together", "[excess]") {
  const std::vector<Index> two = {0, 1}, one = {0};
  const auto has_excess = [&](std::int8_t a, std::int8_t b) {
    const std::int8_t pair[] = {a, b};
    return share_with_excess(pair, two, one) == 1;
  };
  CHECK(has_excess(127, 2));
  CHECK(has_excess(-128, -1));
  CHECK(has_excess(64, 65));
  CHECK_FALSE(has_excess(127, 1));
  CHECK_FALSE(has_excess(-128, 127));
  CHECK_FALSE(has_excess(-64, -64));
  // Two columns of four elements, stored interleaved, and stored one after the other.
  const std::int8_t weights[] = {127, 0, 127, 0, 127, 0, -127, 0};
  CHECK(share_with_excess(weights, std::vector<Index>{0, 2, 4, 6}, two) == 0.25);
  CHECK(share_with_excess(weights, std::vector<Index>{0, 1, 2, 3}, std::vector<Index>{0, 4}) == 0);
  CHECK(share_with_excess(weights, one, two) == 0);
}

TEST_CASE("products of capped quads are exact for all bytes", "[excess]") {
  std::mt19937 random(42);
  for (const Isa isa : usable_isas()) {
    const GemmKernels<CappedQuads>* kernels = form_loops<CappedQuads>({.isa = isa}).gemm;
    CHECK((kernels != nullptr) == (isa >= Isa::kAvx2 && isa <= Isa::kAmx));
    if (kernels == nullptr) continue;
    for (int i = 0; i < 200; ++i) {
      const Index depth = i == 0 ? 20000 : draw(random, 1, i % 3 == 0 ? 20 : 400), cols = draw(random, 1, 80),
                  rows = draw(random, 1, 100);
      const bool is_extreme = i % 5 == 0;  // all bytes are the least or the greatest
      const auto deviation = static_cast<float>(draw(random, 0, 3) * 25);
      CAPTURE(i, depth, cols, rows, deviation, is_extreme);
      std::vector<std::int8_t> left = draw_bytes(random, rows * depth, 0),
                               right = draw_bytes(random, depth * cols, deviation);
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
      column_terms(*kernels, p.bands, problem.b, problem.excess, problem.zero_point, bias.data());
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
