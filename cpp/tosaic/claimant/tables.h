// tables: the limits of devices (limits.h). Each file states its sources.
#pragma once

#include "tosaic/claimant/limits.h"
#include "tosaic/target/layout_needs.h"

namespace tosaic::claimant {

[[nodiscard]] const Limits& ethos_u55_limits();  // and Ethos-U65
[[nodiscard]] const Limits& ethos_u85_limits();
[[nodiscard]] const Limits& vgf_limits();
[[nodiscard]] const Limits& cortex_m_limits();
[[nodiscard]] const Limits& neutron_limits();
[[nodiscard]] const Limits& sampler_limits();

// TOSA's needs, and composites along an axis want this axis innermost.
[[nodiscard]] const target::LayoutNeeds& preserving_layout_needs();

}  // namespace tosaic::claimant
