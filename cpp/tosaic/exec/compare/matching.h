// matching: the values of b that may be the counterpart of a reference.
//
//   reference relu [1,8,6,6]    b: %batch_norm, %relu [1,6,6,8], %relu.order [1,8,6,6]
//   candidates                  the values whose nodes belong to FX node relu, the last one first, each in
//                               every alignment that fits
//
// legalize-tosa stores the dim order of the canonical value in each value (Value::canonical_order). The
// alignment by this order is the first candidate. If a's graph is at stage tosa, too, it is the alignment by
// the orders of both values. Graphs that were read from a file do not have them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "tosaic/exec/compare/alignment.h"
#include "tosaic/exec/compare/references.h"
#include "tosaic/exec/metrics.h"

namespace tosaic::exec {

struct Match {
  ValueId value;  // a value of b
  Alignment alignment;
  // The reference is rounded, and b's value is a float of the numbers that its integers stand for. If false,
  // a float holds the integers themselves.
  bool is_number = false;
  // The qparams of b's integers if its label has others: b's value moves elements of a value whose integers
  // stand for two numbers, such as the integers of x, which also stand for x + x with twice the scale. Null
  // if the label is right.
  QParamsRef units = nullptr;
};

// Names of values of graph a that are not results of an FX node. `operands`: quantized operands of the node
// that reads them, such as a rounded input, and their dequantized floats. `intermediates`: quantized values
// between the graph nodes of one FX node.
struct OtherValues {
  std::unordered_set<std::string> operands, intermediates;
};

class Matcher {
 public:
  // `stage_a` is the stage of a's graph, or none if there is no such graph.
  // `moved` has the FX nodes whose values b quantizes as the results of other FX nodes (quantized_behind.h).
  // `others` are not results.
  Matcher(const RunValues& b, const FxNodes& fx, std::optional<Stage> stage_a,
          std::map<FxId, FxId> moved = {}, OtherValues others = {});

  [[nodiscard]] const RunValues& values() const { return b_; }
  // The nodes of b that belong to the FX node.
  [[nodiscard]] const std::vector<const Node*>& nodes(FxId fx) const { return nodes_.of(fx); }

  // The values of b that may be the counterpart of the reference. They belong to the FX node, and each has
  // the reference's index among the results of a node with `result_count` results. Their shapes align with
  // that of the reference, and a floating-point or quantized reference needs a float or a value with qparams.
  // The last value comes first. If the reference is rounded, values with qparams for the same numbers precede
  // values without qparams. Values with other qparams are candidates only if there are no others. A float may
  // hold the reference's integers, or the numbers that these stand for: both are candidates, unless the float
  // has an element that is not whole. An operand that belongs to the FX node in a is not a candidate: b
  // may have merged the FX node into a later one. b may compute each result of a node with several
  // results in a node of its own, which is known by its name. If `result_count` is 0, the node may have
  // any number of results.
  [[nodiscard]] std::vector<Match> candidates(const Reference& reference, std::uint32_t result_count) const;
  // One of the alignments of the first candidate's value: the alignment by the stored axes, or, if
  // they are not known, the alignment in which the value is nearest to the reference.
  [[nodiscard]] const Match& nearest(const Reference& reference, const std::vector<Match>& candidates) const;
  // True if the candidate is an integer without qparams, and b has merged a part of the FX node into a node
  // of another FX node, such as its rounding into a table. Then a wrong candidate is not a wrong result, but
  // a number that b has not rounded yet.
  [[nodiscard]] bool may_be_rounded_later(const Match& match, const Reference& reference) const;
  // Why a reference has no candidates: "shape [1,8,4] against [1,32]".
  [[nodiscard]] std::string mismatch_reason(const Reference& reference) const;

  // The qparams of b's value.
  [[nodiscard]] const QParamsRef& qparams(const Match& match) const {
    return match.units ? match.units : b_.qparams(match.value);
  }
  // b's value in a's axes. It is dequantized unless the reference is an integer without qparams.
  [[nodiscard]] Held in_axes(const Match& match, const Reference& reference) const;
  // The unit of the errors of b's value.
  [[nodiscard]] MetricsOptions metrics_options(const Reference& reference, ValueId value) const;

 private:
  // The alignment by the axes that a and b store, if both are known.
  [[nodiscard]] std::optional<Alignment> stored_alignment(ValueId value, const Reference& reference) const;
  [[nodiscard]] std::vector<Alignment> alignments_of(ValueId value, const Reference& reference) const;
  [[nodiscard]] bool means_the_same(ValueId value, const Reference& reference) const;
  [[nodiscard]] bool is_no_result(ValueId value) const;
  [[nodiscard]] std::optional<ValueId> value_of(const Node& node, const Reference& reference,
                                                std::uint32_t result_count) const;
  [[nodiscard]] std::unordered_set<std::uint32_t> before_rounding(FxId fx) const;

  const RunValues& b_;
  const FxNodes& fx_;
  std::map<FxId, FxId> moved_;
  OtherValues others_;
  NodesOfFx nodes_;
  std::set<FxId> merged_;  // FX nodes that have a part in nodes of other FX nodes
  std::optional<Stage> stage_a_;
};

}  // namespace tosaic::exec
