// Loops of normalizations and softmax. They compute in double and round each result once. The exponentials of
// attention are computed in float.
#include "tosaic/kernels/normalize_block.h"

#include "tosaic/kernels/isa/math.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using std::int64_t;

// e^x for results that are rounded to T.
template <class T>
[[gnu::always_inline]] inline double exponential(double x);
template <>
[[gnu::always_inline]] inline double exponential<float>(double x) {
  return exp_of(x);
}
template <>
[[gnu::always_inline]] inline double exponential<double>(double x) {
  return __builtin_exp(x);
}

template <class T>
void affine(const T* x, int64_t count, double scale, double shift, T* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<double>(x[i]) * scale + shift);
}

template <class T>
void affine_columns(const T* x, int64_t count, const double* scale, const double* shift, T* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<T>(static_cast<double>(x[i]) * scale[i] + shift[i]);
}

template <class T>
void affine_weighted(const T* x, int64_t count, double scale, double shift, const double* weight,
                     const double* bias, T* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<T>((static_cast<double>(x[i]) * scale + shift) * weight[i] + bias[i]);
}

inline constexpr int kLanes = 16;

template <class T, class From>
[[gnu::always_inline]] inline double exp_sum_of(const From* x, int64_t count, double max, double* exps) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    double values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      values[lane] = exponential<T>(static_cast<double>(x[i + lane]) - max);
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += values[lane];
    if (exps != nullptr)
      for (int lane = 0; lane < kLanes; ++lane) exps[i + lane] = values[lane];
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const double value = exponential<T>(static_cast<double>(x[i]) - max);
    lanes[lane] += value;
    if (exps != nullptr) exps[i] = value;
  }
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

template <class T>
double exp_sum(const T* x, int64_t count, double max, double* exps) {
  return exp_sum_of<T, T>(x, count, max, exps);
}

// The number of elements after which the sums of floats are added up in double.
inline constexpr int64_t kSumPiece = 512;

double exp_float_scores(float* scores, int64_t count, float max) {
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kSumPiece) {
    const int64_t end = count - begin < kSumPiece ? count : begin + kSumPiece;
    float lanes[2 * kLanes] = {};
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes)
      for (int lane = 0; lane < 2 * kLanes; ++lane) {
        const float value = exp_of_negative(scores[i + lane] - max);
        scores[i + lane] = value;
        lanes[lane] += value;
      }
    for (int lane = 0; i < end; ++i, ++lane) {
      scores[i] = exp_of_negative(scores[i] - max);
      lanes[lane] += scores[i];
    }
    for (int half = kLanes; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    total += static_cast<double>(lanes[0]);
  }
  return total;
}

double exp_double_scores(double* scores, int64_t count, double max) {
  return exp_sum_of<double, double>(scores, count, max, scores);
}

template <class T>
constexpr ExpScores<T> exp_scores();
template <>
constexpr ExpScores<float> exp_scores() {
  return exp_float_scores;
}
template <>
constexpr ExpScores<double> exp_scores() {
  return exp_double_scores;
}

template <class T>
void exp_columns(const T* x, int64_t count, const double* max, double* exps, double* sums) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const double value = exponential<T>(static_cast<double>(x[i]) - max[i]);
    exps[i] = value;
    sums[i] += value;
  }
}

template <class T>
void subtract(const T* x, int64_t count, double first, double second, T* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>((static_cast<double>(x[i]) - first) - second);
}

template <class T>
void subtract_columns(const T* x, int64_t count, const double* first, const double* second, T* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<T>((static_cast<double>(x[i]) - first[i]) - second[i]);
}

template <class T>
void scale(const double* values, int64_t count, double factor, T* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(values[i] * factor);
}

template <class T>
void scale_columns(const double* values, int64_t count, const double* factors, T* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(values[i] * factors[i]);
}

template <class T>
constexpr NormalizeLoops<T> loops() {
  return {affine<T>,   affine_columns<T>,   affine_weighted<T>, exp_sum<T>,       exp_columns<T>,
          subtract<T>, subtract_columns<T>, scale<T>,           scale_columns<T>, exp_scores<T>()};
}

}  // namespace

const NormalizeKernels kNormalizeKernels{loops<float>(), loops<double>()};

}  // namespace tosaic::kernels::TOSAIC_ISA
