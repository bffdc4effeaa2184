// grouped_contraction: sums of products with a weight that has a scale for each group of input channels.
//
//   sum[c] = s_x * (s[c,0] * S[c,0] + s[c,1] * S[c,1] + ..)    S[c,g]: the sum of the products of group g
//
// Each S[c,g] is exact. It is then converted to a unit of channel c in which sum[c] has at most 29 bits. The
// bias has this unit too. So a result of G groups is off by at most about G / 2 of these units.
//
//   linear, matmul    rows (rows, I) become (groups, rows, size). One MATMUL computes all S, one MUL by the
//                     scales converts them, and REDUCE_SUM adds them up
//   conv              for each group: a slice of the input, a convolution with its own filters, a RESCALE
//
// If the integers of a weight minus their zero points exceed i8, they become two digits to base 128.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

struct GroupedWeight {
  Shape shape;
  std::int64_t axis, along;  // of the result channels, and of the input channels
  std::int64_t channels, groups, size;
  std::vector<double> scales;  // [channels, groups]
  // The integers without their zero points are the sum of digit k times 128^k.
  struct Digit {
    ValueId id;                      // i8, of the weight's shape
    std::vector<std::int64_t> sums;  // [channels, groups]: the sum of |digit|
  };
  std::vector<Digit> digits;
};

// Operand i as a weight with result channels on `axis` and input channels on `along`. Returns nothing if it
// is not a constant with groups along that axis.
[[nodiscard]] std::optional<GroupedWeight> grouped_weight(const RuleContext& ctx, std::size_t i,
                                                          std::int64_t axis, std::int64_t along);

// rows (.., I) times a weight (O, I) or (I, O), plus operand 2 if there is one. The rows are the sum of
// `parts`.
[[nodiscard]] ScaledInteger grouped_row_products(const RuleContext& ctx,
                                                 const std::vector<ScaledInteger>& parts,
                                                 const GroupedWeight& weight);

// The sums of a convolution of some input channels with their filters, without a bias.
using Convolve = std::function<ScaledInteger(const ScaledInteger& input, const ScaledInteger& filters)>;

// The convolution of the sum of `parts`, plus operand 2 if there is one. `blocks` is the number of groups of
// the convolution itself.
[[nodiscard]] ScaledInteger grouped_convolution(const RuleContext& ctx,
                                                const std::vector<ScaledInteger>& parts,
                                                const GroupedWeight& weight, std::int64_t blocks,
                                                const Convolve& convolve);

}  // namespace tosaic::passes
