// gptq: rounds the weights of a contraction so that the errors of its columns cancel each other at the
// result.
//
//   minimise E |(w - v) x|^2 = |L (w - v)T|^2 over v on the grid        E[x xT] = LT L, L lower triangular
//
// Columns are rounded one after another. The i-th row of L contains columns up to the i-th only:
//
//   v_i = round(w_i + (sum over j < i of L_ij (w_j - v_j)) / L_ii)
//
// which is the best v_i if later columns could take any number. These are the steps of Frantar et al., "GPTQ:
// Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2022), written as Babai's
// nearest plane (Chen et al., "The Geometry of LLM Quantization", 2025): no inverse of the moments is needed.
//
// Conditions and details:
//
// - `damping` times the mean of the diagonal is added to the diagonal. While the factorisation fails, the
//   damping is multiplied by ten, and is 1e-6 at least. Columns that are always zero have no effect on the
//   error, and are rounded to the nearest.
// - A channel gets the nearest weights unless its expected error, without damping, is less than with the
//   nearest weights. So the result is never worse than the nearest weights.
// - Results do not depend on the instruction set of the machine: the factorisation and the products come from
//   one build of Eigen with fixed block sizes.
#pragma once

#include <span>
#include <vector>

#include "tosaic/quant/accuracy/second_moments.h"

namespace tosaic::quant {

struct GptqOptions {
  double damping = 0.01;
  std::int64_t block = 128;  // columns whose errors are propagated together: affects speed only
  // Columns with large moments are rounded first; columns with equal moments stay in their order. False: all
  // columns are rounded in their order.
  bool activation_order = true;
  // The scales of a group are computed anew before its first column is rounded, from weights with the errors
  // of earlier columns. Its columns are rounded in a row, with activation_order those of groups with large
  // moments first. Needs qparams with groups of input channels, and zero points 0.
  bool fit_groups = false;
  bool search = true;  // fit_groups: as ScaleSearch::search
};

struct GptqResult {
  std::vector<float> weights;  // row-major; each is a number of the grid
  QParams qparams;             // the given ones, with other scales if fit_groups
  double error_before = 0;     // the expected squared error of a row of the result, for the nearest weights
  double error_after = 0;      // the same for `weights`
  double damping = 0;          // the largest damping of a group, as a share of the mean of the diagonal
  std::int64_t dead_columns = 0;      // columns that are always zero, of all groups
  std::int64_t nearest_channels = 0;  // channels that got the nearest weights
};

// Throws QuantMismatch for options out of range (damping is at least 0, block at least 1), for qparams that
// do not fit the weight, and if there are no rows in the moments, and LayoutMismatch for another number of
// weights.
[[nodiscard]] GptqResult gptq(const Contraction& contraction, const SecondMoments& moments,
                              std::span<const float> weights, const Shape& shape, const QParams& qparams,
                              const GptqOptions& options = {});

}  // namespace tosaic::quant
