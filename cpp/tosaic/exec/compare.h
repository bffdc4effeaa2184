// compare: two runs of one program, node by node.
//
//   a (reference):  x -> conv -> relu -> linear        values are matched by origin: for each FX node a
//   value of b (lowered):   x -> transpose -> conv -> clamp -> transpose -> ... -> conv     whose origin ends
//   in that node, the last one first
//
// For every match: the total error of b's value; the *local* error, b's value against what a's nodes make of
// b's values (local_error.h); and the *inherited* error, what a's nodes make of b's values against a's value.
// A node that is wrong has a large local error; one that only passes on what came in has a large inherited
// one.
//
// The axes of b's value may be a permutation of a's, or be regrouped. A permutation that the caller knows
// comes first; else, and where the value is wrong in that order, all are tried that give the shape: the order
// of a value is the one in which it is what a's nodes make of b's values. A wrong order shows where the value
// is read, and at the outputs. Values with qparams are compared as real numbers, in units of their scale.
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
  // Outputs to be compared: indices into the outputs of a's graph and of b's.
  struct OutputPair {
    std::uint32_t a = 0, b = 0;
    QParamsRef qparams;  // what integers of b stand for, where b does not know it
    // How b's axes may lie, where b does not know it: axis i of b is axis order[i] of a's; {}: as it is.
    // Where none of them fits, all that do are tried.
    std::vector<Dims> orders;
    std::string variable;  // not an output of b, but what its variable of this name holds after the run
    ArrayView expected;    // what a's output is elsewhere, e.g. in torch; no data: as a's run has it
  };
  std::vector<OutputPair> outputs;
};

// A pair of outputs as real numbers, in the logical axes of a.
struct ComparedOutput {
  Array a, b;
  std::optional<double> local_share;  // as of a row
  // Of floats below the threshold: the greatest distance to what is expected as a share of what errors of a
  // few units at every node from the inputs on come to. Differences of nearly equal numbers are noise.
  std::optional<double> carried_share;
};

struct ComparedRuns {
  report::Comparison report;
  std::vector<ComparedOutput> outputs;
};

// A result of an FX node as computed elsewhere, e.g. by torch eager.
struct NamedArray {
  std::string fx_name;
  std::uint32_t result = 0;
  ArrayView array;
};

// Inputs of a, and of b (whose border may differ). Both start from the initial values of their state.
// `reference`: what totals and inherited errors are measured against in the place of a's own run.
[[nodiscard]] ComparedRuns compare_runs(const std::shared_ptr<const Graph>& a,
                                        const std::shared_ptr<const Graph>& b,
                                        std::span<const ArrayView> inputs_a,
                                        std::span<const ArrayView> inputs_b, const CompareOptions& options,
                                        std::span<const NamedArray> reference = {});
// Their nodes alone.
[[nodiscard]] report::Comparison compare(const std::shared_ptr<const Graph>& a,
                                         const std::shared_ptr<const Graph>& b,
                                         std::span<const ArrayView> inputs_a,
                                         std::span<const ArrayView> inputs_b,
                                         const CompareOptions& options = {});

// Totals only: there is no reference graph to run nodes of. Options `a`, `local` and `outputs` are not used.
[[nodiscard]] report::Comparison compare_traces(std::span<const NamedArray> reference,
                                                const std::shared_ptr<const Graph>& b,
                                                std::span<const ArrayView> inputs_b,
                                                const CompareOptions& options = {});

}  // namespace tosaic::exec
