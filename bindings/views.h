// views: the Python objects for a node or value of a graph. A view keeps its graph alive.
#pragma once

#include <memory>

#include "tosaic/ir/graph.h"

namespace tosaic::python {

using GraphRef = std::shared_ptr<const Graph>;

struct NodeView {
  GraphRef graph;
  NodeId id;
  [[nodiscard]] const Node& node() const { return graph->node(id); }
};
struct ValueView {
  GraphRef graph;
  ValueId id;
  [[nodiscard]] const Value& value() const { return graph->value(id); }
};

}  // namespace tosaic::python
