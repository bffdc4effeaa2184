// weight_error: what the rounding of a weight costs at the result of its contraction.
//
//   error  = sum over channels of  E |(w - v) x|^2 = (w - v) M (w - v)T
//   signal = sum over channels of  E |w x|^2       = w M wT             M = E[x xT], of SecondMoments
//
// for weights w and rounded weights v. The expectation is the mean over all rows that were observed, and the
// sums are over the channels of one row of the result. `signal` does not contain the bias. signal / error is
// the signal-to-noise ratio of a result for which only this weight is rounded.
#pragma once

#include <span>
#include <vector>

#include "tosaic/quant/accuracy/second_moments.h"

namespace tosaic::quant {

struct WeightError {
  double error = 0, signal = 0;
  std::vector<double> channel_errors;  // by channel of the result
};

// `weights` and `rounded` are row-major, as the weight constant of the contraction is. Throws LayoutMismatch
// if the number of elements of either differs from that constant's.
[[nodiscard]] WeightError weight_error(const Contraction& contraction, const SecondMoments& moments,
                                       std::span<const float> weights, std::span<const float> rounded);

}  // namespace tosaic::quant
