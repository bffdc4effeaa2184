// local_error: what the nodes of a reference make of another run's values, and how far that run may be off.
//
//   reference   x -> conv -> relu -> linear      other   x -> conv+relu -> r -> linear -> y
//
//   relu is held against r: conv and relu computed from x. linear is held against y: computed from r, not
//   from what relu gave. So each value answers for the nodes since the last values that both programs have.
//
// Floats: the nodes since then have tolerances (kernels/tolerance.cpp), which add up, and what an error of a
// few units in every number on the way makes of the result is measured: the nodes run on numbers that are off
// by so much, twice. Integers of 8 bits: a value is right if it is within half a unit of the result that was
// not rounded, and what the arithmetic before the rounding errs by: the units of 16 bits that the operator
// table derives, each 2^-8 of a unit of 8 bits, four times as many for a composite over an axis, whose
// parts round too, and up to 1/4 for rescales that round twice. A zero point
// that is off by one shifts what is rounded, so it shows where it shifts by more than that, in the elements
// that it carries over a tie. Wider integers: within the units of the operator table of the rounded result,
// and off the unrounded one by what rounding leaves, in the mean. Other integers and truth values are equal,
// but where the reference itself decides otherwise for numbers that are off by a few units.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "tosaic/exec/array.h"
#include "tosaic/exec/prepare.h"
#include "tosaic/ir/graph.h"

namespace tosaic::exec {

// A view with what keeps it alive.
struct Held {
  ArrayView view;
  Array owner;
};

// Dense and of the dtype; integers that are carried as signed ones of their width less half the range are
// brought back.
[[nodiscard]] Held as_dtype(Held value, DType dtype);

// The overrides, and quantize and dequantize as operators of their own: their expansions would not show what
// is rounded.
[[nodiscard]] Overrides with_quantizers(Overrides overrides);

class LocalReference {
 public:
  // `graph` outlives the object.
  LocalReference(const Graph& graph, const PrepareOptions& options);

  // An input as the reference sees it: dense, in its dtype.
  void set_input(ValueId value, Held array);
  // Runs a node on the values so far; false if that cannot be. Nodes are run in order.
  bool run(const Node& node);
  [[nodiscard]] bool known(ValueId value) const;
  // Dense, of the value's dtype; known values only.
  [[nodiscard]] ArrayView made(ValueId value) const;
  // The greatest error of `other` (in the value's axes) as a share of what is allowed: above 1 it is wrong.
  // `qparams`: what the integers of `other` stand for, where the value is a float.
  [[nodiscard]] double share(ValueId value, const ArrayView& other, const QParamsRef& qparams) const;
  // What `other` may be off `expected` by is what is allowed for the value, which is a float: the greatest
  // share. Where no other run's values were accepted, that is what errors of a few units at every node on
  // the way from the inputs come to.
  [[nodiscard]] double share_between(ValueId value, const ArrayView& expected, const ArrayView& other) const;
  // What rescales of the other run err by beside rounding to the nearest, in units.
  void set_rescale_error(double units) { rescale_error_ = units; }
  // Goes on with the other run's value, dense and of the value's dtype.
  void accept(ValueId value, Held array);

 private:
  static constexpr std::size_t kVariants = 2;
  struct Estimate {
    Held base;
    std::vector<Array> variants;   // with errors; none where the value is the other run's own, or exact
    kernels::Tolerance tolerance;  // of the nodes that made it
    int int16_units = 0;           // of the same
    int inner_units = 0;           // of 16 bits, of the same: what the arithmetic before the rounding errs by
    bool functions = false;        // some of them are functions, whose expansions err in units of 1
    bool ties = false;             // the variants differ where integers may be rounded otherwise
    bool known = false;
  };

  [[nodiscard]] std::optional<std::vector<Array>> compute(const Node& node,
                                                          std::span<const ArrayView> operands) const;
  // Every result with errors.
  [[nodiscard]] std::vector<Array> compute_with_errors(const Node& node, std::size_t k,
                                                       const std::vector<Array>& results) const;
  [[nodiscard]] Held variant(ValueId value, std::size_t k) const;
  void release_operands_of_last();
  static void forget_equal(Estimate& estimate);
  // Of integers of 8 bits, in their units.
  [[nodiscard]] double error_before_rounding(int inner_units) const;
  // For each element.
  [[nodiscard]] std::vector<double> bounds_of_floats(const Estimate& estimate, DType other,
                                                     double least) const;
  [[nodiscard]] double share_of_floats(const Estimate& estimate, const ArrayView& other) const;
  [[nodiscard]] double share_of_decisions(const Estimate& estimate, const ArrayView& other) const;
  [[nodiscard]] double share_of_rounded(ValueId real, const QParams& qparams, const ArrayView& other) const;

  const Graph& graph_;
  const PrepareOptions& options_;
  std::vector<Estimate> values_;
  double rescale_error_ = 0;
  std::vector<std::uint32_t> readers_;  // by value: operands of nodes that have not run yet, and outputs
  const Node* last_ = nullptr;          // its operands are released with the next node
};

}  // namespace tosaic::exec
