// normalize_block: the loops of normalizations and softmax over arrays of T (float, double), with statistics
// in double.
#pragma once

#include <cstdint>

#include "tosaic/kernels/block.h"
#include "tosaic/kernels/isa/each_set.h"

namespace tosaic::kernels {

template <class T>
using ExpScores = double (*)(T* scores, std::int64_t count, T max);

// In the formulas, x and out mean x[i] and out[i], for each i < count. The loops named *_columns have one
// statistic per element. The arrays must not overlap, except that out may be x.
template <class T>
struct NormalizeLoops {
  // out = x * scale + shift
  void (*affine)(const T* x, std::int64_t count, double scale, double shift, T* out) = nullptr;
  // out = x * scale[i] + shift[i]
  void (*affine_columns)(const T* x, std::int64_t count, const double* scale, const double* shift,
                         T* out) = nullptr;
  // out = (x * scale + shift) * weight[i] + bias[i]
  void (*affine_weighted)(const T* x, std::int64_t count, double scale, double shift, const double* weight,
                          const double* bias, T* out) = nullptr;
  // Returns the sum of e^(x - max), added in a fixed order. Writes the exponentials to `exps` if not null.
  double (*exp_sum)(const T* x, std::int64_t count, double max, double* exps) = nullptr;
  // exps[i] = e^(x - max[i]), sums[i] += exps[i]
  void (*exp_columns)(const T* x, std::int64_t count, const double* max, double* exps,
                      double* sums) = nullptr;
  // out = (x - first) - second
  void (*subtract)(const T* x, std::int64_t count, double first, double second, T* out) = nullptr;
  // out = (x - first[i]) - second[i]
  void (*subtract_columns)(const T* x, std::int64_t count, const double* first, const double* second,
                           T* out) = nullptr;
  // out = values[i] * factor
  void (*scale)(const double* values, std::int64_t count, double factor, T* out) = nullptr;
  // out = values[i] * factors[i]
  void (*scale_columns)(const double* values, std::int64_t count, const double* factors, T* out) = nullptr;
  // exp_scores: returns the sum of e^(scores[i] - max) and overwrites each score by its exponential. No score
  // is greater than `max`. An exponential below 1e-38 may be 0.
  ExpScores<T> exp_scores = nullptr;
};

struct NormalizeKernels {
  NormalizeLoops<float> f32;
  NormalizeLoops<double> f64;  // with the C library's exp; the reference also uses these loops
};

TOSAIC_IN_EACH_SET(extern const NormalizeKernels kNormalizeKernels;)

template <class T>
[[nodiscard]] const NormalizeLoops<T>& loops_of(const NormalizeKernels& kernels);
template <>
[[nodiscard]] inline const NormalizeLoops<float>& loops_of<float>(const NormalizeKernels& kernels) {
  return kernels.f32;
}
template <>
[[nodiscard]] inline const NormalizeLoops<double>& loops_of<double>(const NormalizeKernels& kernels) {
  return kernels.f64;
}

}  // namespace tosaic::kernels
