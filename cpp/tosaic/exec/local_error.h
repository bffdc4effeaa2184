// local_error: the values that the nodes of a reference compute from another run's values, and how far that
// run may be off.
//
//   reference   x -> conv -> relu -> linear      other   x -> conv+relu -> r -> linear -> y
//
//   r is compared with conv and relu computed from x. y is compared with linear computed from r, not from
//   the reference's own relu. So each comparison covers the nodes since the last values that both programs
//   have.
//
// The bounds depend on the kind of value:
// - Floats: the tolerances (kernels/tolerance.cpp) of these nodes are added up. The effect of rounding
//   errors in the values between is measured: the nodes are run twice more on numbers that are off by a few
//   units in the last place, and the changes of the result are added to the bound.
// - Integers of 8 bits: a value is right if its distance from the result before rounding is at most half a
//   unit plus the error of the arithmetic before the rounding. That error is the sum of the nodes' 16-bit
//   units in the operator table, each of which is 2^-8 of a unit of 8 bits. A composite over an axis counts
//   four times, because its parts round too. Rescales that round twice add up to 1/4 unit. A zero point that
//   is off by one shifts the number that is rounded. It is found if the shift exceeds this bound, in the
//   elements that the shift moves across a tie.
// - Wider integers: each value is within the operator table's units of the rounded result, and the root mean
//   square of the distances to the unrounded result is at most what one rounding causes (0.5625 units, more
//   if the operator table allows more than 1 unit), if there are at least 16 different numbers.
// - Other integers and truth values must be equal, except where the reference's own result changes for
//   numbers that are off by a few units.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tosaic/exec/array.h"
#include "tosaic/exec/prepare.h"
#include "tosaic/ir/graph.h"
#include "tosaic/kernels/kernel.h"

namespace tosaic::exec {

// A view and the array that owns its memory. The owner is empty if the memory belongs to somebody else.
struct Held {
  ArrayView view;
  Array owner;
};

// The value as a dense array of the dtype. An unsigned integer that is carried as a signed one of the same
// width, minus half the range, is converted back: i8 -> u8 adds 128.
[[nodiscard]] Held as_dtype(Held value, DType dtype);

// Adds overrides that run quantize and dequantize as single operators, unless there are overrides for them.
// If they were expanded into other operators, LocalReference would not know which number is rounded.
[[nodiscard]] Overrides with_quantizers(Overrides overrides);

// True if the elements of the operator's results are elements of its operands, moved.
[[nodiscard]] bool moves_elements(Op op);

class LocalReference {
 public:
  // `graph` and `options` outlive the object.
  LocalReference(const Graph& graph, const PrepareOptions& options);

  // Sets an input as the reference sees it: dense, in its dtype.
  void set_input(ValueId value, Held array);
  // Runs a node on the values so far. Returns false if an operand is not known or the node cannot be run.
  // Nodes must be run in order.
  bool run(const Node& node);
  [[nodiscard]] bool known(ValueId value) const;
  // The value that was computed or accepted: dense, of the value's dtype. The value must be known.
  [[nodiscard]] ArrayView made(ValueId value) const;
  // The greatest error of `other` (in the value's axes) as a share of the bound; `other` is wrong if the
  // share is above 1. `qparams` are the parameters of the integers in `other`, if the value is a float.
  [[nodiscard]] double share(ValueId value, const ArrayView& other, const QParamsRef& qparams) const;
  // The greatest distance of `other` from `expected` as a share of the bound for the value, which must be a
  // float. If no values of another run were accepted, the bound is the effect on the value if every
  // node that it depends on makes an error of a few units in the last place.
  [[nodiscard]] double share_between(ValueId value, const ArrayView& expected, const ArrayView& other) const;
  // The error of the other run's rescales in addition to one rounding to nearest, in units. The default is 0.
  void set_rescale_error(double units) { rescale_error_ = units; }
  // Replaces the value by the other run's value, dense and of the value's dtype. Later nodes are computed
  // from it.
  void accept(ValueId value, Held array);

 private:
  static constexpr std::size_t kVariants = 2;
  struct Estimate {
    Held base;
    std::vector<Array> variants;   // results with errors; empty if the value is an input, accepted, or exact
    kernels::Tolerance tolerance;  // sum along the nodes since the last accepted values
    int int16_units = 0;           // the same sum of the units in the operator table
    int inner_units = 0;           // the same sum for the arithmetic before a rounding, in 16-bit units
    double of_addends = 0;         // for a sum: its error from rounding its operands to floats
    bool functions = false;        // some node is a function: the error of its expansion is relative to 1
    bool ties = false;             // the variants differ where integers near a tie may be rounded differently
    bool known = false;
  };

  [[nodiscard]] std::optional<std::vector<Array>> compute(const Node& node,
                                                          std::span<const ArrayView> operands) const;
  // All results of the node in variant k: for operands with errors, plus rounding errors of the node itself.
  [[nodiscard]] std::vector<Array> compute_with_errors(const Node& node, std::size_t k,
                                                       const std::vector<Array>& results) const;
  [[nodiscard]] Held variant(ValueId value, std::size_t k) const;
  void release_operands_of_last();
  static void forget_equal(Estimate& estimate);
  // The error of the arithmetic before the rounding of an integer of 8 bits, in units of that integer.
  [[nodiscard]] double error_before_rounding(int inner_units) const;
  // The bound of the error of each element. A relative error refers to the magnitude of the element, to the
  // root mean square of all elements, or to `least`, whichever is largest.
  [[nodiscard]] std::vector<double> bounds_of_floats(const Estimate& estimate, DType other,
                                                     double least) const;
  [[nodiscard]] double share_of_floats(const Estimate& estimate, const ArrayView& other) const;
  [[nodiscard]] double share_of_decisions(const Estimate& estimate, const ArrayView& other) const;
  [[nodiscard]] double share_of_rounded(ValueId real, const QParams& qparams, const ArrayView& other) const;

  const Graph& graph_;
  const PrepareOptions& options_;
  std::vector<Estimate> values_;
  double rescale_error_ = 0;
  std::vector<std::uint32_t> readers_;  // by value: reads by outputs, and by nodes that have not run yet
  const Node* last_ = nullptr;          // its operands are released with the next node
};

}  // namespace tosaic::exec
