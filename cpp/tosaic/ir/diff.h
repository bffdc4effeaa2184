// diff: what changed between two graphs, node by node, whatever the values are called now.
//
// Nodes are matched in this order, each step among those still unmatched:
//   1. equal structure behind them (operator, attributes, operands all the way up), same name preferred
//   2. same origin and operator, 3. same name and operator
//   4. same operator next to a matched neighbour (operand, then user or output), then same operator and
//   attributes
//   5. same name or same origin: the operator was changed in place
// What is left over was removed or added. A matched pair is compared field by field; operands count as equal
// when they are the same input, an equal constant or the same result of a matched pair.
#pragma once

#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

// One line of what differs: "attribute stride", "[1,1]", "[2,2]".
struct Change {
  std::string what, before, after;
  bool operator==(const Change&) const = default;
};

struct NodeChange {
  std::string before, after;  // names
  std::vector<Change> changes;
  bool operator==(const NodeChange&) const = default;
};

// A node that only one graph has: its name and its line of the text form.
struct NodeLine {
  std::string name, text;
  bool operator==(const NodeLine&) const = default;
};

struct Diff {
  std::vector<Change> graph;  // stage, inputs, outputs
  std::vector<NodeLine> removed, added;
  std::vector<NodeChange> changed;                           // in the order of the second graph
  std::vector<std::pair<std::string, std::string>> renamed;  // equal but for the name
  std::size_t unchanged = 0;

  // Names do not count.
  [[nodiscard]] bool empty() const {
    return graph.empty() && removed.empty() && added.empty() && changed.empty();
  }
};

[[nodiscard]] Diff diff(const Graph& a, const Graph& b);

// One line per change: "- node", "+ node", "~ node: what before -> after"; "" for an empty diff.
[[nodiscard]] std::string to_string(const Diff& diff);

}  // namespace tosaic
