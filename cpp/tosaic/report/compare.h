// compare: the results of comparing arrays and runs. The structs are plain data; python/tosaic/report formats
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tosaic::report {

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
  // The largest |v - r| in units. The unit is, in this order: the unit that the caller passed (the scale of
  // quantized values); 1 if either dtype is an integer; one unit in the last place of r in the coarser of the
  // two float dtypes. For subnormals, the unit in the last place is that of the smallest normal number.
  double max_ulp = 0;
  double p99_ulp = 0;  // at least 99 % of the elements differ by no more than this
};

// One FX node in two runs: the reference run a, and run b.
//
//   a_local = a's nodes since the last values that both runs have, computed on b's values
//
//   total      b's value against a's value
//   local      b's value against a_local: the error that b makes in these nodes
//   inherited  a_local against a's value: the error that the operands bring in, seen at the result
struct CompareRow {
  std::string fx_name;  // the FX node that both values come from; "conv2d.1" is its second result
  std::string op_a, op_b;
  std::string value_a, value_b;  // names of the values in their graphs
  std::string module_path, source;
  Metrics total;
  // Absent where a's node cannot be run alone, or where its operands are not known.
  std::optional<Metrics> local;
  std::optional<Metrics> inherited;
  // The local error divided by the error bound of the nodes that make it. A value above 1 means a wrong
  // result.
  std::optional<double> local_share;
};

// A value of a (or a reference array) that has no counterpart in b.
struct UnmatchedValue {
  std::string fx_name;
  std::string reason;  // "no node in b", "shape [1,8,4] against [1,32]"
};

struct Comparison {
  std::vector<CompareRow> rows;  // in the order of a's nodes
  std::vector<UnmatchedValue> unmatched;
  double threshold_db = 0;
  std::optional<std::size_t> first_divergence;  // index of the first row whose total is below the threshold
};

}  // namespace tosaic::report
