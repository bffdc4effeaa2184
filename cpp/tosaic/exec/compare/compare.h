// compare: compares two runs of one program, node by node.
//
//   a (reference):  x -> conv -> relu -> linear
//   b (lowered):    x -> transpose -> conv -> clamp -> transpose -> ... -> conv
//
// Values are matched by origin. A node of b belongs to the latest FX node among its origins (fx_nodes.h). For
// each FX node, the nodes of b that belong to it are candidates, the last one first.
//
// Each match has three errors:
// - total: b's value against a's value.
// - local: b's value against the value that a's nodes compute from b's values (local_error.h).
// - inherited: the value that a's nodes compute from b's values, against a's value.
// A wrong node has a large local error. A node that only passes on an error of its operands has a large
// inherited error.
//
// The axes of b's value may be a permutation of a's axes, or a regrouping (reshape) of them. The values of a
// graph that was lowered to stage tosa know their permutation (Value::canonical_order); this permutation is
// tried first. All permutations that fit the shape are tried if the permutation is not known (as in a graph
// that was read from a file), or if the value is wrong with it. Then the permutation in which b's value
// equals what a's nodes compute from b's values is assumed to be right. If b really computes a wrong dim
// order, the nodes that read the value and the outputs show it. Values with qparams are dequantized before
// they are compared, and their errors are in units of the scale.
//
// The comparison has these steps, each in a file of its own:
//
//   traced_run.h   runs both graphs and records every value
//   fx_nodes.h     finds the nodes of a graph that belong to an FX node
//   references.h   collects the arrays with which b's values are compared
//   labels.h       finds the qparams of values
//   quantized_behind.h   finds values that are quantized as the result of a later node
//   matching.h     finds the values of b that may be the counterpart of a reference, and with alignment.h
//                  the permutations of their axes
//   replay.h       runs a's nodes on b's values, which decides the counterpart and measures local errors
//   rows.h         writes the report of each FX node
//   outputs.h      compares the outputs
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tosaic/exec/compare/comparison.h"
#include "tosaic/exec/session.h"

namespace tosaic::exec {

struct CompareOptions {
  PrepareOptions a, b;
  double threshold_db = 30;  // a row with a lower SQNR is a divergence
  bool local = true;         // false: local and inherited errors are not reported
  // False: errors are measured, but not compared with bounds. For a float reference and a quantized b.
  bool bounds = true;
  std::set<std::string> left_out;  // FX nodes that quantize or dequantize, and that one program lacks
  // The graph at stage quantized that b was lowered from, if the reference is of floats; or null.
  std::shared_ptr<const Graph> quantized_b;
  // The graphs at stage integer that a and b were legalized from, or null: they know the qparams of values.
  std::shared_ptr<const Graph> canonical_a, canonical_b;
  // Outputs to compare: indices into the outputs of a's graph and of b's graph.
  struct OutputPair {
    std::uint32_t a = 0, b = 0;
    QParamsRef qparams;  // the qparams of b's integers; null if b's graph has them
    // Possible dim orders of b's output, if b's graph does not have its order: axis i of b is axis order[i]
    // of a, and {} means the same axes. If no order fits the shapes, all alignments that fit are tried. If
    // the list is empty, b has a's axes.
    std::vector<Dims> orders;
    std::string variable;  // if not "": b's side is this variable of b after the run, not an output
    ArrayView expected;    // a's output as computed elsewhere, e.g. by torch; no data: use a's run
  };
  std::vector<OutputPair> outputs;
};

// A pair of outputs, integers with qparams dequantized, both in the logical axes of a.
struct ComparedOutput {
  Array a, b;
  std::optional<double> local_share;  // as CompareRow::local_share
  // The greatest distance of b's output from the expected output, divided by a bound: the effect on the
  // output if each node of a's graph makes an error of a few units in the last place. A quotient of at most 1
  // means that rounding explains the distance, as in a difference of nearly equal numbers. Computed only for
  // float outputs whose SQNR is below the threshold.
  std::optional<double> carried_share;
};

struct ComparedRuns {
  bool other_qparams = false;  // b's values have other qparams than a's; then there are no bounds
  Comparison report;
  std::vector<ComparedOutput> outputs;
};

// A result of an FX node that was computed elsewhere, e.g. by torch eager.
struct NamedArray {
  std::string fx_name;
  std::uint32_t result = 0;
  ArrayView array;
};

// Runs a on `inputs_a` and b on `inputs_b` (their graph inputs may have different forms). Both runs start
// from the initial values of their states. If `reference` is not empty, total and inherited errors are
// measured against its arrays, not against the values of a's own run.
[[nodiscard]] ComparedRuns compare_runs(const std::shared_ptr<const Graph>& a,
                                        const std::shared_ptr<const Graph>& b,
                                        std::span<const ArrayView> inputs_a,
                                        std::span<const ArrayView> inputs_b, const CompareOptions& options,
                                        std::span<const NamedArray> reference = {});
// compare_runs() without `reference`. Returns only the comparison of nodes.
[[nodiscard]] Comparison compare(const std::shared_ptr<const Graph>& a, const std::shared_ptr<const Graph>& b,
                                 std::span<const ArrayView> inputs_a, std::span<const ArrayView> inputs_b,
                                 const CompareOptions& options = {});

// Compares b's values with arrays. There is no reference graph whose nodes could be run, so rows have total
// errors only. The options `a`, `local` and `outputs` are not used.
[[nodiscard]] Comparison compare_traces(std::span<const NamedArray> reference,
                                        const std::shared_ptr<const Graph>& b,
                                        std::span<const ArrayView> inputs_b,
                                        const CompareOptions& options = {});

}  // namespace tosaic::exec
