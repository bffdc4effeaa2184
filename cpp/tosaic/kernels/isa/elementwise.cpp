// Elementwise loops over blocks of f32, i32 and i64. A functor computes one element; map1() and map2() are
// the loops. Functions that are not exact in float are computed in double and rounded once.
#include "tosaic/kernels/elementwise_block.h"
#include "tosaic/kernels/isa/masked.h"
#include "tosaic/kernels/isa/math.h"
#include "tosaic/kernels/isa/rescale_vector.h"

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

using std::int32_t;
using std::int64_t;

template <class T>
inline constexpr bool kFloat = false;
template <>
inline constexpr bool kFloat<float> = true;

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
[[gnu::always_inline]] inline Unsigned<T> raw(T value) {
  return static_cast<Unsigned<T>>(value);
}

// ---- loops ----

template <class T, class Out, class F>
void map1(const Parameters& parameters, const void* const* in, void* out, int64_t count) {
  const auto* a = static_cast<const T*>(in[0]);
  auto* result = static_cast<Out*>(out);
  const F f(parameters);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) result[i] = static_cast<Out>(f(a[i]));
}

// Combines the elements of two operands. An operand whose bit is set in Parameters::scalars has one element
// only, which is combined with each element of the other operand.
template <class T, class Out, class F>
void map2(const Parameters& parameters, const void* const* in, void* out, int64_t count) {
  const auto* a = static_cast<const T*>(in[0]);
  const auto* b = static_cast<const T*>(in[1]);
  auto* result = static_cast<Out*>(out);
  const F f(parameters);
  if (parameters.scalars == 1) {
    const T first = *a;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) result[i] = static_cast<Out>(f(first, b[i]));
  } else if (parameters.scalars == 2) {
    const T second = *b;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) result[i] = static_cast<Out>(f(a[i], second));
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) result[i] = static_cast<Out>(f(a[i], b[i]));
  }
}

template <class T>
void where_block(const Parameters&, const void* const* in, void* out, int64_t count) {
  const auto* condition = static_cast<const T*>(in[0]);
  const auto* a = static_cast<const T*>(in[1]);
  const auto* b = static_cast<const T*>(in[2]);
  auto* result = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const T x = a[i];
    const T y = b[i];
    result[i] = condition[i] != T{} ? x : y;
  }
}

struct Stateless {
  explicit Stateless(const Parameters&) {}
};

// Functors of one element x, or of two elements a and b.
#define TOSAIC_OF_ONE(Result, Name, expression) \
  struct Name : Stateless {                     \
    using Stateless::Stateless;                 \
    template <class T>                          \
    Result operator()(T x) const {              \
      return expression;                        \
    }                                           \
  };
#define TOSAIC_OF_TWO(Result, Name, expression) \
  struct Name : Stateless {                     \
    using Stateless::Stateless;                 \
    template <class T>                          \
    Result operator()(T a, T b) const {         \
      return expression;                        \
    }                                           \
  };

// ---- functors of every domain ----

TOSAIC_OF_ONE(T, Identity, x)
TOSAIC_OF_ONE(T, Relu, x < T{} ? T{} : x)
TOSAIC_OF_ONE(T, Sign, static_cast<T>((x > T{} ? T{1} : T{}) - (x < T{} ? T{1} : T{})))
TOSAIC_OF_ONE(bool, LogicalNot, x == T{})

template <class T>
struct Bounds {
  explicit Bounds(const Parameters& p)
      : low(static_cast<T>(kFloat<T> ? static_cast<T>(p.low) : static_cast<T>(p.int_low))),
        high(static_cast<T>(kFloat<T> ? static_cast<T>(p.high) : static_cast<T>(p.int_high))) {}
  T low, high;
};
template <class T>
struct Clamp : Bounds<T> {
  using Bounds<T>::Bounds;
  T operator()(T x) const {
    const T raised = x < this->low ? this->low : x;
    return raised > this->high ? this->high : raised;
  }
};
template <class T>
struct ClampNumbers : Bounds<T> {
  using Bounds<T>::Bounds;
  T operator()(T x) const {
    const T raised = x > this->low ? x : this->low;
    return raised < this->high ? raised : this->high;
  }
};

template <class T>
struct Low : Bounds<T> {
  using Bounds<T>::Bounds;
  T operator()(T) const { return this->low; }
};

// Integers wrap.
#define TOSAIC_ARITHMETIC(Name, op)              \
  template <class T>                             \
  struct Name : Stateless {                      \
    using Stateless::Stateless;                  \
    T operator()(T a, T b) const {               \
      if constexpr (kFloat<T>)                   \
        return a op b;                           \
      else                                       \
        return static_cast<T>(raw(a) op raw(b)); \
    }                                            \
  };
TOSAIC_ARITHMETIC(Add, +)
TOSAIC_ARITHMETIC(Sub, -)
TOSAIC_ARITHMETIC(Mul, *)
#undef TOSAIC_ARITHMETIC

template <class T, bool kNegative>
struct AddScaled {
  explicit AddScaled(const Parameters& p)
      : alpha(kNegative ? -p.alpha : p.alpha),
        int_alpha(kNegative ? 0u - raw(p.int_alpha) : raw(p.int_alpha)) {}
  T operator()(T a, T b) const {
    if constexpr (kFloat<T>)
      return static_cast<T>(static_cast<double>(a) + alpha * static_cast<double>(b));
    else
      return static_cast<T>(raw(a) + static_cast<Unsigned<T>>(int_alpha) * raw(b));
  }
  double alpha;
  std::uint64_t int_alpha;
};

// The larger or the smaller operand. If one operand is NaN, the result is NaN or, with kNumbers, the other
// operand.
template <bool kLarger, bool kNumbers>
struct Extremum : Stateless {
  using Stateless::Stateless;
  template <class T>
  T operator()(T a, T b) const {
    const bool is_first = kLarger ? a > b : a < b;  // false if an operand is NaN
    const T extremum = is_first ? a : b;
    const T other = kNumbers ? b : a;
    return other != other ? a : extremum;
  }
};
using Maximum = Extremum<true, false>;
using Minimum = Extremum<false, false>;
using MaximumNumbers = Extremum<true, true>;
using MinimumNumbers = Extremum<false, true>;

TOSAIC_OF_TWO(bool, Equal, a == b)
TOSAIC_OF_TWO(bool, NotEqual, a != b)
TOSAIC_OF_TWO(bool, Less, a < b)
TOSAIC_OF_TWO(bool, LessEqual, a <= b)
TOSAIC_OF_TWO(bool, Greater, a > b)
TOSAIC_OF_TWO(bool, GreaterEqual, a >= b)
TOSAIC_OF_TWO(bool, LogicalAnd, (a != T{}) & (b != T{}))
TOSAIC_OF_TWO(bool, LogicalOr, (a != T{}) | (b != T{}))
TOSAIC_OF_TWO(bool, LogicalXor, (a != T{}) != (b != T{}))

// ---- floats ----

// Unary functions that are computed in double and rounded once.
#define TOSAIC_UNARY(Name, expression)           \
  struct Name : Stateless {                      \
    using Stateless::Stateless;                  \
    float operator()(float value) const {        \
      const auto x = static_cast<double>(value); \
      return static_cast<float>(expression);     \
    }                                            \
  };
TOSAIC_UNARY(Erf, erf_of(x))
TOSAIC_UNARY(Log, log_of(x))
TOSAIC_UNARY(Rsqrt, 1.0 / __builtin_sqrt(x))
TOSAIC_UNARY(Sigmoid, sigmoid_of(x))
TOSAIC_UNARY(Tanh, tanh_of(x))
// A NaN is returned as it is: the sign of a product of two NaNs is that of the first factor, and compilers
// may exchange factors.
TOSAIC_UNARY(Gelu, x == x ? x * normal_distribution(x) : x)
TOSAIC_UNARY(GeluTanh, x / (1.0 + exp_of(x * (-1.5957691216057308 - 0.071354816272600251 * (x * x)))))
TOSAIC_UNARY(Silu, x / (1.0 + exp_of(-x)))
#undef TOSAIC_UNARY

// relu6(x + 3); NaN stays NaN.
[[gnu::always_inline]] inline double hard_ramp(double x) {
  const double raised = x + 3.0 < 0.0 ? 0.0 : x + 3.0;
  return raised > 6.0 ? 6.0 : raised;
}

#define TOSAIC_UNARY_FLOAT(Name, expression)               \
  struct Name : Stateless {                                \
    using Stateless::Stateless;                            \
    float operator()(float x) const { return expression; } \
  };
TOSAIC_UNARY_FLOAT(Exp, exp_of(x))
TOSAIC_UNARY_FLOAT(AbsFloat, __builtin_fabsf(x))
TOSAIC_UNARY_FLOAT(NegFloat, -x)
TOSAIC_UNARY_FLOAT(Ceil, __builtin_ceilf(x))
TOSAIC_UNARY_FLOAT(Floor, __builtin_floorf(x))
TOSAIC_UNARY_FLOAT(Round, __builtin_rintf(x))
TOSAIC_UNARY_FLOAT(Trunc, __builtin_truncf(x))
TOSAIC_UNARY_FLOAT(Sqrt, __builtin_sqrtf(x))
TOSAIC_UNARY_FLOAT(Reciprocal, 1.0f / x)
TOSAIC_UNARY_FLOAT(Hardsigmoid, static_cast<float>(hard_ramp(static_cast<double>(x)) / 6.0))
TOSAIC_UNARY_FLOAT(Hardswish,
                   static_cast<float>(static_cast<double>(x) * hard_ramp(static_cast<double>(x)) / 6.0))
#undef TOSAIC_UNARY_FLOAT

struct LeakyRelu {
  explicit LeakyRelu(const Parameters& p) : slope(p.alpha) {}
  float operator()(float x) const {
    const auto scaled = static_cast<float>(static_cast<double>(x) * slope);
    return x > 0.0f ? x : scaled;
  }
  double slope;
};
struct Elu {
  explicit Elu(const Parameters& p) : alpha(p.alpha) {}
  float operator()(float x) const {
    const double negative = static_cast<double>(x > 0.0f ? 0.0f : x);
    const auto tail = static_cast<float>(alpha * expm1_of(negative));
    return x > 0.0f ? x : tail;
  }
  double alpha;
};
struct Div : Stateless {
  using Stateless::Stateless;
  float operator()(float a, float b) const { return a / b; }
};
struct DivTruncFloat : Stateless {
  using Stateless::Stateless;
  float operator()(float a, float b) const { return __builtin_truncf(a / b); }
};
// torch's floor division: fmod is exact, so the quotient (a - remainder) / b is not rounded up across an
// integer.
struct DivFloorFloat : Stateless {
  using Stateless::Stateless;
  float operator()(float a, float b) const {
    if (b == 0.0f) return a / b;
    const float remainder = __builtin_fmodf(a, b);
    float quotient = (a - remainder) / b;
    if (remainder != 0.0f && (b < 0.0f) != (remainder < 0.0f)) quotient -= 1.0f;
    if (quotient == 0.0f) return __builtin_copysignf(0.0f, a / b);
    const float whole = __builtin_floorf(quotient);
    return quotient - whole > 0.5f ? whole + 1.0f : whole;
  }
};

// sin, cos and pow compute kPiece elements at a time with a vectorised loop. Then the C library recomputes
// the irregular elements, for which that loop is not valid.
inline constexpr int64_t kPiece = 128;

template <std::uint64_t kQuarter>
void trigonometric_block(const Parameters&, const void* const* in, void* out, int64_t count) {
  const auto* x = static_cast<const float*>(in[0]);
  auto* result = static_cast<float*>(out);
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t length = count - begin < kPiece ? count - begin : kPiece;
    float values[kPiece];
    int irregular = 0;
    for (int64_t i = 0; i < length; ++i) {
      const auto value = static_cast<double>(x[begin + i]);
      values[i] = static_cast<float>(sin_of(value, kQuarter));
      irregular |= magnitude_of(value) <= kTrigonometricLimit ? 0 : 1;
    }
    for (int64_t i = 0; irregular != 0 && i < length; ++i) {
      const auto value = static_cast<double>(x[begin + i]);
      if (!(magnitude_of(value) <= kTrigonometricLimit))
        values[i] = static_cast<float>(kQuarter == 0 ? __builtin_sin(value) : __builtin_cos(value));
    }
    __builtin_memcpy(result + begin, values, static_cast<std::size_t>(length) * sizeof(float));
  }
}

// True if the vectorised loop of pow_block() can compute base^exponent. The C library's pow computes the
// others. (A piece in which all exponents are 2 is computed as x * x.)
[[gnu::always_inline]] inline bool is_regular_power(double base, double exponent) {
  return base > 0.0 && base < kInfinity && magnitude_of(exponent) < kInfinity;
}

void pow_block(const Parameters&, const void* const* in, void* out, int64_t count) {
  const auto* bases = static_cast<const float*>(in[0]);
  const auto* exponents = static_cast<const float*>(in[1]);
  auto* result = static_cast<float*>(out);
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t length = count - begin < kPiece ? count - begin : kPiece;
    const float* base = bases + begin;
    const float* exponent = exponents + begin;
    float values[kPiece];
    int not_square = 0;
    for (int64_t i = 0; i < length; ++i) not_square |= exponent[i] == 2.0f ? 0 : 1;
    if (not_square == 0) {
      for (int64_t i = 0; i < length; ++i) values[i] = base[i] * base[i];
    } else {
      int irregular = 0;
      for (int64_t i = 0; i < length; ++i) {
        const auto b = static_cast<double>(base[i]);
        const auto e = static_cast<double>(exponent[i]);
        const bool regular = is_regular_power(b, e);
        values[i] = static_cast<float>(exp_of(e * log_of_positive(regular ? b : 1.0)));
        irregular |= regular ? 0 : 1;
      }
      for (int64_t i = 0; irregular != 0 && i < length; ++i) {
        const auto b = static_cast<double>(base[i]);
        const auto e = static_cast<double>(exponent[i]);
        if (!is_regular_power(b, e)) values[i] = static_cast<float>(__builtin_pow(b, e));
      }
    }
    __builtin_memcpy(result + begin, values, static_cast<std::size_t>(length) * sizeof(float));
  }
}

// ---- integers ----

TOSAIC_OF_ONE(T, AbsInteger, x < 0 ? static_cast<T>(0u - raw(x)) : x)
TOSAIC_OF_ONE(T, NegInteger, static_cast<T>(0u - raw(x)))
struct NegateZeroPoints {
  explicit NegateZeroPoints(const Parameters& p)
      : offset(p.first_zp + p.second_zp), low(p.int_low), high(p.int_high) {}
  template <class T>
  T operator()(T x) const {
    const int64_t value = offset - static_cast<int64_t>(x);
    const int64_t raised = value < low ? low : value;
    return static_cast<T>(raised > high ? high : raised);
  }
  int64_t offset, low, high;
};
TOSAIC_OF_ONE(T, BitwiseNot, ~x)
struct CountLeadingZeros : Stateless {
  using Stateless::Stateless;
  template <class T>
  T operator()(T x) const {
    const auto word = static_cast<std::uint32_t>(x);
    return word == 0 ? T{32} : static_cast<T>(__builtin_clz(word));
  }
};
TOSAIC_OF_TWO(T, BitwiseAnd, (a & b))
TOSAIC_OF_TWO(T, BitwiseOr, a | b)
TOSAIC_OF_TWO(T, BitwiseXor, a ^ b)
struct MulShift {
  explicit MulShift(const Parameters& p) : shift(p.shift), half(int64_t{1} << (p.shift - 1)) {}
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>((static_cast<int64_t>(a) * static_cast<int64_t>(b) + half) >> shift);
  }
  int64_t shift, half;
};
// The caller checks that divisors are not zero. The quotient of the least integer and -1 wraps.
template <class T>
[[gnu::always_inline]] inline T quotient(T a, T b) {
  return b == -1 ? static_cast<T>(0u - raw(a)) : a / b;
}
TOSAIC_OF_TWO(T, DivTruncInteger, quotient(a, b))
struct DivFloorInteger : Stateless {
  using Stateless::Stateless;
  template <class T>
  T operator()(T a, T b) const {
    const T q = quotient(a, b);
    const T remainder = b == -1 ? T{} : a % b;
    return remainder != 0 && (remainder < 0) != (b < 0) ? q - 1 : q;
  }
};
// With a negative exponent, the power is truncated: it is 0 unless the base is 1 or -1.
struct PowInteger : Stateless {
  using Stateless::Stateless;
  template <class T>
  T operator()(T base, T exponent) const {
    if (exponent < 0) {
      if (base == 1) return 1;
      if (base == -1) return (exponent & 1) != 0 ? T{-1} : T{1};
      return 0;
    }
    Unsigned<T> result = 1;
    Unsigned<T> power = raw(base);
    for (Unsigned<T> rest = raw(exponent); rest != 0; rest >>= 1) {
      if ((rest & 1u) != 0) result *= power;
      power *= power;
    }
    return static_cast<T>(result);
  }
};
// Shift counts are taken modulo 64. For counts in [0, width), the result is as the specification says.
struct ArithmeticRightShift {
  explicit ArithmeticRightShift(const Parameters& p) : round(p.round ? 1 : 0) {}
  template <class T>
  T operator()(T a, T b) const {
    const int64_t count = b & 63;
    const int64_t below = count == 0 ? 0 : (static_cast<int64_t>(a) >> (count - 1)) & round;
    return static_cast<T>((static_cast<int64_t>(a) >> count) + below);
  }
  int64_t round;
};
struct LogicalShift {
  explicit LogicalShift(const Parameters& p) : mask(p.width == 64 ? ~0ull : (1ull << p.width) - 1u) {}
  std::uint64_t mask;
};
struct LogicalLeftShift : LogicalShift {
  using LogicalShift::LogicalShift;
  int64_t operator()(int64_t a, int64_t b) const {
    return static_cast<int64_t>(static_cast<std::uint64_t>(a) << (b & 63));
  }
  int32_t operator()(int32_t a, int32_t b) const {
    const int32_t count = b & 63;
    return count > 31 ? 0 : static_cast<int32_t>(raw(a) << (count & 31));
  }
};
struct LogicalRightShift : LogicalShift {
  using LogicalShift::LogicalShift;
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>((static_cast<std::uint64_t>(a) & mask) >> (b & 63));
  }
};

#undef TOSAIC_OF_ONE
#undef TOSAIC_OF_TWO

// ---- products and shifts of i32 ----

#if defined(TOSAIC_RESCALES_VECTORS)

// Computes vectors of i32. The compiler does not vectorise the functors above. kFirst or kSecond is true if
// the operand is one element.
template <bool kFirst, bool kSecond, class F>
[[gnu::always_inline]] inline void vectors_of(const F& f, const int32_t* a, const int32_t* b, int32_t* result,
                                              int64_t count) {
  constexpr int64_t kWidth = kLanes<int32_t>;
  const V32 first = broadcast(*a), second = broadcast(*b);
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth)
    store(result + i, f(kFirst ? first : load(a + i), kSecond ? second : load(b + i)));
  if (i == count) return;
  const V32 left = kFirst ? first : load_part(a + i, count - i);
  const V32 right = kSecond ? second : load_part(b + i, count - i);
  store_part(result + i, f(left, right), count - i);
}

template <class F>
[[gnu::always_inline]] inline void map_vectors(const F& f, const Parameters& p, const void* const* in,
                                               void* out, int64_t count) {
  if (count == 0) return;
  const auto* a = static_cast<const int32_t*>(in[0]);
  const auto* b = static_cast<const int32_t*>(in[1]);
  auto* result = static_cast<int32_t*>(out);
  if (p.scalars == 1) return vectors_of<true, false>(f, a, b, result, count);
  if (p.scalars == 2) return vectors_of<false, true>(f, a, b, result, count);
  vectors_of<false, false>(f, a, b, result, count);
}

// A product, rounded and shifted, is a rescale of one operand by the other.
template <RescaleWay kWay>
void mul_shift_by(const Parameters& p, const void* const* in, void* out, int64_t count) {
  const V32 shifts = broadcast(static_cast<int32_t>(p.shift));
  map_vectors([shifts](V32 a, V32 b) { return rescale_vector(a, LaneScale<kWay>(b, shifts)); }, p, in, out,
              count);
}

void mul_shift_i32(const Parameters& p, const void* const* in, void* out, int64_t count) {
  // The high half of the greatest product is 2^30. So is the constant that rounds if the shift is 63, and
  // their sum has 33 bits.
  const bool high_halves = p.shift >= 33 && p.shift <= 62;
  return high_halves ? mul_shift_by<RescaleWay::kHigh>(p, in, out, count)
                     : mul_shift_by<RescaleWay::kSingle>(p, in, out, count);
}

// A shift by 31 has the bits of a shift by more.
[[gnu::always_inline]] inline V32 shifted_right(V32 a, V32 count) { return a >> (count > 31 ? 31 : count); }

void arithmetic_right_shift_i32(const Parameters& p, const void* const* in, void* out, int64_t count) {
  if (!p.round) return map_vectors([](V32 a, V32 b) { return shifted_right(a, b & 63); }, p, in, out, count);
  const auto rounded = [](V32 a, V32 b) {
    const V32 by = b & 63, below = shifted_right(a, (by - 1) & 63) & 1;
    return shifted_right(a, by) + (below & (by != 0));
  };
  map_vectors(rounded, p, in, out, count);
}

constexpr ElementwiseBlock kMulShiftI32 = mul_shift_i32, kRightShiftI32 = arithmetic_right_shift_i32;

#else

constexpr ElementwiseBlock kMulShiftI32 = map2<int32_t, int32_t, MulShift>,
                           kRightShiftI32 = map2<int32_t, int32_t, ArithmeticRightShift>;

#endif

// ---- tables ----

struct Row {
  Function function;
  ElementwiseLoop loop;

  constexpr Row(Function which, ElementwiseBlock block, bool takes_scalars = false)
      : function(which), loop{block, takes_scalars} {}
};

template <class T, class Out, class F>
constexpr Row binary(Function function) {
  return {function, map2<T, Out, F>, true};
}

// The functions that have the same definition in every domain.
template <class T>
constexpr Row kShared[] = {
    {Function::kIdentity, map1<T, T, Identity>},
    {Function::kSign, map1<T, T, Sign>},
    {Function::kRelu, map1<T, T, Relu>},
    {Function::kClamp, map1<T, T, Clamp<T>>},
    {Function::kClampNumbers, map1<T, T, ClampNumbers<T>>},
    {Function::kLow, map1<T, T, Low<T>>},
    {Function::kLogicalNot, map1<T, bool, LogicalNot>},
    binary<T, T, Add<T>>(Function::kAdd),
    binary<T, T, AddScaled<T, false>>(Function::kAddScaled),
    binary<T, T, Sub<T>>(Function::kSub),
    binary<T, T, AddScaled<T, true>>(Function::kSubScaled),
    binary<T, T, Mul<T>>(Function::kMul),
    binary<T, T, Maximum>(Function::kMaximum),
    binary<T, T, Minimum>(Function::kMinimum),
    binary<T, T, MaximumNumbers>(Function::kMaximumNumbers),
    binary<T, T, MinimumNumbers>(Function::kMinimumNumbers),
    binary<T, bool, Equal>(Function::kEq),
    binary<T, bool, NotEqual>(Function::kNe),
    binary<T, bool, Less>(Function::kLt),
    binary<T, bool, LessEqual>(Function::kLe),
    binary<T, bool, Greater>(Function::kGt),
    binary<T, bool, GreaterEqual>(Function::kGe),
    binary<T, bool, LogicalAnd>(Function::kLogicalAnd),
    binary<T, bool, LogicalOr>(Function::kLogicalOr),
    binary<T, bool, LogicalXor>(Function::kLogicalXor),
    {Function::kWhere, where_block<T>},
};

constexpr Row kFloatOnly[] = {
    {Function::kAbs, map1<float, float, AbsFloat>},
    {Function::kCeil, map1<float, float, Ceil>},
    {Function::kCos, trigonometric_block<1>},
    {Function::kErf, map1<float, float, Erf>},
    {Function::kExp, map1<float, float, Exp>},
    {Function::kFloor, map1<float, float, Floor>},
    {Function::kLog, map1<float, float, Log>},
    {Function::kNeg, map1<float, float, NegFloat>},
    {Function::kReciprocal, map1<float, float, Reciprocal>},
    {Function::kRound, map1<float, float, Round>},
    {Function::kRsqrt, map1<float, float, Rsqrt>},
    {Function::kSqrt, map1<float, float, Sqrt>},
    {Function::kSigmoid, map1<float, float, Sigmoid>},
    {Function::kSin, trigonometric_block<0>},
    {Function::kTanh, map1<float, float, Tanh>},
    {Function::kTrunc, map1<float, float, Trunc>},
    {Function::kLeakyRelu, map1<float, float, LeakyRelu>},
    {Function::kElu, map1<float, float, Elu>},
    {Function::kGelu, map1<float, float, Gelu>},
    {Function::kGeluTanh, map1<float, float, GeluTanh>},
    {Function::kSilu, map1<float, float, Silu>},
    {Function::kHardsigmoid, map1<float, float, Hardsigmoid>},
    {Function::kHardswish, map1<float, float, Hardswish>},
    binary<float, float, Div>(Function::kDiv),
    binary<float, float, DivFloorFloat>(Function::kDivFloor),
    binary<float, float, DivTruncFloat>(Function::kDivTrunc),
    {Function::kPow, pow_block},
};

template <class T>
constexpr Row kIntegerOnly[] = {
    {Function::kAbs, map1<T, T, AbsInteger>},
    {Function::kCeil, map1<T, T, Identity>},
    {Function::kFloor, map1<T, T, Identity>},
    {Function::kRound, map1<T, T, Identity>},
    {Function::kTrunc, map1<T, T, Identity>},
    {Function::kNeg, map1<T, T, NegInteger>},
    {Function::kNegateZeroPoints, map1<T, T, NegateZeroPoints>},
    {Function::kBitwiseNot, map1<T, T, BitwiseNot>},
    {Function::kCountLeadingZeros, map1<T, T, CountLeadingZeros>},
    {Function::kMulShift, sizeof(T) == 4 ? kMulShiftI32 : map2<T, T, MulShift>, true},
    binary<T, T, DivFloorInteger>(Function::kDivFloor),
    binary<T, T, DivTruncInteger>(Function::kDivTrunc),
    binary<T, T, PowInteger>(Function::kPow),
    binary<T, T, BitwiseAnd>(Function::kBitwiseAnd),
    binary<T, T, BitwiseOr>(Function::kBitwiseOr),
    binary<T, T, BitwiseXor>(Function::kBitwiseXor),
    {Function::kArithmeticRightShift, sizeof(T) == 4 ? kRightShiftI32 : map2<T, T, ArithmeticRightShift>,
     true},
    binary<T, T, LogicalLeftShift>(Function::kLogicalLeftShift),
    binary<T, T, LogicalRightShift>(Function::kLogicalRightShift),
};

template <std::size_t kOwn, std::size_t kCommon>
ElementwiseLoop find_in(const Row (&own)[kOwn], const Row (&common)[kCommon], Function function) {
  for (const Row& row : own)
    if (row.function == function) return row.loop;
  for (const Row& row : common)
    if (row.function == function) return row.loop;
  return {};
}

ElementwiseLoop find_loop(Function function, Domain domain) {
  switch (domain) {
    case Domain::kF32:
      return find_in(kFloatOnly, kShared<float>, function);
    case Domain::kI32:
      return find_in(kIntegerOnly<int32_t>, kShared<int32_t>, function);
    case Domain::kI64:
      return find_in(kIntegerOnly<int64_t>, kShared<int64_t>, function);
    case Domain::kF64:
      return {};
  }
  return {};
}

}  // namespace

const ElementwiseKernels kElementwiseKernels{find_loop};

}  // namespace tosaic::kernels::TOSAIC_ISA
