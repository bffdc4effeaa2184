// Interval: the numbers from `low` to `high`, both included, and arithmetic on such ranges.
//
// An operation returns an interval that contains its result for all numbers of its operands:
//
//   sum({1, 2}, {-5, 10}) = {-4, 12}      product({-1, 2}, {3, 4}) = {-4, 8}      magnitude({-3, 2}) = {0, 3}
//
// Integers: bounds are exact. A bound beyond 64 bits saturates: it becomes the least or the largest integer.
// Floats: bounds are computed as C++ computes, rounded to nearest. They are not rounded outward, so the
// caller widens the interval by the rounding of the operation that it describes. 0 times infinity counts as
// 0. A bound is NaN if two infinities cancel in it.
#pragma once

#include <algorithm>
#include <concepts>
#include <limits>

namespace tosaic {

template <class T>
struct Interval {
  T low = 0, high = 0;

  // All numbers of T; for floats, from -infinity to infinity.
  [[nodiscard]] static constexpr Interval all() {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity) return {-Limits::infinity(), Limits::infinity()};
    return {Limits::lowest(), Limits::max()};
  }
  [[nodiscard]] static constexpr Interval only(T value) { return {value, value}; }

  [[nodiscard]] constexpr bool contains(T value) const { return low <= value && value <= high; }
  [[nodiscard]] constexpr bool contains(const Interval& other) const {
    return low <= other.low && other.high <= high;
  }
  bool operator==(const Interval&) const = default;
};

// The arithmetic of bounds. For integers it saturates; for floats see above.
namespace bounds {

template <std::signed_integral T>
[[nodiscard]] constexpr T sum(T a, T b) {
  using Limits = std::numeric_limits<T>;
  T out = 0;
  if (__builtin_add_overflow(a, b, &out)) return b < 0 ? Limits::min() : Limits::max();
  return out;
}
template <std::signed_integral T>
[[nodiscard]] constexpr T product(T a, T b) {
  using Limits = std::numeric_limits<T>;
  T out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return (a < 0) != (b < 0) ? Limits::min() : Limits::max();
  return out;
}
template <std::signed_integral T>
[[nodiscard]] constexpr T negated(T a) {
  using Limits = std::numeric_limits<T>;
  return a == Limits::min() ? Limits::max() : -a;
}

template <std::floating_point T>
[[nodiscard]] constexpr T sum(T a, T b) {
  return a + b;
}
template <std::floating_point T>
[[nodiscard]] constexpr T product(T a, T b) {
  return a == 0 || b == 0 ? 0 : a * b;
}
template <std::floating_point T>
[[nodiscard]] constexpr T negated(T a) {
  return -a;
}

}  // namespace bounds

// The smallest interval that contains both.
template <class T>
[[nodiscard]] constexpr Interval<T> united(const Interval<T>& a, const Interval<T>& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

template <class T>
[[nodiscard]] constexpr Interval<T> sum(const Interval<T>& a, const Interval<T>& b) {
  return {bounds::sum(a.low, b.low), bounds::sum(a.high, b.high)};
}

template <class T>
[[nodiscard]] constexpr Interval<T> product(const Interval<T>& a, const Interval<T>& b) {
  const T corners[] = {bounds::product(a.low, b.low), bounds::product(a.low, b.high),
                       bounds::product(a.high, b.low), bounds::product(a.high, b.high)};
  return {*std::min_element(corners, corners + 4), *std::max_element(corners, corners + 4)};
}

template <class T>
[[nodiscard]] constexpr Interval<T> negated(const Interval<T>& a) {
  return {bounds::negated(a.high), bounds::negated(a.low)};
}

// The interval of |x|.
template <class T>
[[nodiscard]] constexpr Interval<T> magnitude(const Interval<T>& a) {
  const T largest = std::max(bounds::negated(a.low), a.high);
  return {a.low > 0 ? a.low : a.high < 0 ? bounds::negated(a.high) : T{0}, largest};
}

// The intervals of max(x, y) and min(x, y).
template <class T>
[[nodiscard]] constexpr Interval<T> larger_of(const Interval<T>& a, const Interval<T>& b) {
  return {std::max(a.low, b.low), std::max(a.high, b.high)};
}
template <class T>
[[nodiscard]] constexpr Interval<T> smaller_of(const Interval<T>& a, const Interval<T>& b) {
  return {std::min(a.low, b.low), std::min(a.high, b.high)};
}

// An interval that contains both the truncated and the floored quotient. Both are monotone in either operand
// as long as the divisor does not change sign. If the divisor may be 0, the interval is everything up to the
// magnitude of `a`.
template <std::signed_integral T>
[[nodiscard]] constexpr Interval<T> quotient(const Interval<T>& a, const Interval<T>& b) {
  if (b.contains(T{0})) {
    const Interval<T> largest = magnitude(a);
    return united(largest, negated(largest));
  }
  Interval<T> out{std::numeric_limits<T>::max(), std::numeric_limits<T>::min()};
  for (const T x : {a.low, a.high})
    for (const T y : {b.low, b.high}) {
      const T truncated = y == -1 ? bounds::negated(x) : x / y;
      const bool is_exact = y == -1 || x % y == 0;
      const T floored = truncated - (!is_exact && (x < 0) != (y < 0) ? 1 : 0);
      out = united(out, {floored, truncated});
    }
  return out;
}

}  // namespace tosaic
