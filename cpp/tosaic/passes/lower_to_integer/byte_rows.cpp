#include "tosaic/passes/lower_to_integer/byte_rows.h"

#include <algorithm>
#include <cmath>

#include "tosaic/ir/quantized.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"

namespace tosaic::passes {
namespace {

double largest_of(const std::optional<std::vector<double>>& numbers, double otherwise) {
  if (!numbers) return otherwise;
  double largest = 0;
  for (const double number : *numbers) largest = std::max(largest, std::abs(number));
  return largest;
}

// The largest numbers of the rows, and of their products with the weight, that are not beyond the range of
// `to` after the weight and the bias.
struct Reach {
  double row = 0, product = 0;
};

Reach reach_of(std::int64_t count, const Affine& affine, const QParams& to) {
  const double largest = largest_number(to) + 2 * to.scales.front() + largest_of(affine.bias, 0);
  const double least = std::sqrt(static_cast<double>(count)) * 1.01;  // no row has larger numbers
  double row = affine.weight ? 0 : largest;
  if (affine.weight)
    for (const double weight : *affine.weight)
      if (weight != 0) row = std::max(row, largest / std::abs(weight));
  row = std::min(row, least);
  return {row, std::min(row * largest_of(affine.weight, 1), largest)};
}

// r * weight + bias for rows of 16 bits. Each constant has 16 bits, so Ethos-U widens it within the operator.
ScaledInteger with_affine(IntegerBuilder& build, const ScaledInteger& r, const Affine& affine,
                          const Reach& reach) {
  constexpr std::int64_t kMost = 32767;
  IntegerMath m(build);
  const auto constant = [&](const std::vector<double>& numbers, double unit, std::int64_t factor) {
    std::vector<std::int64_t> integers;
    for (const double number : numbers) integers.push_back(std::llround(number / unit) * factor);
    return build.constant(DType::kI32, {1, 1, 1, static_cast<std::int64_t>(numbers.size())}, integers);
  };
  ScaledInteger out = r;
  if (affine.weight) {
    const double unit = largest_of(affine.weight, 1) / kMost;
    const ScaledInteger row = rescaled(build, r, DType::kI16, reach.row / kMost);
    const ValueId product = m.mul(widened(build, row).id, constant(*affine.weight, unit, 1), 0);
    out = {product, {row.scale() * unit}, 0, {-kMost * kMost, kMost * kMost}};
  }
  if (!affine.bias || largest_of(affine.bias, 0) == 0) return out;
  const ScaledInteger product = rescaled(build, out, DType::kI16, reach.product / kMost);
  const double bias = largest_of(affine.bias, 0) / kMost;
  const double unit = std::ldexp(std::max(product.scale(), bias), -14);
  const int shift =
      std::max(0, std::ilogb(bias / unit) + 1);  // a unit of the bias is 2^shift units of the sum
  const ValueId addend = constant(*affine.bias, std::ldexp(unit, shift), std::int64_t{1} << shift);
  const ScaledInteger wide = rescaled(build, product, DType::kI32, unit);
  const std::int64_t most = std::int64_t{1} << 29;  // of the bias
  return {m.add(wide.id, addend), {unit}, 0, {wide.range.low - most, wide.range.high + most}};
}

// ---- numbers of rows, by operators that Ethos-U55 has: no GATHER, no AND, shifts that round ----

// The largest even number up to x, which is at least 0.
ValueId even_of(IntegerMath& m, ValueId x) { return m.left(m.right(m.add(x, -1), 1, true), 1); }

// 2^60 / v for v in [2^30, 2^31), by Newton's method, with a relative error below 2^-26. With d = v / 2^31
// and x in units of 2^-29: x = 48/17 - 32/17 * d is off by 1/17 at most, and x + x * (1 - d * x) by the
// square.
ValueId reciprocal_of(IntegerMath& m, ValueId v) {
  constexpr std::int64_t kOne = 1 << 29;
  ValueId x =
      m.sub(std::llround(48.0 / 17 * kOne), m.mul(v, m.number(v, std::llround(16.0 / 17 * kOne)), 30));
  for (int step = 0; step < 3; ++step) x = m.add(x, m.mul(x, m.sub(kOne, m.mul(v, x, 31)), 29));
  return x;
}

// 2^44.5 / sqrt(v) for v in [2^29, 2^31), by Newton's method, with a relative error below 2^-23. With w = v /
// 2^31 and y in units of 2^-29: y = 2.134 - 1.22 * w is off by 9 % at most, and y + y * (1 - w * y^2) / 2 by
// 3/2 of the square.
ValueId reciprocal_root_of(IntegerMath& m, ValueId v) {
  constexpr std::int64_t kOne = 1 << 29;
  ValueId y = m.sub(std::llround(2.134 * kOne), m.mul(v, m.number(v, std::llround(0.61 * kOne)), 30));
  for (int step = 0; step < 3; ++step) {
    const ValueId product = m.mul(m.mul(y, y, 30), v, 31);  // w * y^2 in units of 2^-28
    y = m.add(y, m.mul(y, m.sub(kOne / 2, product), 29));
  }
  return y;
}

// n * eps, in squares of units of x.
double eps_of_row(const Norm& norm, const ScaledInteger& x, std::int64_t count) {
  return norm.eps / (x.scale() * x.scale()) * static_cast<double>(count);
}

// The numbers of the form norm_of_halfwords() that do not depend on rows.
struct Halfwords {
  int drop = 0;           // bits that (d / 2^drop)^2 drops, so that its sums have 31
  int most_exponent = 0;  // of e
  std::int64_t eps = 0;   // in units of v, if e is most_exponent

  Halfwords(std::int64_t count, double eps_of_row)
      : drop(std::ilogb(static_cast<double>(count)) / 2 + 2),
        most_exponent(std::min(14, drop + 1 + ((28 - std::ilogb(eps_of_row)) >> 1))),
        eps(fits() ? std::llround(std::ldexp(eps_of_row, 2 * (most_exponent - drop - 1))) : 0) {}

  [[nodiscard]] bool fits() const { return most_exponent >= 0; }
  // True if v is at least 2^26 in every row.
  [[nodiscard]] bool eps_bounds() const { return eps >= 1 << 26; }
};

}  // namespace

std::int64_t extent(const IntegerBuilder& build, ValueId x, std::int64_t axis) {
  return build.type(x).shape[static_cast<std::size_t>(axis)];
}

ScaledInteger below(IntegerBuilder& build, const ScaledInteger& x, ValueId top) {
  IntegerMath m(build);
  ScaledInteger out = x;
  out.id = m.sub(in_32_bits(build, x.id), in_32_bits(build, top));  // zero points cancel
  out.zero_point = 0;
  out.range = {x.range.low - x.range.high, 0};
  out.minus_infinity.reset();
  return out;
}

bool shares_fit_16_bits(const IntegerBuilder& build, const ScaledInteger& x, std::int64_t axis,
                        const std::optional<QParams>& to) {
  constexpr double kLeastUnit = 0x1p-11;
  constexpr std::int64_t kMostTerms = 4096;
  return build.type(x.id).dtype == DType::kI8 && !x.axis && to && !to->axis &&
         to->scales.front() >= kLeastUnit && extent(build, x.id, axis) <= kMostTerms;
}

ScaledInteger shares_of_bytes(IntegerBuilder& build, const ScaledInteger& x, std::int64_t axis) {
  IntegerMath m(build);
  constexpr std::int64_t kTop = 127, kHalf = 128;
  const ScaledInteger least = below(build, x, m.max(x.id, axis));
  const ScaledInteger d = rescaled(build, {least.id, {1.0}, 0, {-255, 0}}, DType::kI8, 1.0, kTop);
  const auto byte = [&](int shift) {
    std::vector<std::int64_t> entries;
    for (std::int64_t q = -kHalf; q <= kTop; ++q) {
      const double exp = std::exp(static_cast<double>(q - kTop) * x.scale());
      entries.push_back(((std::llround(exp * 0xffffff) >> shift) & 255) - kHalf);
    }
    const ValueId id =
        build.emit(Op::kTosaTable, NoAttrs{}, {d.id, build.constant(DType::kI8, {256}, entries)});
    return ScaledInteger{id, {1.0}, -kHalf, {-kHalf, kTop}};
  };
  const ScaledInteger high = byte(16), middle = byte(8), low = byte(0);
  const auto sum = [&](const ScaledInteger& bytes) { return m.sum(widened(build, bytes).id, axis); };
  const ValueId total =
      m.add(m.add(m.left(sum(high), 8), sum(middle)), m.right(sum(low), 8, true));  // at least 2^16 - 1
  const IntegerMath::Scaled scaled = m.normalized(total);
  const ValueId reciprocal =
      m.minimum(m.right(reciprocal_of(m, scaled.mantissa), m.sub(29, scaled.shift), true), 32767);
  const auto in_16_bits = [&](ValueId id, double unit, ValueRange range) {
    return widened(build, rescaled(build, {id, {1.0}, 0, range}, DType::kI16, unit)).id;
  };
  const ScaledInteger upper = rescaled(build, high, DType::kI32, 1.0 / 256);
  const ValueId exps = m.add(upper.id, widened(build, middle).id);
  const ValueId product =
      m.mul(in_16_bits(exps, 2.0, {0, 65535}), in_16_bits(reciprocal, 1.0, {0, 32767}), 0);
  return {product, {std::ldexp(1.0, -IntegerMath::kExpBits)}, 0, {0, 32767 * 32767}};
}

bool norm_fits_16_bits(const IntegerBuilder& build, const ScaledInteger& x, const Norm& norm,
                       const Affine& affine, const QParams& to) {
  constexpr std::int64_t kMostTerms = 4096;
  const std::int64_t count = extent(build, x.id, norm.axis);
  const DType dtype = build.type(x.id).dtype;
  const auto n = static_cast<double>(count);
  const double eps = eps_of_row(norm, x, count), weight = largest_of(affine.weight, 1);
  if ((dtype != DType::kI8 && dtype != DType::kI16) || x.axis || to.axis || eps <= 0) return false;
  if (count < 2 || count > kMostTerms || weight == 0) return false;
  const Reach reach = reach_of(count, affine, to);
  const double of_bias = largest_of(affine.bias, 0) * 0x1p-15, unit = to.scales.front();
  if (dtype == DType::kI16) {
    const double error = (weight * std::sqrt(n) + reach.product * (std::sqrt(n) + 4)) * std::pow(2.0, -14.9);
    return Halfwords(count, eps).fits() && error + of_bias <= unit / 2;
  }
  constexpr double kMostEps = 0x1p20;  // larger ones would leave these few bits
  const double error = weight * (std::sqrt(n) + 2 * reach.row) * 0x1p-15;
  return eps < kMostEps && std::max(error, of_bias) <= unit / 8;
}

ScaledInteger norm_of_halfwords(IntegerBuilder& build, const ScaledInteger& from, const Norm& norm,
                                const Affine& affine, const QParams& to) {
  IntegerMath m(build);
  const std::int64_t axis = norm.axis, count = extent(build, from.id, axis);
  const auto n = static_cast<double>(count);
  const Halfwords form(count, eps_of_row(norm, from, count));
  const auto wide = [&](const ScaledInteger& x) { return widened(build, x).id; };
  const auto narrow = [&](ValueId id, std::int64_t most, double unit = 1.0) {
    return rescaled(build, {id, {1.0}, 0, {-most, most}}, DType::kI16, unit);
  };
  const auto half = [&](ValueId x) { return m.right(m.add(x, -1), 1, true); };  // rounded down
  ScaledInteger x = from;                                                       // in units of 1
  x.scales = {1.0};
  ScaledInteger c, coarse;
  ValueId f;
  if (norm.centred) {
    const ValueId sum = m.sum(wide(x), axis);
    c = rescaled(build, {sum, {1 / n}, 0, {-32768 * count, 32768 * count}}, DType::kI16, 1.0);
    const ValueId rest = m.sub(sum, build.binary(Op::kTosaMul, wide(c), m.number(sum, count)));
    f = rescaled(build, {rest, {1 / n}, 0, {-count, count}}, DType::kI32, 0x1p-15).id;
    coarse = narrow(m.sub(wide(x), wide(c)), 65535, std::ldexp(1.0, form.drop));
  } else {
    coarse = rescaled(build, x, DType::kI16, std::ldexp(1.0, form.drop));
  }
  // e, from a bound of the largest |d|
  const ValueId squares = m.sum(m.mul(wide(coarse), wide(coarse), 0), axis);
  const ValueId bound = m.add(m.add(squares, m.right(squares, 3, true)), 5);
  const ValueId e = m.minimum(m.sub(16, half(m.sub(33, m.clz(bound)))), form.most_exponent);
  const ScaledInteger factor = narrow(m.left(m.number(e, 1), e), 1 << 14);
  ScaledInteger y;
  if (norm.centred) {
    const ValueId mean = m.add(build.binary(Op::kTosaMul, wide(c), wide(factor)), m.mul(f, wide(factor), 15));
    const ValueId product = build.binary(Op::kTosaMul, wide(x), wide(factor));
    y = narrow(m.sub(product, mean), std::int64_t{1} << (17 + form.drop), std::ldexp(1.0, form.drop + 1));
  } else {
    y = narrow(m.mul(wide(x), wide(factor), form.drop + 1), 32768);
  }
  // v, and g in units of sqrt(n) * 2^-27.5
  ValueId v = m.sum(m.mul(wide(y), wide(y), 0), axis);
  v = m.maximum(m.add(v, m.right(m.number(v, form.eps), m.left(m.sub(form.most_exponent, e), 1), true)), 1);
  ValueId exponent = m.number(v, 17);
  if (!form.eps_bounds()) {
    const ValueId h = half(m.maximum(m.add(m.clz(v), -5), 0));
    y = narrow(m.mul(wide(y), wide(narrow(m.left(m.number(h, 1), h), 1 << 14)), 0), 32768);
    exponent = m.add(h, 17);
  }
  const ValueId even = even_of(m, m.add(m.clz(v), -1));
  const ValueId root = reciprocal_root_of(m, m.left(v, even));
  const ValueId g = m.minimum(m.right(root, m.sub(exponent, m.right(even, 1, true)), true), 32767);
  const auto most = static_cast<std::int64_t>(std::ceil(std::pow(2.0, 27.5) * 1.01));
  const ScaledInteger r{
      m.mul(wide(y), wide(narrow(g, 32767)), 0), {std::sqrt(n) * std::pow(2.0, -27.5)}, 0, {-most, most}};
  return with_affine(build, r, affine, reach_of(count, affine, to));
}

ScaledInteger norm_of_bytes(IntegerBuilder& build, const ScaledInteger& from, const Norm& norm,
                            const Affine& affine, const QParams& to) {
  IntegerMath m(build);
  const std::int64_t axis = norm.axis, count = extent(build, from.id, axis);
  const auto n = static_cast<double>(count);
  constexpr std::int64_t kMost = 32767;
  const auto wide = [&](const ScaledInteger& x) { return widened(build, x).id; };
  // i32 integers within `most` as i16, in a coarser unit.
  const auto narrow = [&](ValueId id, std::int64_t most, double unit = 1.0) {
    return rescaled(build, {id, {1.0}, 0, {-most, most}}, DType::kI16, unit);
  };
  ScaledInteger x = from;  // in units of 1
  x.scales = {1.0};
  const auto byte = [&](ValueId id) {
    ScaledInteger same = x;
    same.id = id;
    return same;
  };
  ScaledInteger c;
  ValueId f;
  if (norm.centred) {
    const ValueId sum = m.sum(wide(x), axis);
    c = rescaled(build, {sum, {1 / n}, 0, {-255 * count, 255 * count}}, DType::kI8, 1.0, x.zero_point);
    const ValueId rest = m.sub(sum, build.binary(Op::kTosaMul, wide(c), m.number(sum, count)));
    f = rescaled(build, {rest, {1 / n}, 0, {-count, count}}, DType::kI32, 0x1p-15).id;
  }
  const auto less_mean = [&](ValueId id) {
    return norm.centred ? m.sub(wide(byte(id)), wide(c)) : wide(byte(id));
  };
  const ScaledInteger d = norm.centred ? narrow(less_mean(x.id), 255) : rescaled(build, x, DType::kI16, 1.0);
  const ValueId size = build.binary(Op::kTosaMaximum, m.abs(less_mean(m.max(x.id, axis))),
                                    m.abs(less_mean(m.min(x.id, axis))));
  // v has the shift h, which eps limits: n * eps * 2^h is below 2^29.
  const ValueId squares = m.sum(m.mul(wide(d), wide(d), 0), axis);
  const double eps = eps_of_row(norm, from, count);
  const int most_shift = std::clamp(28 - std::ilogb(eps), 0, 30) & ~1;
  const ValueId h = m.minimum(even_of(m, m.add(m.clz(m.maximum(squares, 1)), -2)), most_shift);
  ValueId v = m.left(squares, h);
  if (norm.centred) {
    // n * f^2 in units of 2^-20, then of 2^-h
    const ValueId mean = m.mul(m.mul(f, f, 0), m.number(f, count), 10);
    v = m.sub(v, m.left(m.right(mean, m.maximum(m.sub(20, h), 0), true), m.maximum(m.add(h, -20), 0)));
  }
  const std::int64_t part = std::llround(std::ldexp(eps, most_shift));
  v = m.add(v, m.right(m.number(v, part), m.sub(most_shift, h), true));
  v = m.maximum(v, 1);
  const ValueId even = even_of(m, m.add(m.clz(v), -1));
  const ValueId root = reciprocal_root_of(m, m.left(v, even));
  const ValueId j = m.add(m.clz(m.maximum(size, 1)), -17);
  const ValueId exponent =
      m.sub(m.right(m.add(h, even), 1, true), j);  // at most 1, but in rows of equal numbers
  const ValueId g = m.minimum(m.right(root, m.maximum(m.sub(16, exponent), 0), true), kMost);
  const ValueId scale = m.left(m.number(j, 1), j);
  ScaledInteger y = narrow(m.mul(wide(d), wide(narrow(scale, kMost)), 0), kMost);
  if (norm.centred) y = narrow(m.sub(wide(y), wide(narrow(m.mul(f, scale, 15), kMost))), kMost);
  const auto most = static_cast<std::int64_t>(std::ceil(std::pow(2.0, 28.5) * 1.01));
  const ScaledInteger r{
      m.mul(wide(y), wide(narrow(g, kMost)), 0), {std::sqrt(n) * std::pow(2.0, -28.5)}, 0, {-most, most}};
  return with_affine(build, r, affine, reach_of(count, affine, to));
}

}  // namespace tosaic::passes
