// dot: a graph as Graphviz text. Boxes are operators, ellipses inputs and outputs; constants are listed in
// the box that uses them, and an edge carries the type of its value. Regions are clusters.
#pragma once

#include <string>

#include "tosaic/ir/graph.h"

namespace tosaic {

[[nodiscard]] std::string dot(const Graph& graph);

}  // namespace tosaic
