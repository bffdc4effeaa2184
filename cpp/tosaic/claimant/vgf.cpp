// Limits of VGF: what Arm's model converter reads. It has all operators of TOSA but those that a graph of the
// Vulkan extension for tensors cannot contain: control flow and variables.
#include "tosaic/claimant/tables.h"

namespace tosaic::claimant {

const Limits& vgf_limits() {
  static const Limits limits = [] {
    Limits out;
    for (const OpInfo& row : all_ops())
      if (row.is_tosa && !row.has(kEffect) && row.op != Op::kTosaCondIf && row.op != Op::kTosaWhileLoop)
        out.operators.push_back({{row.op}});
    return out;
  }();
  return limits;
}

}  // namespace tosaic::claimant
