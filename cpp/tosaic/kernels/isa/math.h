// Transcendental functions in double precision, for results that are rounded to float. Relative errors are
// near 1e-11, so the float is correctly rounded except for about one value in ten thousand. The exponential
// is also in float. The functions have no branches, so loops over them vectorise. Arguments come from floats.
// Infinities, NaN and signed zeros follow IEEE 754 / C99.
//
// The coefficients are the Chebyshev interpolation of the named function on the named interval, computed with
// 50 digits and rounded to double. The number after the colon is the maximal relative error of the
// polynomial.
#pragma once

#include <cstdint>

namespace tosaic::kernels::TOSAIC_ISA {
namespace {

inline constexpr double kInfinity = __builtin_inf();
inline constexpr double kNan = __builtin_nan("");
inline constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer, which is then in the low bits
inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

[[gnu::always_inline]] inline std::uint64_t word_of(double value) {
  return __builtin_bit_cast(std::uint64_t, value);
}
[[gnu::always_inline]] inline double double_of(std::uint64_t word) {
  return __builtin_bit_cast(double, word);
}
[[gnu::always_inline]] inline double with_sign(double magnitude, double sign) {
  constexpr std::uint64_t kSign = 1ull << 63;
  return double_of((word_of(magnitude) & ~kSign) | (word_of(sign) & kSign));
}
[[gnu::always_inline]] inline double magnitude_of(double value) {
  return double_of(word_of(value) & ~(1ull << 63));
}

template <int kCount>
[[gnu::always_inline]] inline double polynomial(const double (&coefficient)[kCount], double x) {
  double value = coefficient[kCount - 1];
#pragma GCC unroll 32
  for (int i = kCount - 2; i >= 0; --i) value = value * x + coefficient[i];
  return value;
}

// The parts of e^x. Let x = n * ln2 + r with an integer n and |r| <= ln2 / 2. Then scale = 2^n and expm1 =
// e^r - 1.
struct ExpParts {
  double scale, expm1;
};

// The polynomial approximates (e^r - 1) / r on |r| <= ln2 / 2: 5.2e-12. Requires |x| <= 709.
[[gnu::always_inline]] inline ExpParts exp_parts(double x) {
  constexpr double kCoefficients[] = {0.999999999995509,      0.4999999999995511,    0.16666666786308587,
                                      0.04166666678626573,    0.008333283538708528,  0.0013888839110572009,
                                      0.00019907569310848288, 2.4867870179687727e-05};
  const double shifted = x * kLog2E + kMagic;
  const double n = shifted - kMagic;
  const double r = x - n * kLn2;
  return {double_of((word_of(shifted) + 1023u) << 52), r * polynomial(kCoefficients, r)};
}

[[gnu::always_inline]] inline double exp_of(double x) {
  double bounded = x < -708.0 ? -708.0 : x;
  bounded = bounded > 709.0 ? 709.0 : bounded;
  const ExpParts parts = exp_parts(bounded);
  const double value = parts.scale + parts.scale * parts.expm1;
  const double low = x < -708.0 ? 0.0 : value;
  return x > 709.0 ? kInfinity : low;
}

// The parts of e^x in float. Let x = n * ln2 + r + low with an integer n and |r| <= ln2 / 2. Then `shifted`
// has n in its low bits, and square = e^(r + low) - 1 - r.
struct FloatExpParts {
  float shifted, r, square;
};

// The polynomial approximates (e^r - 1 - r) / r^2 on |r| <= ln2 / 2: 7.6e-10 of e^r. Requires |x| <= 104.
[[gnu::always_inline]] inline FloatExpParts float_exp_parts(float x) {
  constexpr float kCoefficients[] = {0.5f,           0.166666672f,   0.041666463f,
                                     0.00833331048f, 0.00139336858f, 0.000198910304f};
  constexpr float kShift = 0x1.8p23f;  // as kMagic
  constexpr float kLn2High = 0x1.62e4p-1f,
                  kLn2Low = 0x1.7f7d1cp-20f;  // products of the high part with n are exact
  const float shifted = x * 0x1.715476p+0f + kShift;
  const float n = shifted - kShift;
  const float high = x - n * kLn2High;
  const float r = high - n * kLn2Low;
  const float low = (high - r) - n * kLn2Low;
  float value = kCoefficients[5];
#pragma GCC unroll 5
  for (int i = 4; i >= 0; --i) value = value * r + kCoefficients[i];
  return {shifted, r, r * r * value + low};
}

[[gnu::always_inline]] inline float power_of_two(std::int32_t exponent) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(exponent + 127) << 23);
}

// e^x in float: within 0.75 units in the last place, for results below 2^-126 within 0.8.
[[gnu::always_inline]] inline float exp_of(float x) {
  float bounded = x < -104.0f ? -104.0f : x;
  bounded = bounded > 89.0f ? 89.0f : bounded;
  const FloatExpParts parts = float_exp_parts(bounded);
  // 1 + r is rounded. The next sum adds its rounding error and the other terms, and is rounded once more.
  const float sum = 1.0f + parts.r;
  const float value = sum + (parts.square + (parts.r - (sum - 1.0f)));
  // 2^n in two factors: n goes from -151 to 129. The product with the first one is normal.
  const std::int32_t n =
      __builtin_bit_cast(std::int32_t, parts.shifted) - __builtin_bit_cast(std::int32_t, 0x1.8p23f);
  const std::int32_t half = n >> 1;
  return value * power_of_two(half) * power_of_two(n - half);
}

// e^x for x <= 0 in float, within 2 units in the last place, and 0 below -87.
[[gnu::always_inline]] inline float exp_of_negative(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;
  const FloatExpParts parts = float_exp_parts(bounded);
  const float scale =
      __builtin_bit_cast(float, (__builtin_bit_cast(std::uint32_t, parts.shifted) + 127u) << 23);
  const float value = scale + scale * (parts.r + parts.square);
  return x < -87.0f ? 0.0f : value;
}

// e^x - 1. Requires x <= 60.
[[gnu::always_inline]] inline double expm1_of(double x) {
  const double bounded = x < -60.0 ? -60.0 : x;
  const ExpParts parts = exp_parts(bounded);
  return with_sign(parts.scale * parts.expm1 + (parts.scale - 1.0), x);
}

// log(x), for a positive normal double x = 2^e * m with sqrt(1/2) <= m < sqrt(2). Let s = (m - 1) / (m + 1).
// Then log(m) = 2 * atanh(s). The polynomial approximates (2 * atanh(s) / s - 2) / s^2 on s^2 <= 0.0295:
// 7e-16.
[[gnu::always_inline]] inline double log_of_positive(double x) {
  constexpr double kCoefficients[] = {0.6666666666666208,  0.400000000112122,   0.2857142413651635,
                                      0.22222862476849542, 0.18140185202493248, 0.166219470901774};
  constexpr std::uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull;
  const std::uint64_t biased = (word_of(x) - kSqrtHalf + (1024ull << 52)) >> 52;  // e + 1024
  const double e = double_of(biased | 0x4330000000000000ull) - (0x1p52 + 1024.0);
  const double m = double_of(word_of(x) - (biased << 52) + (1024ull << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  return e * kLn2 + (2.0 * s + s * z * polynomial(kCoefficients, z));
}

[[gnu::always_inline]] inline double log_of(double x) {
  const double safe = x > 0.0 && x < kInfinity ? x : 1.0;
  const double value = log_of_positive(safe);
  const double positive = x < kInfinity ? value : kInfinity;
  const double rest = x == 0.0 ? -kInfinity : kNan;
  return x > 0.0 ? positive : rest;
}

// sin(x + quarter * pi / 2) for |x| <= kTrigonometricLimit. x = n * pi / 2 + r, with pi / 2 in two parts of
// 33 and 53 bits. The polynomials on |r| <= pi / 4 approximate (sin r - r) / r^3: 1.9e-14; and (cos r - 1 +
// r^2 / 2) / r^4: 1.1e-15.
inline constexpr double kTrigonometricLimit = 1e5;
[[gnu::always_inline]] inline double sin_of(double x, std::uint64_t quarter) {
  constexpr double kSin[] = {-0.16666666666663885, 0.008333333331078323, -0.00019841266916110632,
                             2.7555990664728974e-06, -2.4805611712122475e-08};
  constexpr double kCos[] = {0.04166666666666468, -0.0013888888887276698, 2.480158521036455e-05,
                             -2.755636950618061e-07, 2.0700582941271302e-09};
  const double shifted = x * 0.63661977236758134308 + kMagic;
  const double n = shifted - kMagic;
  const double r = (x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34;
  const double z = r * r;
  const double sine = r * (1.0 + z * polynomial(kSin, z));
  const double cosine = 1.0 - 0.5 * z + z * z * polynomial(kCos, z);
  const std::uint64_t quadrant = word_of(shifted) + quarter;
  const double value = (quadrant & 1u) != 0 ? cosine : sine;
  return double_of(word_of(value) ^ ((quadrant & 2u) << 62));
}

[[gnu::always_inline]] inline double tanh_of(double x) {
  double doubled = 2.0 * x;
  doubled = doubled > 60.0 ? 60.0 : doubled;
  const double e = expm1_of(doubled);
  return with_sign(e / (e + 2.0), x);
}

[[gnu::always_inline]] inline double sigmoid_of(double x) { return 1.0 / (1.0 + exp_of(-x)); }

// erf(x). The polynomial approximates erf(x) / x in t = x^2 / 8 - 1 on |x| <= 4: 1.3e-11. Beyond |x| = 4,
// erf(x) is 1 or -1 as a float.
[[gnu::always_inline]] inline double erf_of(double x) {
  constexpr double kCoefficients[] = {0.35353099564340495,    -0.1765762332142376,    0.13167511686631903,
                                      -0.1077104489095233,    0.0902089961907006,     -0.07472772837517466,
                                      0.059886860225133925,   -0.045766463466210563,  0.03306107366347555,
                                      -0.022466263707243098,  0.014347216896437105,   -0.008629832983801853,
                                      0.004861257452313889,   -0.0025306721064139617, 0.001277072805758373,
                                      -0.0006727975797938545, 0.0002951384370466126,  -7.246152144638048e-05,
                                      3.2979383818983124e-05, -3.668360645354812e-05, 1.2874054698224224e-05};
  double bounded = x < -4.0 ? -4.0 : x;
  bounded = bounded > 4.0 ? 4.0 : bounded;
  return bounded * polynomial(kCoefficients, bounded * bounded * 0.125 - 1.0);
}

// The normal distribution function, whose relative error is small also in the left tail. There it is erfc(z)
// / 2 with z = |x| / sqrt(2), and erfc(z) = e^(-z^2) * erfcx(z). The polynomial approximates erfcx(z) * (z +
// 3) in t = (z - 3) / (z + 3) on 0 <= z <= 12: 2.6e-12.
[[gnu::always_inline]] inline double normal_distribution(double x) {
  constexpr double kCoefficients[] = {1.0740069070872948,      -0.8833944531967377,    0.5902283572916683,
                                      -0.31046726014232084,    0.11952775636322333,    -0.026827269144522187,
                                      -0.001212377835691759,   0.0030343622190529104,  -0.0005483577039702749,
                                      -0.0002780609760186349,  0.00010694129290872091, 3.295037879530343e-05,
                                      -1.4878507448399053e-05, -6.264488599072064e-06, -3.43337039551416e-07};
  const double z = magnitude_of(x) * 0.70710678118654752440;
  const double bounded = z > 12.0 ? 12.0 : z;
  const double inverse = 1.0 / (bounded + 3.0);
  const double tail =
      0.5 * exp_of(-0.5 * x * x) * polynomial(kCoefficients, (bounded - 3.0) * inverse) * inverse;
  return x < 0.0 ? tail : 1.0 - tail;
}

}  // namespace
}  // namespace tosaic::kernels::TOSAIC_ISA
