// VGF: what Arm's model converter reads. It has all operators of TOSA 1.0 but those that a graph of the
// Vulkan extension for tensors cannot contain: control flow and variables.
#include "tosaic/claimant/devices/records.h"

namespace tosaic::claimant {

Device vgf() {
  Limits limits;
  limits.operators = {{tosa_1_0_operators()}, {{Op::kTosaCustom}}};
  return {
      .name = "vgf", .members = {{"vgf"}}, .target = "TOSA-1.0+INT+FP+int16", .limits = std::move(limits)};
}

}  // namespace tosaic::claimant
