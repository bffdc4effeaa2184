// RuleContext: the argument of a rule.
//
//   node     the node to lower, read only
//   build    adds the nodes of the rule to the new graph
//   values   the new value of each source value; a rule reads its operands through the functions here
//
//   RuleResult rule(const RuleContext& ctx) {
//     const ScaledInteger x = ctx.with_one_scale(0);                   operand 0 as integers
//     ... ctx.node.attrs<ReduceAttrs>() ... ctx.build.emit(..) ...     computes
//     return ScaledInteger{..};                                        the caller rounds it
//   }
//
// A context is passed down and never changed. The parts of a composite have contexts of their own, over the
// expanded graph and the same `build`.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/passes/lower_to_integer/node_view.h"
#include "tosaic/passes/lower_to_integer/rule_result.h"
#include "tosaic/passes/lower_to_integer/value_map.h"

namespace tosaic::passes {

struct RuleContext {
  RuleContext(ValueMap& of_source, const Node& lowered, IntegerBuilder& builder)
      : node(of_source.source(), lowered), values(of_source), build(builder) {}

  NodeView node;
  ValueMap& values;
  IntegerBuilder& build;

  // ---- operand i ----
  // True if operand i is a constant, also if a rule made it a constant of the new graph.
  [[nodiscard]] bool is_known(std::size_t i) const;
  // True if operand i has qparams, or is a ScaledInteger.
  [[nodiscard]] bool is_scaled(std::size_t i) const { return values.has_integers(node.operand(i)); }
  // Operand i as scaled integers. Bools and integers without qparams have scale 1. Throws NoIntegerForm for
  // other operands.
  [[nodiscard]] ScaledInteger scaled(std::size_t i) const { return scaled_value(node.operand(i)); }
  [[nodiscard]] ScaledInteger with_one_scale(std::size_t i) const;  // see rescaling.h
  // scaled() for any value of the source graph. A constant with groups has one scale, and more bits.
  [[nodiscard]] ScaledInteger scaled_value(ValueId id) const;
  // The same with the groups, which only a contraction or a movement may read.
  [[nodiscard]] ScaledInteger stored_value(ValueId id) const;
  // Operand i with its groups, if it is a constant that has groups.
  [[nodiscard]] std::optional<ScaledInteger> by_group(std::size_t i) const;
  // Operand i in the new graph as it is: indices, bools, floats.
  [[nodiscard]] ValueId as_is(std::size_t i) const { return values.value(node.operand(i), build); }
  // The elements of a constant operand (see is_known()), dequantized, in row-major order.
  [[nodiscard]] std::vector<double> numbers(std::size_t i) const;
  // Throws NoIntegerForm if `unit` leaves x, the integers of operand i, fewer than 6 bits, and a reader of
  // the result would notice. In a product, x is multiplied by `factor` or more.
  void require_bits(std::size_t i, const ScaledInteger& x, double unit, double factor = 1) const;
  // The least magnitude of operand i, except 0; 0 if it is not known.
  [[nodiscard]] double least_magnitude(std::size_t i) const {
    return values.least_magnitude(node.operand(i));
  }
  // Throws NoIntegerForm if readers of the node's result notice changes of half a unit: in hardswish(exp(x)),
  // exp(x) reaches far beyond the numbers that matter. A table of the whole composition needs no such unit.
  void require_fine_results(double unit) const;
  // A constant operand, quantized to the qparams `to` at compile time.
  [[nodiscard]] ValueId quantized_constant(std::size_t i, const QParams& to) const;
  // A constant of these numbers in row-major order, quantized to the qparams `to`.
  [[nodiscard]] ValueId quantized_numbers(const std::vector<double>& numbers, const Shape& shape,
                                          const QParams& to) const;

 private:
  [[nodiscard]] ScaledInteger counted(ValueId id) const;
  [[nodiscard]] std::optional<ValueRange> whole_numbers(ValueId id) const;
  [[nodiscard]] ValueRange range_of_counts(ValueId id) const;
  [[nodiscard]] std::optional<ValueRange> relevant_counts(ValueId id) const;
};

// A constant with groups as i32 in one unit, in which its largest number has 29 bits.
[[nodiscard]] ScaledInteger in_one_unit(IntegerBuilder& build, const ScaledInteger& x);
// The same for a constant of these numbers, in row-major order.
[[nodiscard]] ScaledInteger in_one_unit(IntegerBuilder& build, const Shape& shape,
                                        const std::vector<double>& numbers);

// The integers of a value of the new graph with these qparams, in signed form. If zero points differ by
// channel, they are subtracted here from an i8 constant; for other values with such zero points, returns
// nothing.
[[nodiscard]] std::optional<ScaledInteger> stored_integers(IntegerBuilder& build, ValueId id,
                                                           const QParams& qparams);

}  // namespace tosaic::passes
