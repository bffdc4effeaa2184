// solve: the states that cost least, and the proof.
//
//   1. Costs of one variable, or none, are set aside; what remains falls into components (terms.h).
//   2. Variables with two neighbours at most are minimised out (eliminate.h). Chains and branches that meet
//      again, of any number of states, end here.
//   3. Components of variables with two states that are cuts are solved by a minimum cut (cut.h).
//   4. In the others each term of many readers is opened by a variable "somebody reads", and variables are
//      minimised out as long as no table is larger than `widest`.
//   5. Where all tables would be larger, they are made in parts. Then the bound may lie below the optimum;
//      the states are what the parts suggest, improved by search (improve.h).
//
// All but the last are exact: cost == certificate.bound.
#pragma once

#include <cstddef>

#include "tosaic/layout/certificate.h"

namespace tosaic::layout {

struct Solution {
  std::vector<std::uint32_t> state;  // by variable
  Cost cost = 0;
  Certificate certificate;
  // 0 if no assignment costs less; else at most by so much.
  [[nodiscard]] Cost gap() const { return cost - certificate.bound; }
};

struct SolveOptions {
  std::size_t widest = std::size_t{1} << 14;  // entries of a table; no less than a pair of variables needs
  std::uint32_t rounds = 16;                  // of the search, where there is one
};

// The same problem gives the same solution. Of states that cost the same, lower numbers are preferred where
// the choice is between two states of one variable, or two minimum cuts; not beyond. Throws InternalError for
// a malformed problem (problem.h).
[[nodiscard]] Solution solve(const Problem& problem, const SolveOptions& options = {});

}  // namespace tosaic::layout
