// improve: a local search on the original problem, for problems that no exact method solves.
#pragma once

#include "tosaic/layout/solver/solver.h"

namespace tosaic::layout {

// Changes one variable at a time to its best state, until no such change lowers the cost.
void improve(const Problem& problem, std::vector<std::uint32_t>& state);

// A copy of the problem in which each variable v with pinned[v] != 0 has only one state, its state[v], which
// becomes state 0. All other variables have all of their states.
[[nodiscard]] Problem pinned_at(const Problem& problem, const std::vector<char>& pinned,
                                const std::vector<std::uint32_t>& state);

}  // namespace tosaic::layout
