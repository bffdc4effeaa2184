// function_table: elementwise functions of quantized values, as tables that the float kernels of the q/dq graph
// compute. Results are exact, but a TABLE of 513 entries may be off by one unit.
//
//   one operand of i8     TABLE of 256 entries; no node for the identity, CLAMP if the function only clamps
//   one operand of i16    TABLE of 513 entries if it is within one unit, else GATHER from 65536 entries
//   two operands of i8    GATHER from 65536 entries at 256 * a + b
//
// All other operands are constants of one element. A float result, without qparams, is tabulated with 24
// bits.
//
// A chain of such functions needs one table only:
//
//   %x: i8 -> exp -> log1p -> quantize     one TABLE of 256 entries, emitted for the quantize node
//
// The nodes before the last become FunctionTables: no node is emitted for them.
#pragma once

#include <optional>
#include <vector>

#include "tosaic/passes/lower_to_integer/rule_result.h"

namespace tosaic::passes {

struct RuleContext;

// A float value as a function of one variable of 8 or 16 bits, or of two of 8 bits, for each of their
// integers. The float kernels compute the tables of a chain of such functions one from the other. Infinities,
// NaN and large magnitudes in between do not matter.
struct FunctionTable {
  std::vector<ScaledInteger> variables;
  ConstantRef values;  // floats or bools; two variables: at 256 * (first + 128) + second + 128
};

// The operands of an elementwise function that is evaluated at compile time: by operand, constants of one
// element and the qparams of quantized ones; by distinct value that varies, the operands that are this value.
struct FunctionOperands {
  std::vector<ConstantRef> constants;
  std::vector<const QParams*> qparams;
  std::vector<std::vector<std::size_t>> variables;

  // All operands that are this variable become the constant `values` with these qparams.
  void set(std::size_t variable, const ConstantRef& values, const QParams* of_values);
};
// Nothing if a constant has more than one element, if an operand has no scaled integers, or if no operand
// varies.
[[nodiscard]] std::optional<FunctionOperands> function_operands(const RuleContext& ctx);

// The node as a table over its quantized operands. Nothing if it is no such function, or if integer
// arithmetic is as precise and smaller.
[[nodiscard]] std::optional<RuleResult> tabulated(const RuleContext& ctx);
// The node as a function of the variables of its operands, which may be FunctionTables themselves. Nothing if
// a table has no room for all these variables.
[[nodiscard]] std::optional<FunctionTable> function_table(const RuleContext& ctx);
// The same for a node whose result is quantized or a bool: emits the table.
[[nodiscard]] std::optional<RuleResult> tabulated_composition(const RuleContext& ctx);

}  // namespace tosaic::passes
