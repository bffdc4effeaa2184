// eliminate: minimises out variables one after another. Variables that leave the smallest tables come first.
//
//   a - b - c, a - c, c - d      b depends on a and c: the minimum over b is a table over (a, c), next to the
//                                factor that is already between a and c. Then a, c and d follow.
//
// The elimination is exact as long as all factors of a variable are added up in one table. If variables with
// at most two neighbours are eliminated, chains and series-parallel graphs disappear altogether.
// U. Bertele, F. Brioschi, Nonserial dynamic programming, 1972; splitting: R. Dechter, I. Rish,
// Mini-buckets, J. ACM 50(2), 2003.
#pragma once

#include <span>

#include "tosaic/layout/solver/factors.h"

namespace tosaic::layout {

struct EliminateLimits {
  std::size_t neighbours = 0xffffffffu;  // the most neighbours of a variable
  std::size_t entries = 0;               // the most entries of a table over a variable and its neighbours
  bool split = false;                    // without a variable in the limits, uses several tables for one
};

// Minimises out variables of `from`, and their neighbours, until no variable has a factor or, without
// `split`, no variable is within the limits. Returns the variables whose factors went into several tables. If
// no variable is returned, the elimination was exact.
std::vector<VariableId> eliminate(Factors& factors, std::span<const VariableId> from,
                                  const EliminateLimits& limits);

}  // namespace tosaic::layout
