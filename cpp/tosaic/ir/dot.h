// dot: writes a graph as Graphviz text. Boxes are operators, ellipses are graph inputs and outputs. Constants
// are listed in the box of the operator that reads them. An edge is labelled with the type of its value.
// Regions are clusters.
#pragma once

#include <string>

#include "tosaic/ir/graph.h"

namespace tosaic {

[[nodiscard]] std::string dot(const Graph& graph);

}  // namespace tosaic
