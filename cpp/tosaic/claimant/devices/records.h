// records: the devices of tosaic (device.h). Each file states its sources.
#pragma once

#include <vector>

#include "tosaic/claimant/device.h"

namespace tosaic::claimant {

[[nodiscard]] Device host();
[[nodiscard]] Device vgf();
[[nodiscard]] Device ethos_u55();  // and Ethos-U65
[[nodiscard]] Device ethos_u85();
[[nodiscard]] Device cortex_m();
[[nodiscard]] Device neutron();
[[nodiscard]] Device grid_sampler();

// The operators of TOSA 1.0 that compute with tensors: all but custom ones, control flow and variables.
[[nodiscard]] const std::vector<Op>& tosa_1_0_operators();

}  // namespace tosaic::claimant
