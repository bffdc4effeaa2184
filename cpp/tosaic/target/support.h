// What a target's specification has against a graph at stage tosa.
//
// The rules are those of TOSA 1.0: operator x dtypes x profile or extension, ranks, level limits, each
// operator's ERROR_IF conditions, and constants to which an operator gives no meaning. Violations are data,
// in order of the graph.
#pragma once

#include <string>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"
#include "tosaic/target/spec.h"

namespace tosaic::target {

struct Violation {
  // "operator"    not an operator of TOSA 1.0 that we write
  // "dtype"       no profile or extension has these dtypes
  // "profile"     a profile or extension that the target lacks has them
  // "level"       beyond a limit of the target's level
  // "rank"        fewer axes than the operator takes
  // "shape"       an empty tensor, or a dim order other than the identity
  // "error_if"    a condition under which the operator is an error
  // "constant"    a constant operand without a meaning there (a shift of 40, an index out of range, a divisor
  // 0)
  std::string rule;
  ErrorParts parts;  // with node, module path and source line
  NodeId node;       // invalid: about an input or a constant
};

// Every violation; empty = the target takes the graph.
[[nodiscard]] std::vector<Violation> check(const Graph& graph, const TargetSpec& spec);

// Throws SpecViolation with the first violation, and says how many more there are.
void ensure(const Graph& graph, const TargetSpec& spec);

}  // namespace tosaic::target
