// check: an independent check of a placement.
//
// The check shares no code with the planner and does not use the planner's groups of buffers: it looks at
// pairs of buffers only. If the lifetimes and bytes of two buffers overlap, they must hold the same contents
// at the same addresses (one is a view of the other, or both are views of the same buffer); or the later one
// must be computed in place of the earlier one, whose lifetime ends at the step where the later one begins;
// or one must be a part of the other, written before it.
#pragma once

#include <string>

#include "tosaic/memory/place.h"

namespace tosaic::memory {

// Describes the first fault of the placement; "" if there is none. Faults are targets that do not exist or
// form a circle, a buffer outside the arena or misaligned, a buffer that is not at its offset in its target,
// and two live buffers that overlap.
[[nodiscard]] std::string placement_fault(std::span<const Buffer> buffers, const Placement& placement);

// Throws InternalError with the fault.
void check(std::span<const Buffer> buffers, const Placement& placement);

}  // namespace tosaic::memory
