// byte_rows: softmax and norms of rows of i8 numbers, and norms of i16 numbers, for results that become i8.
//
// Elements have 8 and 16 bits. Ethos-U widens these within sums and products (legalize_tosa/widening.h) and
// looks up tables of bytes within the operator before them; an operator over i32 takes two to four times as
// long, and a GATHER twenty times. Numbers of a row, such as its sum, have 32 bits.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/passes/lower_to_integer/integer_builder.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

// The extent of an axis of x.
[[nodiscard]] std::int64_t extent(const IntegerBuilder& build, ValueId x, std::int64_t axis);
// x - top in i32 and the unit of x, where `top` is the maximum of each row. The result is never positive.
[[nodiscard]] ScaledInteger below(IntegerBuilder& build, const ScaledInteger& x, ValueId top);

// True if shares of i8 numbers may be computed with 15 bits: their errors, which shares_of_bytes() states,
// are below an eighth of a unit of `to`.
[[nodiscard]] bool shares_fit_16_bits(const IntegerBuilder& build, const ScaledInteger& x, std::int64_t axis,
                                      const std::optional<QParams>& to);
// Shares of i8 numbers in units of 2^-30, with an error of at most 2^-14.4 plus the share times the number of
// terms times 2^-25.
//
//   d = x - max, as i8           an exp has 24 bits, which are three bytes: e = 65536 * e2 + 256 * e1 + e0
//   sum = sum(e) / 256           from the sums of the three bytes
//   share = (e / 512) * r        15 bits each; r = 2^31 / sum
//
// Each byte is a TABLE of d, which Ethos-U looks up within the difference. Products and sums read 8 and 16
// bits, which it widens within the operator. An exp of 30 bits would be a GATHER, and each step would read
// 32.
[[nodiscard]] ScaledInteger shares_of_bytes(IntegerBuilder& build, const ScaledInteger& x, std::int64_t axis);

// A norm of rows, without weight and bias.
struct Norm {
  double eps = 0;
  bool centred = true;  // subtract the mean of each row
  int axis = 0;         // the last one, which has the elements of a row
};

// The weight and the bias of a norm, one number for each element of a row. None: 1, and 0.
struct Affine {
  std::optional<std::vector<double>> weight, bias;
};

// True if a norm of i8 or i16 numbers may be computed with 16 bits: the errors of norm_of_bytes() are then
// below an eighth of a unit of `to`, and those of norm_of_halfwords() below a half.
[[nodiscard]] bool norm_fits_16_bits(const IntegerBuilder& build, const ScaledInteger& x, const Norm& norm,
                                     const Affine& affine, const QParams& to);
// A norm of rows of i8 numbers. Elements have 16 bits at most, which Ethos-U widens within products and
// differences. Numbers of a row, such as v, have 32 bits.
//
//   d = x - c       c: the mean of the row, as an integer; 0 if the norm does not subtract the mean
//   f = mean(d)     in units of 2^-15, from -1/2 to 1/2
//   v = (sum(d^2) - n * f^2 + n * eps) * 2^h, with an even h for which v has 27 bits or more
//   y = (d - f) * 2^j, where the largest |d| * 2^j of the row has 15 bits
//   r = y * g, with g = sqrt(n / v) * 2^(h / 2 - j) in one unit for all rows
//
// sum(d^2) is exact, and at least half of it remains without n * f^2, since c is the nearest integer to the
// mean. So the relative error of v is 2^-14 at most. Let F be the largest r that is not beyond the range of
// `to` after weight and bias; r saturates there. The absolute error of r is below (sqrt(n) + F) * 2^-15,
// since g has at least 14.5 bits less those of sqrt(n) / r. The product with the weight, and the bias, add F
// * 2^-15 times the largest weight.
[[nodiscard]] ScaledInteger norm_of_bytes(IntegerBuilder& build, const ScaledInteger& from, const Norm& norm,
                                          const Affine& affine, const QParams& to);
// A norm of rows of i16 numbers, such as sums of a residual stream. Elements have 16 bits at most but for one
// product. A maximum of 16 bits takes Ethos-U85 five times as long as a sum, so sums of squares bound the
// elements of a row.
//
//   d = x - mean(x)
//   s = sum((d / 2^k)^2)                 k: about half the bits of n, so that s has 30 bits
//   y = d * 2^(e - k - 1)                |d| <= 2^k * (sqrt(s) + 1/2) <= 2^(16 + k - e), so y has 16 bits
//   v = sum(y^2) + n * eps * 4^(e - k - 1)
//   r = y * g, with g = sqrt(n / v) in one unit for all rows
//
// sqrt(v) is at least 2^13.9 unless all |d| are below 2^k, or eps limits e. Each element of y is rounded by
// at most 1/2, which is an error of at most sqrt(n) * 2^-14.9 in r. The rounding errors also change v: the
// relative error of sqrt(v) is about 2^-15 if they are independent, and at most sqrt(n) * 2^-14.9 if all are
// equal. In a row in which all |d| are below 2^k, y is exact to 2^(k - 14) of a unit of x. Unless eps is far
// above the square of a unit of x, such a y is shifted left before the product with g.
[[nodiscard]] ScaledInteger norm_of_halfwords(IntegerBuilder& build, const ScaledInteger& from,
                                              const Norm& norm, const Affine& affine, const QParams& to);

}  // namespace tosaic::passes
