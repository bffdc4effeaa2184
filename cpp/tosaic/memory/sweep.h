// sweep: places items in order of their first steps, each into the smallest gap that holds it. When an item
// ends, its bytes become a gap. This costs as much as sorting, so it is used for lists in which comparing
// every pair would take too long.
#pragma once

#include "tosaic/memory/items.h"

namespace tosaic::memory {

[[nodiscard]] Arrangement sweep(const Items& items);

}  // namespace tosaic::memory
