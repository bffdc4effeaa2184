// verdict: whether a claimant takes a node and, if not, all reasons.
#pragma once

#include <string>
#include <vector>

#include "tosaic/base/error.h"

namespace tosaic::claimant {

struct Reason {
  // The kind of rule that is broken, a short name that does not change:
  //   "float"         the node reads or writes floats, and the claimant computes with integers only
  //   "integer"       the node is quantized, and the claimant computes with floats only
  //   "state"         the node reads or assigns a variable, which only a whole program has
  //   "lowering"      the node does not lower to the claimant's target, or breaks a rule of TOSA
  //   "operator"      the claimant has no such operator
  //   "dtype"         the claimant has the operator, but not for these dtypes
  //   "deny"          a rule of the user
  // and the names of quantities (limits.h), such as "kernel-height" or "stride"
  std::string rule;
  ErrorParts parts;  // with node, module path and source line
};

struct Verdict {
  std::vector<Reason> reasons;

  [[nodiscard]] bool supported() const { return reasons.empty(); }
};

}  // namespace tosaic::claimant
