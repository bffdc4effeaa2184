// check: is a placement right? Written apart from the planner and from its idea of groups: it looks at pairs
// of buffers only.
//
// Two buffers whose lifetimes and bytes overlap must hold the same contents at the same addresses (one is a
// view of the other), or the later one must be computed in place of the earlier one, which ends where the
// later one begins.
#pragma once

#include <string>

#include "tosaic/memory/place.h"

namespace tosaic::memory {

// What is wrong with the placement, "" if nothing: a buffer outside the arena or misaligned, an alias away
// from its target, two live buffers over each other.
[[nodiscard]] std::string placement_fault(std::span<const Buffer> buffers, const Placement& placement);

// Throws InternalError with the fault.
void check(std::span<const Buffer> buffers, const Placement& placement);

}  // namespace tosaic::memory
