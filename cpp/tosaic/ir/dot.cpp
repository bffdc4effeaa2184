#include "tosaic/ir/dot.h"

#include <algorithm>

#include "tosaic/ir/lexical.h"

namespace tosaic {
namespace {

constexpr std::size_t kMaxLabel = 60;  // bytes in a line of a label; the last character may extend beyond

// The text for use inside a quoted DOT string: escaped, with spaces in place of characters that act on a
// terminal, and truncated to kMaxLabel.
std::string escaped(std::string_view text) {
  std::string out;
  std::size_t i = 0;
  while (i < std::min(text.size(), kMaxLabel)) {
    const std::size_t length = shown_length(text.substr(i));
    if (text[i] == '"' || text[i] == '\\') out += '\\';
    if (length == 0)
      out += ' ';
    else
      out += text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return i < text.size() ? out + "..." : out;
}

class DotWriter {
 public:
  std::string run(const Graph& graph) {
    out_ = "digraph \"" + escaped(graph.name) + "\" {\n  node [fontname=\"Helvetica\"];\n";
    body(graph, "");
    return out_ + "}\n";
  }

 private:
  // `prefix` starts all ids, so that ids of different regions differ.
  void body(const Graph& graph, const std::string& prefix) {
    for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
      const Value& value = graph.value(graph.inputs()[i].value);
      const bool state = graph.inputs()[i].kind == InputKind::kState;
      ellipse(prefix + "i" + std::to_string(i), value.name + (state ? " (state)" : ""));
    }
    for (const Node& node : graph.nodes()) this->node(graph, node, prefix);
    for (std::size_t i = 0; i < graph.outputs().size(); ++i) {
      const Output& output = graph.outputs()[i];
      const std::string id = prefix + "o" + std::to_string(i);
      ellipse(id,
              output.kind == OutputKind::kMutation ? "update of " + output.path : "output " + output.path);
      edge(graph, output.value, id, prefix);
    }
  }

  void ellipse(const std::string& id, const std::string& label) {
    out_ += "  " + id + " [shape=ellipse, label=\"" + escaped(label) + "\"];\n";
  }

  void node(const Graph& graph, const Node& node, const std::string& prefix) {
    const std::string id = prefix + "n" + std::to_string(graph.id(node).index());
    std::string label = escaped(graph.node_name(node)) + "\\n" + std::string(info(node.op).name);
    for (std::size_t i = 0; i < node.operand_count; ++i) {
      const ValueId operand = graph.operands(node)[i];
      if (!operand.valid() || graph.value(operand).kind != ValueKind::kConstant) continue;
      label +=
          "\\n" + std::string(info(node.op).operand_name(i)) + ": " + escaped(to_string(graph.type(operand)));
    }
    out_ += "  " + id + " [shape=box, label=\"" + label + "\"];\n";
    for (const ValueId operand : graph.operands(node))
      if (operand.valid()) edge(graph, operand, id, prefix);
    for (std::size_t i = 0; i < node.regions.size(); ++i)
      region(*node.regions[i], id + "r" + std::to_string(i) + "_");
  }

  void region(const Graph& region, const std::string& prefix) {
    out_ += "  subgraph cluster_" + prefix + " {\n  label=\"" + escaped(region.name) + "\";\n";
    body(region, prefix);
    out_ += "  }\n";
  }

  void edge(const Graph& graph, ValueId from, const std::string& to, const std::string& prefix) {
    const Value& value = graph.value(from);
    if (value.kind == ValueKind::kConstant) {
      if (to[prefix.size()] != 'o') return;  // an operator lists its constants in its box
      const std::string id = prefix + "c" + std::to_string(from.index());
      ellipse(id, value.name);
      out_ += "  " + id + " -> " + to + ";\n";
      return;
    }
    const std::string id = value.kind == ValueKind::kInput
                               ? prefix + "i" + std::to_string(value.result_index)
                               : prefix + "n" + std::to_string(value.producer.index());
    out_ += "  " + id + " -> " + to + " [label=\"" + escaped(to_string(value.type)) + "\"];\n";
  }

  std::string out_;
};

}  // namespace

std::string dot(const Graph& graph) { return DotWriter().run(graph); }

}  // namespace tosaic
