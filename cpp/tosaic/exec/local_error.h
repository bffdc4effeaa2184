// local_error: what the nodes of a reference make of another run's values, and how far that run may be off.
//
//   reference   x -> conv -> relu -> linear      other   x -> conv+relu -> r -> linear -> y
//
//   relu is held against r: conv and relu computed from x. linear is held against y: computed from r, not
//   from what relu gave. So each value answers for the nodes since the last values that both programs have.
//
// Floats: the nodes since then have tolerances (kernels/tolerance.cpp), which add up, and what an error of a
// few units in every number on the way makes of the result is measured: the nodes run on numbers that are off
// by so much, twice. Integers: a value is right if it is within the units that the operator table derives of
// the rounded result, and if what it is off the unrounded result by is what rounding leaves, in the mean: a
// result that is off by one unit everywhere is wrong although each element is within a unit. Other integers
// and truth values are equal, but where the reference itself decides otherwise for numbers that are off by a
// few units.
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
  // Goes on with the other run's value, dense and of the value's dtype.
  void accept(ValueId value, Held array);

 private:
  static constexpr std::size_t kVariants = 2;
  struct Estimate {
    Held base;
    std::vector<Array> variants;   // with errors; none where the value is the other run's own, or exact
    kernels::Tolerance tolerance;  // of the nodes that made it
    int int16_units = 0;           // of the same
    bool functions = false;        // some of them are functions, whose expansions err in units of 1
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
  [[nodiscard]] double share_of_floats(const Estimate& estimate, const ArrayView& other) const;
  [[nodiscard]] double share_of_decisions(const Estimate& estimate, const ArrayView& other) const;
  [[nodiscard]] double share_of_rounded(ValueId real, const QParams& qparams, const ArrayView& other) const;

  const Graph& graph_;
  const PrepareOptions& options_;
  std::vector<Estimate> values_;
  std::vector<std::uint32_t> readers_;  // by value: operands of nodes that have not run yet, and outputs
  const Node* last_ = nullptr;          // its operands are released with the next node
};

}  // namespace tosaic::exec
