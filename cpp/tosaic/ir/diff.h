// diff: finds what changed between two graphs, node by node, whatever the names of values are.
//
// Nodes are matched in these steps. Each step considers only nodes that are still unmatched:
//   1. equal structure: the same operator and attributes, recursively for all operands up to the graph
//      inputs; first pairs with the same name, then the others
//   2. same origin and operator
//   3. same name and operator
//   4. same operator, next to a matched node: as reader of a matched operand, then as producer of the same
//      graph output or of the same operand of a matched reader; then same operator and attributes anywhere
//   5. same name, then same origin: the operator was changed in place
// Nodes without a match were removed or added. The nodes of a matched pair are compared field by field. Their
// operands are equal if they are the same input, equal constants, or the same result of a matched pair.
#pragma once

#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

// One difference: {"attribute stride", "[1,1]", "[2,2]"}.
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
  std::vector<std::pair<std::string, std::string>> renamed;  // only the name differs
  std::size_t unchanged = 0;

  // Renamed nodes do not count as a difference.
  [[nodiscard]] bool empty() const {
    return graph.empty() && removed.empty() && added.empty() && changed.empty();
  }
};

[[nodiscard]] Diff diff(const Graph& a, const Graph& b);

// One line per change: "- node", "+ node", "~ node: what before -> after"; "" for an empty diff.
[[nodiscard]] std::string to_string(const Diff& diff);

}  // namespace tosaic
