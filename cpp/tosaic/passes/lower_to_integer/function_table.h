// function_table: computes elementwise functions of quantized values by tables, whose entries the float
// kernels of the q/dq graph compute. Results are exact, with one exception: a TABLE of 513 entries may be off
// by one unit.
//
//   one operand of i8 or i16   a table of 256 or 65536 entries
//   two operands of i8         a table of 65536 entries
//   one operand, and constants of several elements, for operators without arithmetic (pow, atan2, ..)
//                              a table of 256 or 65536 entries for each number of the constants, with at
//                              most 2^20 entries in all
//
// All other operands are constants of one element. table_lookup.h emits the nodes. A float result, without
// qparams, is tabulated with 24 bits.
//
// A chain of such functions needs one table only:
//
//   %x: i8 -> exp -> log1p -> quantize     one TABLE of 256 entries, emitted for the quantize node
//
// The nodes before the last become FunctionTables: no node is emitted for them.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {

// The operands of an elementwise function that is evaluated at compile time. `constants` and `qparams` have
// an entry for each operand. A constant has one element; its entry is null if the operand is not a constant.
// `variables` has an entry for each distinct value that is not a constant, with the operands that are this
// value.
struct FunctionOperands {
  std::vector<ConstantRef> constants;
  std::vector<const QParams*> qparams;
  std::vector<std::vector<std::size_t>> variables;

  // All operands that are this variable become the constant `values` with these qparams.
  void set(std::size_t variable, const ConstantRef& values, const QParams* of_values);
};
// The entries of the operands `without` are null. Returns nothing if another constant has more than one
// element, if an operand has no scaled integers, or if all operands are constants.
[[nodiscard]] std::optional<FunctionOperands> function_operands(const RuleContext& ctx,
                                                                const std::vector<std::size_t>& without = {});

// The node as a table over its quantized operands. Returns nothing if the node is not such a function, or if
// integer arithmetic is as precise and smaller.
[[nodiscard]] std::optional<RuleResult> tabulated(const RuleContext& ctx);
// The node as a function of the variables of its operands, which may be FunctionTables themselves. Returns
// nothing if a table has no room for all these variables.
[[nodiscard]] std::optional<FunctionTable> function_table(const RuleContext& ctx);
// The numbers of a table of the node's result, as i32 of 24 bits. Returns nothing if one of them is not
// finite (but for NaN at the ends of one variable). Throws NoIntegerForm if they are too coarse for their
// readers.
[[nodiscard]] std::optional<ScaledInteger> numbers_of(const RuleContext& ctx, const FunctionTable& table);
// Emits the table of a node with a quantized or bool result; the table is made as in function_table().
[[nodiscard]] std::optional<RuleResult> tabulated_composition(const RuleContext& ctx);

}  // namespace tosaic::passes
