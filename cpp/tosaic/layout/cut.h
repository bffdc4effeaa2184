// cut: the exact optimum of what is left by a minimum cut, where there is one.
//
// Variables of two states, on the side of the source or of the sink. The transpose of a tensor to one order
// is paid where some reader is on one side and the producer on the other:
//
//   reader1 -\                         either reader on the side of the source pulls z there, and the weight
//             >- z --weight-> producer is cut if the producer is not, once for both
//   reader2 -/
//
// or all of it reversed. Which state is on which side is chosen per variable ("flip"), so that in each term
// the readers' sets lie on one side and the producer's on the other. Such a choice exists or not for a
// component as a whole; only variables that can meet in one order bind each other. A table over two variables
// binds them likewise, so that being on different sides is what costs.
#pragma once

#include "tosaic/layout/factors.h"

namespace tosaic::layout {

// Solves each connected component of the living factors that is a cut: splits its factors by the flow and
// sets the states of its variables. Other components stay as they are. Tables over more than two variables
// are not cuts.
void cut(Factors& factors, std::vector<std::uint32_t>& state);

}  // namespace tosaic::layout
