// data: reads the segments, the elements of tensors, and the named data.
#pragma once

#include "tosaic/pte/reader/state.h"

namespace tosaic::pte {

// Fills in everything of the file but its methods. Every segment is inside the file, and every piece begins
// inside its segment.
void read_data(State& state, const schema::Program& program, File& file);

}  // namespace tosaic::pte
