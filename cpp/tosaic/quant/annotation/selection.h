// selection: which nodes a rule is about. All conditions that are set must hold.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tosaic/quant/annotation/call_graph.h"

namespace tosaic::quant {

// Without any condition, and with conditions on modules or operators only, a selection has calls only. A
// name, an expression or a list of nodes may select placeholders and parameters, too.
struct Selection {
  std::optional<std::string> name = {};    // of a node
  std::optional<std::string> regex = {};   // found in the name of a node; ECMAScript
  std::optional<std::string> module = {};  // path of a module, with * and ?; selects all calls inside of it
  std::optional<std::string> type = {};    // of a module that contains the call: "Conv2d", or its full name
  std::optional<std::string> op = {};      // "conv2d", "aten.conv2d" or "aten.conv2d.default"
  std::optional<std::vector<std::string>> nodes = {};  // names
  bool operator==(const Selection&) const = default;
};

// The selected nodes, in the order of the graph. Throws InvalidGraph if the regular expression is malformed,
// or if `nodes` has a name that the graph does not have.
[[nodiscard]] std::vector<NodeIndex> select(const CallGraph& graph, const Selection& selection);

// "op='conv2d', module='layer1.*'"
[[nodiscard]] std::string describe(const Selection& selection);

// Why a selection selects no node: names the condition that holds for no node, with near names. A sentence
// without its full stop.
[[nodiscard]] std::string explain_empty(const CallGraph& graph, const Selection& selection);

}  // namespace tosaic::quant
