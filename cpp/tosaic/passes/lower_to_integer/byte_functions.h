// byte_functions: joins successive functions of one i8 element into one table, and moves such a function in
// front of a pad. The functions are clamps, rescales from i8 to i8, and tables.
//
//   rescale(clamp(x: i8): i8): i8  ->  table(x)            rescale(pad(x: i8)): i8  ->  pad(rescale(x))
//
// Both happen only if the value in between has no other reader. The pad moves to the end because a
// convolution that reads it can then absorb it.
#pragma once

#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// The graph must be at stage integer. Returns nothing if there is no function to join or to move.
[[nodiscard]] std::optional<Graph> join_byte_functions(const Graph& graph);

}  // namespace tosaic::passes
