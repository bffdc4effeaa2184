// Elementwise functions without a vectorised loop. One definition serves both float domains, as T is float or
// double. It calls the C library in double, and rounds to T where torch rounds to its compute dtype, so that
// values overflow and cancel as in torch.
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "tosaic/kernels/elementwise_block.h"

namespace tosaic::kernels {
namespace {

using P = const Parameters&;

template <class T, class F>
void map1(const Parameters& parameters, const void* const* in, void* out, std::int64_t count) {
  const auto* x = static_cast<const T*>(in[0]);
  auto* result = static_cast<std::invoke_result_t<F, T, P>*>(out);
  for (std::int64_t i = 0; i < count; ++i) result[i] = F{}(x[i], parameters);
}

template <class T, class F>
void map2(const Parameters& parameters, const void* const* in, void* out, std::int64_t count) {
  const auto* a = static_cast<const T*>(in[0]);
  const auto* b = static_cast<const T*>(in[1]);
  auto* result = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) result[i] = F{}(a[i], b[i], parameters);
}

template <class T, class F>
void map3(const Parameters& parameters, const void* const* in, void* out, std::int64_t count) {
  const auto* a = static_cast<const T*>(in[0]);
  const auto* b = static_cast<const T*>(in[1]);
  const auto* c = static_cast<const T*>(in[2]);
  auto* result = static_cast<T*>(out);
  for (std::int64_t i = 0; i < count; ++i) result[i] = F{}(a[i], b[i], c[i], parameters);
}

struct Row {
  Function function;
  ElementwiseBlock block;
};

// ---- the inverse error function ----

// The start is within 1 %: it inverts the approximation
//
//   erf(x) ~ sgn(x) * sqrt(1 - exp(-x^2 * (4 / pi + a * x^2) / (1 + a * x^2)))
//
// in closed form. Three steps of Halley's method follow, each of which cubes the error. They work on erf for
// |y| <= 1/2 and on erfc beyond.
double erfinv(double y) {
  if (!(std::fabs(y) < 1.0)) return std::fabs(y) == 1.0 ? y * std::numeric_limits<double>::infinity() : NAN;
  if (y == 0.0) return y;
  const double size = std::fabs(y), rest = 1.0 - size;
  constexpr double kA = 0.147;
  const double log = std::log(rest * (1.0 + size));
  const double half = 2.0 / (M_PI * kA) + 0.5 * log;
  double x = std::sqrt(std::sqrt(half * half - log / kA) - half);
  for (int step = 0; step < 3; ++step) {
    const double slope = 2.0 / std::sqrt(M_PI) * std::exp(-x * x);
    const double error = size > 0.5 ? rest - std::erfc(x) : std::erf(x) - size;
    const double newton = error / slope;
    x -= newton / (1.0 + x * newton);
  }
  return std::copysign(x, y);
}

// ---- floats ----

#define TOSAIC_WIDE(Name, expression)            \
  template <class T>                             \
  struct Name {                                  \
    T operator()(T value, P) const {             \
      const auto x = static_cast<double>(value); \
      return static_cast<T>(expression);         \
    }                                            \
  };
TOSAIC_WIDE(Acos, std::acos(x))
TOSAIC_WIDE(Acosh, std::acosh(x))
TOSAIC_WIDE(Asin, std::asin(x))
TOSAIC_WIDE(Asinh, std::asinh(x))
TOSAIC_WIDE(Atan, std::atan(x))
TOSAIC_WIDE(Atanh, std::atanh(x))
TOSAIC_WIDE(Cosh, std::cosh(x))
TOSAIC_WIDE(Erfc, std::erfc(x))
TOSAIC_WIDE(Erfinv, erfinv(x))
TOSAIC_WIDE(Expm1, std::expm1(x))
TOSAIC_WIDE(Log10, std::log10(x))
TOSAIC_WIDE(Log1p, std::log1p(x))
TOSAIC_WIDE(Log2, std::log2(x))
TOSAIC_WIDE(Sinh, std::sinh(x))
TOSAIC_WIDE(Tan, std::tan(x))
TOSAIC_WIDE(LogSigmoid, std::fmin(x, 0.0) - std::log1p(std::exp(-std::fabs(x))))
#undef TOSAIC_WIDE

// x * tanh(log1p(e^x)), where an e^x that rounds to 0 in T counts as 0.
template <class T>
struct Mish {
  T operator()(T value, P) const {
    const auto x = static_cast<double>(value);
    const double exp = std::exp(x);
    const bool vanishes = static_cast<T>(exp) == T(0);
    return static_cast<T>(x * std::tanh(std::log1p(vanishes ? 0.0 : exp)));
  }
};
template <class T>
struct Softplus {
  T operator()(T value, P p) const {
    const T scaled = value * static_cast<T>(p.alpha);
    if (scaled > static_cast<T>(p.high)) return value;
    const auto exp = static_cast<double>(static_cast<T>(std::exp(static_cast<double>(scaled))));
    return static_cast<T>(static_cast<T>(std::log1p(exp)) / static_cast<T>(p.alpha));
  }
};
template <class T>
struct EluScaled {
  T operator()(T x, P p) const {
    if (!(x <= 0)) return x * static_cast<T>(p.low);
    const auto tail = static_cast<T>(std::expm1(static_cast<double>(x * static_cast<T>(p.high))));
    return tail * static_cast<T>(p.alpha * p.low);
  }
};
template <class T>
struct Softshrink {
  T operator()(T x, P p) const {
    const auto bound = static_cast<T>(p.alpha);
    if (x > bound) return x - bound;
    if (x < -bound) return x + bound;
    return std::isnan(x) ? x : T{0};
  }
};
template <class T>
struct Hardshrink {
  T operator()(T x, P p) const {
    const auto bound = static_cast<T>(p.alpha);
    return x >= -bound && x <= bound ? T{0} : x;
  }
};
template <class T>
struct IsInf {
  bool operator()([[maybe_unused]] T x, P) const {
    if constexpr (std::is_integral_v<T>)
      return false;
    else
      return std::isinf(x);
  }
};
template <class T>
struct NanToNum {
  T operator()(T x, P p) const {
    if (std::isnan(x)) return static_cast<T>(p.alpha);
    if (std::isinf(x)) return static_cast<T>(x > 0 ? p.high : p.low);
    return x;
  }
};

template <class T>
struct Fmod {
  T operator()(T a, T b, P) const { return std::fmod(a, b); }
};
template <class T>
struct Remainder {
  T operator()(T a, T b, P) const {
    const T rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
};
template <class T>
struct Atan2 {
  T operator()(T a, T b, P) const {
    return static_cast<T>(std::atan2(static_cast<double>(a), static_cast<double>(b)));
  }
};
template <class T>
struct Prelu {
  T operator()(T x, T slope, P) const { return x > 0 ? x : x * slope; }
};

// Interpolates from the nearer end with a fused multiply-add, like torch's vectorised loop.
template <class T>
struct Lerp {
  T operator()(T start, T end, T weight, P) const {
    const bool near_start = std::fabs(weight) < static_cast<T>(0.5);
    return std::fma(near_start ? weight : weight - 1, end - start, near_start ? start : end);
  }
};
template <class T>
struct Addcmul {
  T operator()(T x, T a, T b, P p) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(x) +
                            static_cast<U>(p.int_alpha) * static_cast<U>(a) * static_cast<U>(b));
    } else {
      return std::fma(static_cast<T>(p.alpha) * a, b, x);  // fused, like torch's vectorised loop
    }
  }
};
template <class T>
struct Addcdiv {
  T operator()(T x, T a, T b, P p) const { return x + static_cast<T>(p.alpha) * a / b; }
};

template <class T>
constexpr Row kFloats[] = {
    {Function::kAcos, map1<T, Acos<T>>},
    {Function::kAcosh, map1<T, Acosh<T>>},
    {Function::kAsin, map1<T, Asin<T>>},
    {Function::kAsinh, map1<T, Asinh<T>>},
    {Function::kAtan, map1<T, Atan<T>>},
    {Function::kAtanh, map1<T, Atanh<T>>},
    {Function::kCosh, map1<T, Cosh<T>>},
    {Function::kErfc, map1<T, Erfc<T>>},
    {Function::kErfinv, map1<T, Erfinv<T>>},
    {Function::kExpm1, map1<T, Expm1<T>>},
    {Function::kLog10, map1<T, Log10<T>>},
    {Function::kLog1p, map1<T, Log1p<T>>},
    {Function::kLog2, map1<T, Log2<T>>},
    {Function::kSinh, map1<T, Sinh<T>>},
    {Function::kTan, map1<T, Tan<T>>},
    {Function::kLogSigmoid, map1<T, LogSigmoid<T>>},
    {Function::kMish, map1<T, Mish<T>>},
    {Function::kSoftplus, map1<T, Softplus<T>>},
    {Function::kEluScaled, map1<T, EluScaled<T>>},
    {Function::kSoftshrink, map1<T, Softshrink<T>>},
    {Function::kHardshrink, map1<T, Hardshrink<T>>},
    {Function::kIsInf, map1<T, IsInf<T>>},
    {Function::kNanToNum, map1<T, NanToNum<T>>},
    {Function::kFmod, map2<T, Fmod<T>>},
    {Function::kRemainder, map2<T, Remainder<T>>},
    {Function::kAtan2, map2<T, Atan2<T>>},
    {Function::kPrelu, map2<T, Prelu<T>>},
    {Function::kLerp, map3<T, Lerp<T>>},
    {Function::kAddcmul, map3<T, Addcmul<T>>},
    {Function::kAddcdiv, map3<T, Addcdiv<T>>},
};

// ---- integers ----

// The caller checks that divisors are not zero.
template <class T>
struct FmodInteger {
  T operator()(T a, T b, P) const { return b == -1 ? T{0} : a % b; }
};
template <class T>
struct RemainderInteger {
  T operator()(T a, T b, P) const {
    const T rest = b == -1 ? T{0} : a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
};
template <class T>
struct Gcd {
  T operator()(T a, T b, P) const {
    using U = std::make_unsigned_t<T>;
    const auto size = [](T x) { return x < 0 ? U{0} - static_cast<U>(x) : static_cast<U>(x); };
    return static_cast<T>(std::gcd(size(a), size(b)));
  }
};
// A shift count outside [0, width) shifts all bits out: the result is 0 for a left shift, and 0 or -1 (the
// sign) for a right shift. T has at least `width` bits.
template <class T>
struct LeftShift {
  T operator()(T a, T b, P p) const {
    using U = std::make_unsigned_t<T>;
    return b < 0 || b >= p.width ? T{0} : static_cast<T>(static_cast<U>(a) << b);
  }
};
template <class T>
struct RightShift {
  T operator()(T a, T b, P p) const {
    return a >> (b < 0 || b >= p.width ? std::numeric_limits<T>::digits : b);
  }
};

template <class T>
constexpr Row kIntegers[] = {
    {Function::kIsInf, map1<T, IsInf<T>>},         {Function::kGcd, map2<T, Gcd<T>>},
    {Function::kFmod, map2<T, FmodInteger<T>>},    {Function::kRemainder, map2<T, RemainderInteger<T>>},
    {Function::kLeftShift, map2<T, LeftShift<T>>}, {Function::kRightShift, map2<T, RightShift<T>>},
    {Function::kAddcmul, map3<T, Addcmul<T>>},
};

template <std::size_t kCount>
ElementwiseBlock find_in(const Row (&rows)[kCount], Function function) {
  for (const Row& row : rows)
    if (row.function == function) return row.block;
  return nullptr;
}

}  // namespace

ElementwiseBlock find_function(Function function, Domain domain) {
  switch (domain) {
    case Domain::kF32:
      return find_in(kFloats<float>, function);
    case Domain::kF64:
      return find_in(kFloats<double>, function);
    case Domain::kI32:
      return find_in(kIntegers<std::int32_t>, function);
    case Domain::kI64:
      return find_in(kIntegers<std::int64_t>, function);
  }
  return nullptr;
}

}  // namespace tosaic::kernels
