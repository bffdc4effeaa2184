// regions: reads the regions of COND_IF and WHILE_LOOP.
//
//   y = COND_IF(c, x) {then_graph="a", else_graph="b"}      a: x1 -> y1       b: x2 -> y2
//
// An operator names its regions by the name of a region or of a block. The types that the file declares for
// the operator and for the inputs and outputs of the region are compared before anything inside the region is
// read. A region that several operators name is read once.
#pragma once

#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

// Reads the regions of all operators of the block into state.regions.
void read_regions(BlockState& state);

}  // namespace tosaic::tosa
