// nodes: the graphs of a .pt2 file as nodes, each with the arguments and the type that torch recorded.
//
//   {"target": "torch.ops.aten.relu.default", "inputs": [{"arg": {"as_tensor": {"name": "x"}}}], ...}
//     ->   Node{kCall, "relu", "aten.relu.default", args [NodeRef 0], recorded TensorRef 1}
//
// A call with several results is one entry of the file, with the names of all results. As in torch, it
// becomes a node and a node `kGetItem` for each result.
#pragma once

#include <complex>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tosaic/pt2/fields.h"
#include "tosaic/pt2/json.h"
#include "tosaic/pt2/tensor_meta.h"

namespace tosaic::pt2 {

inline constexpr std::int64_t kMemoryFormats = 4;

// Positions in the vectors of the graph and of the program.
struct NodeRef {
  std::uint32_t index = 0;
};
struct TensorRef {
  std::uint32_t index = 0;
};
struct GraphRef {
  std::uint32_t index = 0;
};
// A dtype, memory format or layout by its number in the file, and an operator by its name.
struct DtypeNumber {
  std::int64_t number = 0;
};
struct MemoryFormatNumber {
  std::int64_t number = 0;
};
struct LayoutNumber {
  std::int64_t number = 0;
};
struct OperatorName {
  std::string_view name;
};
struct Device {
  std::string_view type;
  std::optional<std::int64_t> index;
};

struct Argument;
struct KeyedArgument;
using Items = std::vector<Argument>;
using Keyed = std::vector<KeyedArgument>;

// An argument of a call, or what is recorded of its result.
struct Argument {
  std::variant<std::monostate, bool, std::int64_t, double, std::complex<double>, std::string_view, NodeRef,
               Symbolic, DtypeNumber, MemoryFormatNumber, LayoutNumber, OperatorName, Device, Items, Keyed,
               TensorRef, GraphRef>
      value;
};

struct KeyedArgument {
  std::string_view key;
  Argument argument;
};

// A module around a node. A ModuleStack has all of them, outermost first.
struct Module {
  std::string_view text, key, path, type;  // the text has the other three
  std::uint32_t index = 0;                 // of this module among all of the program
};
using ModuleStack = std::vector<Module>;

enum class NodeKind : std::uint8_t { kPlaceholder, kCall, kGetItem, kAttribute, kOutput };

struct Node {
  NodeKind kind = NodeKind::kCall;
  std::string_view name = {};
  std::string_view target = {};  // of a call, without "torch.ops."
  Items args = {};
  Keyed kwargs = {};
  std::optional<std::string_view> stack_trace = {};
  std::optional<std::uint32_t> modules = {};  // a position in ProgramNodes::stacks
  std::optional<Argument> recorded = {};      // the type of the result
  std::vector<std::uint32_t> inputs = {};     // the nodes in the arguments, each once
};

struct GraphNodes {
  std::vector<Node> nodes;
};

// All graphs of a program. Its texts are parts of the document or of `texts`.
struct ProgramNodes {
  std::deque<GraphNodes> graphs;   // the outermost one first
  std::deque<TensorMeta> tensors;  // no two are equal
  std::vector<ModuleStack> stacks;
  std::uint32_t modules = 0;  // how many there are in all stacks
  Texts texts;
};

// The parameters of an operator in order. Files that do not record how an argument is passed need them.
using ParameterNames = std::function<std::vector<std::string>(std::string_view target)>;

// Reads a graph and the graphs nested in it: placeholders, calls and the output.
//
// `constant_names` has a name for each input that is a constant. Throws InvalidGraph if the graph is damaged,
// and UnsupportedOp for what only torch reads; the message names the entry of the graph.
[[nodiscard]] ProgramNodes read_nodes(Json graph, std::span<const std::string> constant_names,
                                      const ParameterNames& parameter_names);

}  // namespace tosaic::pt2
