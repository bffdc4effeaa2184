// comparison: the result of comparing two runs, as plain data. python/tosaic/report formats it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tosaic/exec/metrics.h"

namespace tosaic::exec {

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
  // Absent if a's node cannot be run alone, or if its operands are not known.
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

}  // namespace tosaic::exec
