// support: checks whether a target can run a graph at stage tosa.
//
// The rules of TOSA 1.0: the combinations of dtypes that an operator has in each profile and
// extension, ranks, level limits, the ERROR_IF conditions of operators, and constant operands for which an
// operator is undefined. Violations are returned as data, in the order of the graph.
#pragma once

#include <string>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/graph.h"
#include "tosaic/ir/since.h"
#include "tosaic/target/spec.h"

namespace tosaic::target {

struct Violation {
  // The kind of rule that is broken:
  //   "operator"    the operator is not of TOSA, but of an earlier stage
  //   "version"     the operator, or its dtypes, appeared in a later version than the target's
  //   "dtype"       no profile or extension has these dtypes
  //   "profile"     the target lacks the profile or extension that has these dtypes or this operator
  //   "level"       a limit of the target's level is exceeded
  //   "rank"        the operator takes no rank-0 tensor
  //   "shape"       the tensor is empty, or its dim order is not the identity
  //   "error_if"    an ERROR_IF condition of the operator is true
  //   "constant"    the operator is undefined for a constant operand (a shift of 40, an index out of range,
  //                 a divisor of 0)
  std::string rule;
  ErrorParts parts;      // with node, module path and source line
  NodeId node;           // invalid for a violation of an input or a constant
  Features missing = 0;  // of rule "profile": what the target lacks
};

// All violations; empty if the target can run the graph.
[[nodiscard]] std::vector<Violation> check(const Graph& graph, const TargetSpec& spec,
                                           std::span<const SinceRow> newer = newer_than_1_0());

}  // namespace tosaic::target
