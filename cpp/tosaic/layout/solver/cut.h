// cut: solves the rest of the problem exactly by a minimum cut, where that is possible.
//
// Each variable has two states, one on the side of the source and one on the side of the sink. The transpose
// of a tensor to one order is paid if some reader is on one side and the producer is on the other:
//
//   reader1 -\                         A reader on the side of the source pulls z to that side. Then the
//             >- z --weight-> producer weight is cut if the producer is on the side of the sink: once, even
//   reader2 -/                         if both readers pull.
//
// The term may also be the mirror image, with all arcs reversed. A flip decides which state of a variable is
// on which side. Flips are chosen so that, in each term, the states in which the readers read the order are
// on one side, and the states in which the producer lacks it are on the other. Only variables of one term or
// table restrict each other's flips. So each connected component either has such flips or does not. A table
// over two variables restricts its flips so that the cost arises when the variables are on different sides.
#pragma once

#include "tosaic/layout/solver/factors.h"

namespace tosaic::layout {

// Solves each connected component of the factors that are alive, if a minimum cut can solve it: splits its
// factors by the flow and sets the states of its variables in `state`. Other components are not changed. A
// minimum cut cannot solve a component if a variable has more than two states, if a table is over more than
// two variables, or if no choice of flips fits all terms.
void cut(Factors& factors, std::vector<std::uint32_t>& state);

}  // namespace tosaic::layout
