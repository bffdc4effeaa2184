// improve: a local search on the problem as it was stated, for where no exact method ends.
#pragma once

#include "tosaic/layout/problem.h"

namespace tosaic::layout {

// Changes one variable at a time, to the best of its states, until none is better than the one it has.
void improve(const Problem& problem, std::vector<std::uint32_t>& state);

// The problem with each variable of `pinned` (by variable, not 0) held at its state, its only one. Others
// keep their states.
[[nodiscard]] Problem pinned_at(const Problem& problem, const std::vector<char>& pinned,
                                const std::vector<std::uint32_t>& state);

}  // namespace tosaic::layout
