// lower-to-integer: makes operators over quantized values compute with the integers.
//
//   %c: i8 q(..) = conv(%x: i8 q(..), %w: i8 q(..), %b)
//     ->  %s: i32 = integer_conv(%x, %w, %b') {input_zp=..}
//         %c: i8 = rescale(%s) {multiplier=[..] shift=[..]}
//
// Every result is within one unit of the result of torch's q/dq graph for the same integers. A result of 16
// bits is within the bound of the operator's rule. The executor, the TOSA reference model and hardware
// compute the same bits. No integer overflows: the range of every value is known, and values for which a
// multiplier is not defined are clamped first. An operator without integer arithmetic stays an operator over
// floats between dequantize and quantize nodes.

// The list has the files of this folder, the pass first. A file uses those below it:
//
//   graph_lowering                        walks over the graph, and chooses the route of each node
//   foreign_operator                      lowers foreign operators that compute with integers
//   node_lowering, expansion              lower one node, by its rule or by the rules of its parts
//   backend_forms, backend_softmax        have the forms that a backend's semantics choose
//   nan_masks                             adds masks of NaN to what a rule returns
//   rules, integer_*                      have the rule of each operator, by family
//   function_table, function_samples      compute functions that the float kernels evaluate at compile time
//   terms, evaluation                     have parts that rules share
//   rule_context                          is the argument of a rule
//   copied_nodes                          adds nodes without integer arithmetic
//   value_map                             records what the values of the source graph became
//   node_view                             shows the node as the source graph has it
//   table_lookup, whole_numbers,          compute with scaled integers
//   integer_quotient, integer_math
//   rescaling                             changes units, dtypes and zero points
//   rule_result                           is the result of a rule
//   integer_builder                       adds nodes
//   scaled_integer                        has integers that represent numbers
//
// byte_functions then joins functions of one byte in the graph that the walk made.

#include "tosaic/passes/lower_to_integer/lower_to_integer.h"

#include <utility>

#include "tosaic/passes/lower_to_integer/byte_functions.h"
#include "tosaic/passes/lower_to_integer/graph_lowering.h"

namespace tosaic::passes {

IntegerRules integer_rules(const target::TargetSpec& target, const target::IntegerSemantics& semantics) {
  const bool rounds_twice = target.has(target::Extension::kDoubleRound);
  return {.float_arithmetic = target.has(target::Profile::kFp),
          .wide_integers = target.has(target::Extension::kInt16),
          .rounding_mode = semantics.rounding.value_or(rounds_twice ? RoundingMode::kDoubleRound
                                                                    : RoundingMode::kSingleRound),
          .semantics = semantics};
}

namespace {

// The target has no integers for some readers of a value, and a walk over the graph finds these readers only
// when it reaches them. If such a reader got numbers that had been rounded to one unit with larger numbers,
// the walk begins again, with these numbers as floats.
LoweredToInteger lowered(const Graph& graph, const IntegerRules& rules) {
  std::vector<bool> floats(graph.values().size(), false);
  while (true) {
    GraphLowering lowering(graph, rules, floats);
    LoweredToInteger out = lowering.run();
    bool changed = false;
    for (const ValueId id : lowering.rounded_for_floats()) {
      changed = changed || !floats[id.index()];
      floats[id.index()] = true;
    }
    if (!changed) return out;
  }
}

}  // namespace

LoweredToInteger lower_to_integer(const Graph& graph, const IntegerRules& rules) {
  LoweredToInteger out = lowered(graph, rules);
  if (std::optional<Graph> joined = join_byte_functions(out.graph)) out.graph = std::move(*joined);
  if (std::optional<Graph> clean = dead_code(out.graph)) out.graph = std::move(*clean);
  return out;
}

}  // namespace tosaic::passes
