// ranges: an interval for each value of a graph that contains all its elements.
//
// Both analyses compute an interval (base/interval.h) for each value, from inputs to outputs. Each operator
// has at most one rule per analysis, in a table (integer_ranges.cpp, float_ranges.cpp). The result of an
// operator without a rule has the range of its dtype.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::analysis {

// ---- floats ----

// Every element that is not NaN is in `bounds`, and if it is not 0, its magnitude is at least `least`.
struct FloatRange {
  Interval<double> bounds = Interval<double>::all();
  double least = 0;
};

// The ranges of the values of a canonical graph. Integers and bool that are not constant have the range of
// their dtype. Each interval is widened by more than the rounding of its operator. A constant is read only
// when of() is called for it: weights are large, and few callers need their range. The graph must outlive
// this object.
class FloatRanges {
 public:
  explicit FloatRanges(const Graph& graph) : FloatRanges(graph, {}) {}
  // `observed` has the bounds that the samples of each value had, or is empty. If a value has such bounds,
  // they are its range, and not the ranges of its operator's rule.
  FloatRanges(const Graph& graph, std::span<const std::optional<Interval<double>>> observed);
  [[nodiscard]] const FloatRange& of(ValueId value) const;

 private:
  const Graph& graph_;
  mutable std::vector<std::optional<FloatRange>> ranges_;  // by value; for a constant, set by of()
};

// ---- relevant numbers of floats ----

// The numbers of an operand on which the results of a program depend. A number below `bounds.low` has the
// same effect as `bounds.low`, and one above `bounds.high` the same as `bounds.high`: the readers saturate.
//
//   expression                                operand   its relevant numbers begin
//   quantize(amax(where(hidden, -1e9, x)))    -1e9      one step below the least number of the quantize node
//   exp(x)                                    x         at -120, since exp of less is 0
//   softmax(where(hidden, -1e9, x))           -1e9      120 below the least visible number of x
struct RelevantNumbers {
  Interval<double> bounds = Interval<double>::all();
  // Changes of a number by less than this change a stored integer by at most one. 0 if nothing is known.
  double step = 0;
  // The smallest change that is known to change a reader's result; infinity if none is known. Outputs are not
  // readers here.
  double finest = std::numeric_limits<double>::infinity();
  // Only the differences of numbers of a row matter, as a softmax reads them. In a row of which all numbers
  // are below `bounds.low`, the differences would change.
  bool by_row = false;
};

// Computes the relevant numbers of each operand of a canonical graph with quantize and dequantize nodes. The
// graph and the ranges must outlive this object.
//
// A graph of floats that will be quantized has no such nodes. `levels` then has, by value, how many integers
// the value will have, or 0, and the ranges are ranges of samples. Numbers beyond what samples had are not
// relevant, and neither are changes of a result that are smaller than a part of its later step: sigmoid(x)
// with 256 integers reads no number beyond +-7.
class Relevance {
 public:
  Relevance(const Graph& graph, const FloatRanges& ranges, std::span<const double> levels = {});
  [[nodiscard]] RelevantNumbers of(const Node& reader, std::size_t operand) const;
  // What the readers of all results of a node need.
  [[nodiscard]] RelevantNumbers of_results(const Node& node) const;
  // What all readers of a value need.
  [[nodiscard]] RelevantNumbers of_value(ValueId value) const;

 private:
  const Graph& graph_;
  const FloatRanges& ranges_;
  std::vector<double> levels_;
  std::vector<RelevantNumbers> wanted_;  // by value: what its readers need
};

// ---- integers ----

// The numbers that a value of this dtype can hold: all numbers for floats, 0 and 1 for bool.
[[nodiscard]] ValueRange range_of_dtype(DType dtype);
// All integers from -2^bits to 2^bits - 1.
[[nodiscard]] constexpr ValueRange integers_of_bits(int bits) {
  return {-(std::int64_t{1} << bits), (std::int64_t{1} << bits) - 1};
}

// The range of each value before the rules of operators are applied. A constant has the range of its
// elements, and any other integer has the range of its dtype. A float has the range of its cast to i32, which
// saturates. That range is computed only if the float is cast, is an operand of a node with regions, or is an
// output: for other floats, such as weights, it would only cost time.
[[nodiscard]] std::vector<ValueRange> initial_integer_ranges(const Graph& graph);

// The range of a foreign operator's results: the range of the TOSA dtype if the user described the operator,
// else the initial range.
enum class ForeignResults : std::uint8_t { kOfTosa, kInitial };

// An i64 or i32 value overflows unless it is within [-2^bits, 2^bits - 1].
struct IntegerWidth {
  int bits = 31;
  int region_bits =
      31;  // for operands and results of nodes with regions, and for all values inside the regions
  ForeignResults foreign = ForeignResults::kOfTosa;
};

// The ranges of all integer values of a graph, and the nodes that may overflow. The range of a value that a
// loop updates holds before every iteration. A graph that was not decomposed has composites without a rule.
// The graph must outlive this object.
class IntegerRanges {
 public:
  // `initial` is what initial_integer_ranges returns, with the ranges to assume for inputs.
  IntegerRanges(const Graph& graph, std::vector<ValueRange> initial, IntegerWidth width);

  [[nodiscard]] const ValueRange& of(ValueId value) const { return ranges_[value.index()]; }
  // The range of the node's result before it wraps to its dtype.
  [[nodiscard]] const ValueRange& computed(const Node& node) const {
    return computed_[graph_.id(node).index()];
  }
  // The nodes whose i64 or i32 result may overflow, and the divisions whose quotient may not fit in i32.
  [[nodiscard]] const std::vector<const Node*>& overflowing() const { return overflowing_; }

 private:
  void add_node(const Node& node, IntegerWidth width);
  void add_regions(const Node& node, int bits);
  [[nodiscard]] bool has_no_quotient(const Node& node) const;

  const Graph& graph_;
  std::vector<ValueRange> ranges_;    // by value
  std::vector<ValueRange> computed_;  // by node
  std::vector<const Node*> overflowing_;
};

// True for operators that become INTDIV. The quotient of the lowest i32 and -1 does not fit in i32.
[[nodiscard]] bool is_division(Op op);

}  // namespace tosaic::analysis
