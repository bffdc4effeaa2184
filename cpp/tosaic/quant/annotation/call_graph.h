// call_graph: the nodes of a torch graph as plain data, in the order of execution. Plans and rules see
// nothing else of the graph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tosaic/quant/annotation/spec.h"

namespace tosaic::quant {

enum class CallKind : std::uint8_t { kPlaceholder, kGetAttr, kCall, kOutput };

[[nodiscard]] std::string_view to_string(CallKind kind);
[[nodiscard]] std::optional<CallKind> parse_call_kind(std::string_view text);

// A module that contains a call: "layer1.0", "torch.nn.modules.conv.Conv2d".
struct ModuleScope {
  std::string path, type;
};

// One place where a node reads another.
struct CallOperand {
  std::string path;  // "args[0]", "args[1][2]", "kwargs.bias"
  NodeIndex producer;
  std::string name = {};  // of the argument in the operator's schema; empty if there is none
};

struct CallNode {
  std::string name;
  CallKind kind = CallKind::kCall;
  std::string target = {};  // "aten.conv2d.default"
  std::vector<CallOperand> operands = {};
  std::vector<ModuleScope> modules = {};  // outermost first
  std::string source = {};                // "model.py:41", or empty
  std::string dtype = {};  // of the tensor that the node computes; empty if there is no tensor, or not known
  std::optional<std::vector<std::int64_t>> shape = {};  // -1: a size that is not known
  std::vector<NodeIndex> users = {};                    // each once, in the order in which torch lists them
  std::vector<std::string> aliases =
      {};  // names of other calls that were merged into this one; selections find it by these, too
};

// An input or output, as the caller of the graph sees it. The node is invalid for an output that is no
// tensor.
struct GraphPort {
  std::string path;
  NodeIndex node;
};

class CallGraph {
 public:
  // If the `users` of a node are empty, they are derived from the operands, in the order of the graph. Throws
  // InvalidGraph if two nodes have one name, if an operand or port refers to no node or to a later one, or if
  // the users of a node are not the nodes that read it.
  CallGraph(std::vector<CallNode> nodes, std::vector<GraphPort> inputs, std::vector<GraphPort> outputs);
  CallGraph(const CallGraph&) = delete;
  CallGraph& operator=(const CallGraph&) = delete;

  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const std::vector<CallNode>& nodes() const { return nodes_; }
  [[nodiscard]] const CallNode& node(NodeIndex index) const { return nodes_[index.index()]; }
  // The caller's inputs in order, unused ones included, and its outputs, repeated ones included.
  [[nodiscard]] const std::vector<GraphPort>& inputs() const { return inputs_; }
  [[nodiscard]] const std::vector<GraphPort>& outputs() const { return outputs_; }

  // The node of this name or alias; invalid if there is none.
  [[nodiscard]] NodeIndex find(std::string_view name) const;
  // As find(), but throws InvalidGraph, with near names, if there is none; `where` begins the message.
  [[nodiscard]] NodeIndex at(std::string_view name, const std::string& where) const;
  // True if the graph has the node of an output slot or, for an edge, if its user reads its producer.
  [[nodiscard]] bool contains(Slot slot) const;
  // False for tensors of integers and bools, which cannot be quantized. True if the dtype is not known.
  [[nodiscard]] bool may_be_float(NodeIndex index) const;
  // "conv2d" or "conv2d -> relu".
  [[nodiscard]] std::string text(Slot slot) const;

 private:
  std::vector<CallNode> nodes_;
  std::vector<GraphPort> inputs_, outputs_;
  std::unordered_map<std::string_view, NodeIndex> by_name_;  // views into nodes_
};

// "grid_sampler_2d" of "aten.grid_sampler_2d.default": the name without namespace and overload.
[[nodiscard]] std::string_view short_target(std::string_view target);

}  // namespace tosaic::quant
