// own_constants: a graph that reads nobody else's memory.
//
//   %w = view of torch's memory  ->  %w = copy of it, with the same name and kind
//
// Constants that are views (Storage::is_view) are copied, also those in regions. All others are shared, and a
// graph that has no views is returned as it is.
#pragma once

#include <memory>

#include "tosaic/ir/graph.h"

namespace tosaic {

// Throws InvalidGraph, naming constant and node, if the owner changed the memory since import, or while it
// was copied.
[[nodiscard]] std::shared_ptr<const Graph> own_constants(const std::shared_ptr<const Graph>& graph);

// Throws InvalidGraph, naming constant and node, if the owner of a view changed its memory since import.
void verify_views(const Graph& graph);

}  // namespace tosaic
