// block: reads a block of the file as a graph.
#pragma once

#include <cstddef>

#include "tosaic/tosa/reader/state.h"

namespace tosaic::tosa {

// `depth` is the number of regions around the block: 0 for the program.
[[nodiscard]] Graph read_block(FileState& file, BlockEntry& entry, std::size_t depth);

}  // namespace tosaic::tosa
