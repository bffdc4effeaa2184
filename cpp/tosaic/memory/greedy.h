// greedy: places items one after another, each into the first or the best gap, in several orders. A local
// search then moves an item that touches the top to an earlier place in the order.
#pragma once

#include "tosaic/memory/effort.h"
#include "tosaic/memory/items.h"

namespace tosaic::memory {

// The best arrangement of several orders; the first one that is not larger than `enough`.
[[nodiscard]] Arrangement place_in_orders(const Items& items, std::size_t enough);

// Improves an arrangement until it is not larger than `enough`.
void improve(const Items& items, Arrangement& best, std::size_t enough, Effort& effort);

}  // namespace tosaic::memory
