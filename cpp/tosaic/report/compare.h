// Results of comparing arrays and runs. Plain data; formatting is done elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tosaic::report {

// How far values are from a reference r. Pairs that are both NaN, or the same infinity, are equal and enter
// no sum. A pair with one NaN, or an infinity against anything else, is a `nonfinite` mismatch: it makes
// max_abs, relative and max_ulp infinite and sqnr_db minus infinity, and is left out of the cosine.
struct Metrics {
  std::uint64_t count = 0;       // elements compared
  std::uint64_t mismatches = 0;  // elements that are not equal (0 and -0 are)
  std::uint64_t nonfinite = 0;   // of these, the ones with a NaN or an unmatched infinity
  double sqnr_db = 0;  // 10 log10(sum r^2 / sum (v - r)^2); inf when equal, -inf for noise over a zero signal
  double cosine = 1;   // 1 when both are zero, 0 when one is
  double max_abs = 0;  // greatest |v - r|
  double relative = 0;  // Frobenius norm of v - r over that of r; 0 when equal, inf over a zero signal
  // |v - r| in units in the last place of r in the coarser of the two float dtypes (subnormals: of the
  // smallest normal number), or in units of 1 where either dtype is an integer, or in the unit that was
  // given.
  double max_ulp = 0;
  double p99_ulp = 0;  // 99 % of the elements are this near or nearer
};

// One FX node in two runs: the reference a, and b.
struct CompareRow {
  std::string fx_name;  // the FX node both values stem from; "conv2d.1" is its second result
  std::string op_a, op_b;
  std::string value_a, value_b;  // names of the values in their graphs
  std::string module_path, source;
  Metrics total;  // b's value against a's
  // b's value against what a's nodes make of b's values, from the last ones that both have: the error made
  // here. Absent where a node cannot be run alone, or has operands that are not known.
  std::optional<Metrics> local;
  // What a's node makes of b's operands against a's value: the error that came in, as it looks behind the
  // node.
  std::optional<Metrics> inherited;
  // The local error as a share of the bound of the nodes that make it: above 1 the value is wrong.
  std::optional<double> local_share;
};

// A value of a (or a reference array) that has nothing to be compared with.
struct UnmatchedValue {
  std::string fx_name;
  std::string reason;  // "no node in b", "shape [1,8,4] against [1,32]"
};

struct Comparison {
  std::vector<CompareRow> rows;  // in the order of a
  std::vector<UnmatchedValue> unmatched;
  double threshold_db = 0;
  std::optional<std::size_t> first_divergence;  // index of the first row whose total is below the threshold
};

}  // namespace tosaic::report
