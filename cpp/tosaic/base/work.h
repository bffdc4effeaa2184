// work: counts the nodes, values and names that this thread has visited. Tests compare the count with the
// size of the graph, and so bound the cost of an import or a pass without a clock.
#pragma once

#include <cstdint>

namespace tosaic::work {

void add(std::uint64_t visits);
// The count since the thread started. The difference of two readings is the work between them.
[[nodiscard]] std::uint64_t total();

}  // namespace tosaic::work
