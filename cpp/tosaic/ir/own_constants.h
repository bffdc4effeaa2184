// own_constants: makes a graph independent of memory that somebody else owns.
//
//   %w = view of torch's memory  ->  %w = copy of it, with the same name and kind
//
// Constants that are views (Storage::is_view) are copied, in regions too. All other constants are shared with
// the source graph. A graph without views is returned unchanged.
#pragma once

#include <memory>

#include "tosaic/ir/graph.h"

namespace tosaic {

// Throws InvalidGraph, naming the constant and a node that reads it, if the owner changed the memory since
// import or during the copy.
[[nodiscard]] std::shared_ptr<const Graph> own_constants(const std::shared_ptr<const Graph>& graph);

// Throws InvalidGraph, naming the constant and a node that reads it, if the owner of a view changed its
// memory since import.
void verify_views(const Graph& graph);

}  // namespace tosaic
