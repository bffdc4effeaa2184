// place_notes: reports scatters that are lowered on the assumption that no index occurs twice.
#pragma once

#include <vector>

#include "tosaic/passes/constant_notes.h"

namespace tosaic::passes {

// A note "assumed-places" for each scatter whose indices may repeat and are too many to compare. `graph` has
// canonical operators and known constants.
[[nodiscard]] std::vector<ConstantNote> place_notes(const Graph& graph);

}  // namespace tosaic::passes
