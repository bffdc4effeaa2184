// eliminate: variables minimised out one after another, those with the smallest tables first.
//
//   a - b - c, a - c, c - d      b depends on a and c: min over b is a table over (a, c), which joins what is
//                                there between a and c already; then a, then c, then d.
//
// Exact, as long as all factors of a variable go into one table. With two neighbours at most, chains and
// whatever is put together of branches side by side shrink to nothing.
// U. Bertele, F. Brioschi, Nonserial dynamic programming, 1972; splitting: R. Dechter, I. Rish,
// Mini-buckets, J. ACM 50(2), 2003.
#pragma once

#include <span>

#include "tosaic/layout/factors.h"

namespace tosaic::layout {

struct EliminateLimits {
  std::size_t neighbours = 0xffffffffu;
  std::size_t entries = 0;  // of a table over a variable and its neighbours
  bool split = false;       // go on where nothing fits: the factors of a variable in several tables
};

// Minimises variables of `from`, and their neighbours, until none is within the limits (without `split`), or
// none has a factor. Returns the variables whose factors were split; if there are none, nothing was lost.
std::vector<VariableId> eliminate(Factors& factors, std::span<const VariableId> from,
                                  const EliminateLimits& limits);

}  // namespace tosaic::layout
