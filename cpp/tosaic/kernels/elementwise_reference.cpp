// The definitions on doubles of the elementwise functions that have a vectorised loop. They are the reference
// of these loops, and the kernels of f64 operands.
#include <cmath>

#include "tosaic/kernels/elementwise_block.h"

namespace tosaic::kernels {
namespace {

template <double (*kFunction)(double, const Parameters&)>
void unary(const Parameters& parameters, const void* const* in, void* out, std::int64_t count) {
  const auto* x = static_cast<const double*>(in[0]);
  auto* result = static_cast<double*>(out);
  for (std::int64_t i = 0; i < count; ++i) result[i] = kFunction(x[i], parameters);
}

template <double (*kFunction)(double, double, const Parameters&)>
void binary(const Parameters& parameters, const void* const* in, void* out, std::int64_t count) {
  const auto* a = static_cast<const double*>(in[0]);
  const auto* b = static_cast<const double*>(in[1]);
  auto* result = static_cast<double*>(out);
  for (std::int64_t i = 0; i < count; ++i) result[i] = kFunction(a[i], b[i], parameters);
}

template <bool (*kFunction)(double, double)>
void predicate(const Parameters&, const void* const* in, void* out, std::int64_t count) {
  const auto* a = static_cast<const double*>(in[0]);
  const auto* b = static_cast<const double*>(in[1]);
  auto* result = static_cast<bool*>(out);
  for (std::int64_t i = 0; i < count; ++i) result[i] = kFunction(a[i], b[i]);
}

void logical_not(const Parameters&, const void* const* in, void* out, std::int64_t count) {
  const auto* x = static_cast<const double*>(in[0]);
  for (std::int64_t i = 0; i < count; ++i) static_cast<bool*>(out)[i] = x[i] == 0.0;
}

void where(const Parameters&, const void* const* in, void* out, std::int64_t count) {
  const auto* condition = static_cast<const double*>(in[0]);
  const auto* a = static_cast<const double*>(in[1]);
  const auto* b = static_cast<const double*>(in[2]);
  for (std::int64_t i = 0; i < count; ++i) static_cast<double*>(out)[i] = condition[i] != 0.0 ? a[i] : b[i];
}

double clamp(double x, double low, double high) {
  const double raised = x < low ? low : x;
  return raised > high ? high : raised;
}

double gelu_tanh(double x) {
  const double inner = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
  return x / (1.0 + std::exp(-2.0 * inner));  // equals x * (1 + tanh(inner)) / 2, but without cancellation
}

double maximum(double a, double b) {
  if (std::isnan(a)) return a;
  return a > b ? a : b;
}

double minimum(double a, double b) {
  if (std::isnan(a)) return a;
  return a < b ? a : b;
}

// fmod is exact, so the quotient (a - remainder) / b is not rounded up across an integer.
double floor_divide(double a, double b) {
  if (b == 0.0) return a / b;
  const double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0.0 && (b < 0.0) != (remainder < 0.0)) quotient -= 1.0;
  if (quotient == 0.0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

using P = const Parameters&;

struct Row {
  Function function;
  ElementwiseBlock block;
};

constexpr Row kRows[] = {
    {Function::kIdentity, unary<[](double x, P) { return x; }>},
    {Function::kAbs, unary<[](double x, P) { return std::fabs(x); }>},
    {Function::kCeil, unary<[](double x, P) { return std::ceil(x); }>},
    {Function::kCos, unary<[](double x, P) { return std::cos(x); }>},
    {Function::kErf, unary<[](double x, P) { return std::erf(x); }>},
    {Function::kExp, unary<[](double x, P) { return std::exp(x); }>},
    {Function::kFloor, unary<[](double x, P) { return std::floor(x); }>},
    {Function::kLog, unary<[](double x, P) { return std::log(x); }>},
    {Function::kNeg, unary<[](double x, P) { return -x; }>},
    {Function::kReciprocal, unary<[](double x, P) { return 1.0 / x; }>},
    {Function::kRound, unary<[](double x, P) { return std::nearbyint(x); }>},
    {Function::kRsqrt, unary<[](double x, P) { return 1.0 / std::sqrt(x); }>},
    {Function::kSqrt, unary<[](double x, P) { return std::sqrt(x); }>},
    {Function::kSigmoid, unary<[](double x, P) { return 1.0 / (1.0 + std::exp(-x)); }>},
    {Function::kSign, unary<[](double x, P) { return (0.0 < x ? 1.0 : 0.0) - (x < 0.0 ? 1.0 : 0.0); }>},
    {Function::kSin, unary<[](double x, P) { return std::sin(x); }>},
    {Function::kTanh, unary<[](double x, P) { return std::tanh(x); }>},
    {Function::kTrunc, unary<[](double x, P) { return std::trunc(x); }>},
    {Function::kRelu, unary<[](double x, P) { return x < 0.0 ? 0.0 : x; }>},
    {Function::kClamp, unary<[](double x, P p) { return clamp(x, p.low, p.high); }>},
    {Function::kClampNumbers,
     unary<[](double x, P p) { return clamp(std::isnan(x) ? p.low : x, p.low, p.high); }>},
    {Function::kLow, unary<[](double, P p) { return p.low; }>},
    {Function::kLeakyRelu, unary<[](double x, P p) { return 0.0 < x ? x : x * p.alpha; }>},
    {Function::kElu, unary<[](double x, P p) { return 0.0 < x ? x : p.alpha * std::expm1(x); }>},
    {Function::kGelu, unary<[](double x, P) { return 0.5 * x * std::erfc(-x * M_SQRT1_2); }>},
    {Function::kGeluTanh, unary<[](double x, P) { return gelu_tanh(x); }>},
    {Function::kSilu, unary<[](double x, P) { return x / (1.0 + std::exp(-x)); }>},
    {Function::kHardsigmoid, unary<[](double x, P) { return clamp(x + 3.0, 0.0, 6.0) / 6.0; }>},
    {Function::kHardswish, unary<[](double x, P) { return x * clamp(x + 3.0, 0.0, 6.0) / 6.0; }>},
    {Function::kLogicalNot, logical_not},
    {Function::kAdd, binary<[](double a, double b, P) { return a + b; }>},
    {Function::kAddScaled, binary<[](double a, double b, P p) { return std::fma(p.alpha, b, a); }>},
    {Function::kSub, binary<[](double a, double b, P) { return a - b; }>},
    {Function::kSubScaled, binary<[](double a, double b, P p) { return std::fma(-p.alpha, b, a); }>},
    {Function::kMul, binary<[](double a, double b, P) { return a * b; }>},
    {Function::kDiv, binary<[](double a, double b, P) { return a / b; }>},
    {Function::kDivFloor, binary<[](double a, double b, P) { return floor_divide(a, b); }>},
    {Function::kDivTrunc, binary<[](double a, double b, P) { return std::trunc(a / b); }>},
    {Function::kPow, binary<[](double a, double b, P) { return std::pow(a, b); }>},
    {Function::kMaximum, binary<[](double a, double b, P) { return maximum(a, b); }>},
    {Function::kMinimum, binary<[](double a, double b, P) { return minimum(a, b); }>},
    {Function::kMaximumNumbers, binary<[](double a, double b, P) { return std::isnan(b) || b < a ? a : b; }>},
    {Function::kMinimumNumbers, binary<[](double a, double b, P) { return std::isnan(b) || a < b ? a : b; }>},
    {Function::kEq, predicate<[](double a, double b) { return a == b; }>},
    {Function::kNe, predicate<[](double a, double b) { return a != b; }>},
    {Function::kLt, predicate<[](double a, double b) { return a < b; }>},
    {Function::kLe, predicate<[](double a, double b) { return a <= b; }>},
    {Function::kGt, predicate<[](double a, double b) { return b < a; }>},
    {Function::kGe, predicate<[](double a, double b) { return b <= a; }>},
    {Function::kLogicalAnd, predicate<[](double a, double b) { return a != 0.0 && b != 0.0; }>},
    {Function::kLogicalOr, predicate<[](double a, double b) { return a != 0.0 || b != 0.0; }>},
    {Function::kLogicalXor, predicate<[](double a, double b) { return (a != 0.0) != (b != 0.0); }>},
    {Function::kWhere, where},
};

}  // namespace

ElementwiseBlock find_reference(Function function) {
  for (const Row& row : kRows)
    if (row.function == function) return row.block;
  return nullptr;
}

}  // namespace tosaic::kernels
