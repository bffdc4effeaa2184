// compare: two runs of one program, node by node.
//
//   a (reference):  x -> conv -> relu -> linear        values are matched by origin: for each FX node the
//   last value b (lowered):    x -> transpose -> conv -> clamp -> transpose -> ... -> conv     whose origin
//   ends in that node
//
// For every match: the total error of b's value; the *local* error, b's value against what a's node makes of
// b's operands; and the *inherited* error, what a's node makes of b's operands against a's value. A node that
// is wrong has a large local error; one that only passes on what came in has a large inherited one.
//
// Shapes may differ by a permutation that the caller states, or by a reshape; the same extents in another
// order without a stated permutation are not compared. Values with qparams are compared as real numbers, in
// units of their scale.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tosaic/exec/session.h"
#include "tosaic/report/compare.h"

namespace tosaic::exec {

struct CompareOptions {
  PrepareOptions a, b;
  // Values of b, by name, whose axes are a permutation of a's: axis i of b's value is axis permutation[i] of
  // a's.
  std::map<std::string, Dims> permutations;
  double threshold_db = 30;  // a row below it is a divergence
  bool local = true;         // false leaves out local and inherited errors
};

// Inputs of a, and of b (whose border may differ).
[[nodiscard]] report::Comparison compare(const std::shared_ptr<const Graph>& a,
                                         const std::shared_ptr<const Graph>& b,
                                         std::span<const ArrayView> inputs_a,
                                         std::span<const ArrayView> inputs_b,
                                         const CompareOptions& options = {});

// A result of an FX node as computed elsewhere, e.g. by torch eager.
struct NamedArray {
  std::string fx_name;
  std::uint32_t result = 0;
  ArrayView array;
};

// Totals only: there is no reference graph to run nodes of. Options `a` and `local` are not used.
[[nodiscard]] report::Comparison compare_traces(std::span<const NamedArray> reference,
                                                const std::shared_ptr<const Graph>& b,
                                                std::span<const ArrayView> inputs_b,
                                                const CompareOptions& options = {});

}  // namespace tosaic::exec
