// metrics: measures how far one array is from another. Sums are computed in double.
#pragma once

#include <cstdint>
#include <optional>

#include "tosaic/exec/array.h"

namespace tosaic::exec {

// How far values v are from a reference r. Two NaNs, or two infinities of the same sign, are equal and do not
// enter the sums. A pair of a NaN and a number, or of an infinity and anything else, is a `nonfinite`
// mismatch: it makes max_abs, relative and max_ulp infinite and sqnr_db minus infinity. The cosine excludes
// it.
struct Metrics {
  std::uint64_t count = 0;       // elements compared
  std::uint64_t mismatches = 0;  // elements that are not equal (0 and -0 are equal)
  std::uint64_t nonfinite = 0;   // the mismatches with a NaN or an unmatched infinity
  double sqnr_db = 0;   // 10 log10(sum r^2 / sum (v - r)^2); inf if equal, -inf if r is zero and v is not
  double cosine = 1;    // 1 if both are zero, 0 if only one of them is
  double max_abs = 0;   // largest |v - r|
  double relative = 0;  // ||v - r|| / ||r||, Frobenius norms; 0 if equal, inf if r is zero and v is not
  // The largest |v - r| in units. The unit is MetricsOptions::unit, if it is set (the scale of quantized
  // values); otherwise 1 if either dtype is an integer; otherwise one unit in the last place of r in the
  // coarser of the two float dtypes. Subnormals have the unit of the smallest normal number.
  double max_ulp = 0;
  double p99_ulp = 0;  // at least 99 % of the elements differ by no more than this
};

struct MetricsOptions {
  std::optional<double> unit;  // the unit of max_ulp and p99_ulp, e.g. the scale of quantized values
};

// The arrays may have any dtypes and strides. Throws LayoutMismatch if their shapes differ.
[[nodiscard]] Metrics compute_metrics(const ArrayView& reference, const ArrayView& value,
                                      const MetricsOptions& options = {});

}  // namespace tosaic::exec
