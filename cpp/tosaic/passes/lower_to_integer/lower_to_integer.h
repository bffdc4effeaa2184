// lower_to_integer: the pass, with a report of the operators that it could not lower.
#pragma once

#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/passes/pass.h"
#include "tosaic/target/integer_semantics.h"

namespace tosaic::passes {

// What integer lowering has to know of a target. A claimant other than TOSA makes rules of its own.
struct IntegerRules {
  bool float_arithmetic = true;  // operators may be left to floats, between dequantize and quantize
  bool wide_integers = true;     // 16-bit values
  RoundingMode rounding_mode = RoundingMode::kSingleRound;  // how RESCALE rounds
  target::IntegerSemantics semantics = {};                  // the forms of operators
};
[[nodiscard]] IntegerRules integer_rules(const target::TargetSpec& target,
                                         const target::IntegerSemantics& semantics = {});

struct LoweredToInteger {
  Graph graph;                   // stage integer
  std::vector<ErrorParts> left;  // operators over quantized values that stay operators over floats, and why
};

// `graph` is at stage quantized.
[[nodiscard]] LoweredToInteger lower_to_integer(const Graph& graph, const IntegerRules& rules);

}  // namespace tosaic::passes
