// solve: finds the states of least cost, and the certificate.
//
//   1. Costs of one variable, or none, are set aside. The rest falls into connected components (terms.h).
//   2. Variables with at most two neighbours are minimised out (eliminate.h). This solves chains, and
//      branches that meet again, for any number of states.
//   3. Components whose variables have two states are solved by a minimum cut, if they are cuts (cut.h).
//   4. In all others, each large term is opened by a variable "somebody reads" (certificate.h), and variables
//      are minimised out as long as no table has more than `widest` entries.
//   5. If all tables would be larger, a variable is minimised in several tables. Then the bound may be below
//      the optimum. The states are those that the tables suggest, improved by search (improve.h).
//
// Steps 1 to 4 are exact: cost == certificate.bound.
#pragma once

#include <cstddef>

#include "tosaic/layout/certificate.h"

namespace tosaic::layout {

struct Solution {
  std::vector<std::uint32_t> state;  // by variable
  Cost cost = 0;
  Certificate certificate;
  // No assignment costs less by more than this. 0: the cost is proven to be minimal.
  [[nodiscard]] Cost gap() const { return cost - certificate.bound; }
};

struct SolveOptions {
  std::size_t widest = std::size_t{1} << 14;  // largest table, in entries; at least that of two variables
  std::uint32_t rounds = 16;                  // of the search, if there is one
};

// The same problem has the same solution. Between states of equal cost, lower numbers are preferred if the
// choice is between two states of one variable, or between two minimum cuts. In other cases there is no such
// rule. Throws InternalError for a malformed problem (problem.h).
[[nodiscard]] Solution solve(const Problem& problem, const SolveOptions& options = {});

}  // namespace tosaic::layout
