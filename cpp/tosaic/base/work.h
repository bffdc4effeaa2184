// Work: how many nodes, values and names were looked at on this thread, so that tests can hold the cost of an
// import or a pass against the size of its graph without a clock.
#pragma once

#include <cstdint>

namespace tosaic::work {

void add(std::uint64_t visits);
// Since the thread began; take differences.
[[nodiscard]] std::uint64_t total();

}  // namespace tosaic::work
