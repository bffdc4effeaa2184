// Graph: one function as plain data, with its nodes in topological order.
//
// A value is an input, a constant or one result of a node. Nodes refer to values by id. Ids are indices into
// contiguous arrays and are valid for one graph only. A graph is built front to back: every operand must
// exist before its node, so the order is topological by construction. A finished graph is read-only; passes
// build a new graph with `Rewriter`. Constants, origins and attributes are shared between graphs.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tosaic/base/ids.h"
#include "tosaic/ir/op.h"
#include "tosaic/ir/origin.h"
#include "tosaic/ir/storage.h"
#include "tosaic/ir/type.h"

namespace tosaic {

enum class Stage : std::uint8_t { kExported, kQuantized, kInteger, kTosa };
inline constexpr std::array kAllStages{Stage::kExported, Stage::kQuantized, Stage::kInteger, Stage::kTosa};
[[nodiscard]] std::string_view to_string(Stage stage);
[[nodiscard]] std::optional<Stage> parse_stage(std::string_view text);
// True if a graph at `stage` may contain `op`:
//
//   exported, quantized  canonical operators except integer_conv, integer_grid_sample and rescale
//   integer              every canonical operator, and the tosa.* operators that only compute: not
//                        tosa.rescale, movement, views, control flow, variables or tosa.custom
//   tosa                 tosa.* operators only
[[nodiscard]] bool allowed_at(Op op, Stage stage);

class Graph;

enum class ValueKind : std::uint8_t { kInput, kConstant, kResult };
[[nodiscard]] std::string_view to_string(ValueKind kind);

struct Value {
  TensorType type;
  ValueKind kind = ValueKind::kResult;
  std::uint32_t result_index = 0;  // results: which result of the producer; inputs: index into inputs()
  NodeId producer;                 // results only
  ConstantRef constant;            // constants only
  std::string name;                // unique within the graph
  // Follows values through passes: the value of an earlier graph that this value represents. Callers who want
  // to follow values set it before the passes and read it after them. Rewrites copy it along with the name.
  ValueId source;
  // At stage tosa: how the value stores the axes of the canonical value from which it was legalized. Axis i
  // of the value is axis i of this dim order. legalize-tosa sets the order, and rewrites copy it along with
  // the name. It is absent in graphs that were parsed or read, since neither the text form nor a .tosa file
  // records it.
  std::optional<DimOrder> canonical_order;
};

struct Node {
  Op op = Op::kOpaque;
  std::uint32_t operand_begin = 0, operand_count = 0;
  std::uint32_t first_result = 0, result_count = 0;  // results are consecutive values
  AttrsRef attrs;
  OriginRef origin;
  std::vector<std::shared_ptr<const Graph>> regions;
};

// How run() converts between the caller's array and the value of a graph input or output:
//
//   source_dtype  qparams  the array has                           conversion of an input; of an output
//   none          any      the value's dtype                       none; none
//   an integer    none     source_dtype, in range_min..range_max   to the value's dtype, range checked; back
//   a float       set      source_dtype                            quantized by qparams; dequantized
struct BoundaryFormat {
  std::optional<DType> source_dtype;          // the dtype of the caller's array; none: the value's dtype
  std::int64_t range_min = 0, range_max = 0;  // inclusive; checked for inputs with an integer source_dtype
  DimOrder order;                             // dim order of the caller's array in memory
  bool physical = false;                      // the array has the physical shape (declared as "nhwc")
  QParamsRef qparams;                         // quantization parameters of the value's integers
  bool operator==(const BoundaryFormat& other) const;
};

enum class InputKind : std::uint8_t { kUser, kState };
struct Input {
  ValueId value;
  InputKind kind = InputKind::kUser;
  std::string path;     // its place in the call: "x", "args[0]", "kwargs['mask']"; state: the buffer's name
  ConstantRef initial;  // state only
  BoundaryFormat boundary;
};

enum class OutputKind : std::uint8_t { kUser, kMutation };
struct Output {
  ValueId value;
  OutputKind kind = OutputKind::kUser;
  std::string path;                 // "out[0]['logits']"; mutation: the buffer's (or user input's) name
  std::uint32_t mutated_input = 0;  // mutation: index into inputs()
  BoundaryFormat boundary;
};

class Graph {
 public:
  std::string name = "forward";
  Stage stage = Stage::kExported;

  // ---- building, front to back ----
  // A name that is taken gets a suffix. An empty name becomes the operator's name.
  ValueId add_input(InputKind kind, std::string name, TensorType type, std::string path,
                    BoundaryFormat boundary = {}, ConstantRef initial = nullptr);
  // Returns the same value for the same ConstantRef.
  ValueId add_constant(ConstantRef constant);
  // The result types are stored unchecked; verify() compares them with infer(). Throws InvalidGraph if an
  // operand does not exist yet.
  NodeId add_node(Op op, AttrsRef attrs, std::span<const ValueId> operands,
                  std::span<const TensorType> results, OriginRef origin, std::string name,
                  std::vector<std::shared_ptr<const Graph>> regions = {});
  // The node's regions with their stage set to `stage`, nested regions included. Nodes are not converted: the
  // caller ensures that their operators are allowed at both stages.
  [[nodiscard]] static std::vector<std::shared_ptr<const Graph>> regions_at(const Node& node, Stage stage);
  // Copies a node of another graph, with its result types, names and regions, onto these operands.
  NodeId add_copy(const Graph& source, const Node& node, std::span<const ValueId> operands);
  // Adds a node with one result, whose type infer() determines. Throws what infer() throws.
  ValueId add(Op op, Attrs attributes, std::span<const ValueId> operands, OriginRef origin,
              std::string node_name = "");
  void add_output(Output output);
  void set_order(ValueId value, const DimOrder& order) { values_[value.index()].type.order = order; }
  void set_source(ValueId value, ValueId source) { values_[value.index()].source = source; }
  void set_canonical_order(ValueId value, const DimOrder& order) {
    values_[value.index()].canonical_order = order;
  }
  void set_qparams(ValueId value, QParamsRef qparams) {
    values_[value.index()].type.qparams = std::move(qparams);
  }

  // `input` and `output` are indices into inputs() and outputs().
  void set_input_boundary(std::size_t input, BoundaryFormat boundary) {
    inputs_[input].boundary = std::move(boundary);
  }
  void set_output_boundary(std::size_t output, BoundaryFormat boundary) {
    outputs_[output].boundary = std::move(boundary);
  }

  // The same graph with other constants, regions included. `replaced` maps each constant to one of equal type
  // and elements. Returns null if it maps every constant to itself.
  [[nodiscard]] static std::shared_ptr<const Graph> with_constants(
      const Graph& source, const std::function<ConstantRef(const ConstantRef&)>& replaced);

  // Renames a value. Does nothing if the wanted name is taken.
  void try_rename(ValueId value, const std::string& wanted);

  // ---- reading ----
  [[nodiscard]] std::span<const Node> nodes() const { return nodes_; }
  [[nodiscard]] std::span<const Value> values() const { return values_; }
  [[nodiscard]] const Node& node(NodeId id) const { return nodes_[id.index()]; }
  [[nodiscard]] const Value& value(ValueId id) const { return values_[id.index()]; }
  [[nodiscard]] const TensorType& type(ValueId id) const { return values_[id.index()].type; }
  [[nodiscard]] std::span<const ValueId> operands(const Node& node) const {
    return {operands_.data() + node.operand_begin, node.operand_count};
  }
  [[nodiscard]] ValueId result(const Node& node, std::size_t i = 0) const {
    return ValueId(node.first_result + static_cast<std::uint32_t>(i));
  }
  // The name of the first result. If the node has no results, it is the FX name of the first leaf of its
  // origin, or the name of the operator if it has no origin.
  [[nodiscard]] std::string node_name(const Node& node) const;
  [[nodiscard]] NodeId id(const Node& node) const {
    return NodeId(static_cast<std::uint32_t>(&node - nodes_.data()));
  }
  // The value of this name; invalid if there is none. Takes time linear in the number of values.
  [[nodiscard]] ValueId find_value(std::string_view value_name) const;
  [[nodiscard]] std::span<const Input> inputs() const { return inputs_; }
  [[nodiscard]] std::span<const Output> outputs() const { return outputs_; }
  // The node that produces a value; null for inputs and constants.
  [[nodiscard]] const Node* producer(ValueId id) const {
    const Value& v = values_[id.index()];
    return v.kind == ValueKind::kResult ? &nodes_[v.producer.index()] : nullptr;
  }
  template <class A>
  [[nodiscard]] static const A& attrs(const Node& node) {
    return get<A>(*node.attrs);
  }

  // The nodes that read a value, in order, one entry per use. Graph outputs are not included. The index is
  // built by the first call.
  [[nodiscard]] std::span<const NodeId> users(ValueId id) const;
  [[nodiscard]] bool is_output(ValueId id) const;

 private:
  friend class Rewriter;
  friend class TextReader;  // parse() sets names and types exactly as written
  [[nodiscard]] std::string unique_name(std::string wanted);
  struct Users;
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<ValueId> operands_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::unordered_map<std::string, std::uint32_t> names_;  // name -> next suffix to try
  std::unordered_map<const Constant*, ValueId> constants_;
  mutable std::shared_ptr<const Users> users_;
};

}  // namespace tosaic
