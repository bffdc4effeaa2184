// Functions of one byte in a row are one: bounds, rescales of bytes to bytes, tables.
//
//   rescale(clamp(x: i8): i8): i8  ->  table(x)            rescale(pad(x: i8)): i8  ->  pad(rescale(x))
//
// Only where nobody else reads what is in between. A pad comes behind, where a convolution can take it.
#pragma once

#include <optional>

#include "tosaic/ir/graph.h"

namespace tosaic::passes {

// At stage integer; nothing where there are none.
[[nodiscard]] std::optional<Graph> join_byte_functions(const Graph& graph);

}  // namespace tosaic::passes
