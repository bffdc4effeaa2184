// Graph: one function as plain data, in topological order.
//
// A value is an input, a constant or one result of a node. Nodes refer to values by id; ids are indices into
// contiguous arrays and stay valid until the graph is rebuilt. A graph is built front to back (each operand
// must exist already, so the order is topological by construction) and is then read-only: passes make a new
// graph with `Rewriter`. Constants, origins and attributes are shared between graphs.
#pragma once

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
[[nodiscard]] std::string_view to_string(Stage stage);
[[nodiscard]] std::optional<Stage> parse_stage(std::string_view text);
// Canonical operators up to stage integer, TOSA's at stage tosa. Where both sections of ops.def meet, at
// stage integer, TOSA operators compute; what moves elements and what runs regions or variables is canonical.
[[nodiscard]] bool may_stand(Op op, Stage stage);

class Graph;

enum class ValueKind : std::uint8_t { kInput, kConstant, kResult };

struct Value {
  TensorType type;
  ValueKind kind = ValueKind::kResult;
  std::uint32_t result_index = 0;  // which result of the producer; index into inputs() for inputs
  NodeId producer;                 // results only
  ConstantRef constant;            // constants only
  std::string name;                // unique within the graph
};

struct Node {
  Op op = Op::kOpaque;
  std::uint32_t operand_begin = 0, operand_count = 0;
  std::uint32_t first_result = 0, result_count = 0;  // results are consecutive values
  AttrsRef attrs;
  OriginRef origin;
  std::vector<std::shared_ptr<const Graph>> regions;
};

// What is done with an array at the border before it is used as `type.dtype`: integers are looked at and
// converted, floats quantized where there are parameters.
struct Border {
  std::optional<DType> source_dtype;          // the caller's dtype, where the range is checked
  std::int64_t range_min = 0, range_max = 0;  // with source_dtype: inclusive range that run() checks
  DimOrder order;                             // how the caller's array lies in memory ("as traced")
  bool physical = false;                      // arrays carry the physical shape (declared "nhwc")
  QParamsRef qparams;                         // what the integers stand for; with source_dtype f32: by these
  bool operator==(const Border& other) const;
};

enum class InputKind : std::uint8_t { kUser, kState };
struct Input {
  ValueId value;
  InputKind kind = InputKind::kUser;
  std::string path;  // where the caller finds it: "x", "args[0]", "kwargs['mask']"; state: the buffer's name
  ConstantRef initial;  // state only
  Border border;
};

enum class OutputKind : std::uint8_t { kUser, kMutation };
struct Output {
  ValueId value;
  OutputKind kind = OutputKind::kUser;
  std::string path;                 // "out[0]['logits']"; mutation: the buffer's (or user input's) name
  std::uint32_t mutated_input = 0;  // mutation: index into inputs()
  Border border;
};

class Graph {
 public:
  std::string name = "forward";
  Stage stage = Stage::kExported;

  // ---- building, front to back ----
  // Names are made unique by a suffix; an empty name becomes the op's.
  ValueId add_input(InputKind kind, std::string name, TensorType type, std::string path, Border border = {},
                    ConstantRef initial = nullptr);
  // One value per distinct constant: the same ConstantRef gives the same value.
  ValueId add_constant(ConstantRef constant);
  // Result types as given (imports and parsers check them against infer by verify()).
  NodeId add_node(Op op, AttrsRef attrs, std::span<const ValueId> operands,
                  std::span<const TensorType> results, OriginRef origin, std::string name,
                  std::vector<std::shared_ptr<const Graph>> regions = {});
  // The regions of a node as they stand in a graph at another stage; what they hold may stand at both.
  [[nodiscard]] static std::vector<std::shared_ptr<const Graph>> regions_at(const Node& node, Stage stage);
  // The node of another graph over these operands, with the types, names and regions it has there.
  NodeId add_copy(const Graph& source, const Node& node, std::span<const ValueId> operands);
  // Single-result node with its type by infer().
  ValueId add(Op op, Attrs attributes, std::span<const ValueId> operands, OriginRef origin,
              std::string node_name = "");
  void add_output(Output output);
  void set_order(ValueId value, const DimOrder& order) { values_[value.index()].type.order = order; }
  void set_qparams(ValueId value, QParamsRef qparams) {
    values_[value.index()].type.qparams = std::move(qparams);
  }

  // Of the input, or output, of that index.
  void set_input_border(std::size_t input, Border border) { inputs_[input].border = std::move(border); }
  void set_output_border(std::size_t output, Border border) { outputs_[output].border = std::move(border); }

  // The same graph over other constants, in regions too: `replaced` gives one of equal type and elements for
  // each. Null if it returns every constant as it is.
  [[nodiscard]] static std::shared_ptr<const Graph> with_constants(
      const Graph& source, const std::function<ConstantRef(const ConstantRef&)>& replaced);

  // Gives a value another name, if that is free; else it keeps its own.
  void rename(ValueId value, const std::string& wanted);

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
  // The name of the first result; of a node without results (opaque) the FX name of its origin.
  [[nodiscard]] std::string node_name(const Node& node) const;
  [[nodiscard]] NodeId id(const Node& node) const {
    return NodeId(static_cast<std::uint32_t>(&node - nodes_.data()));
  }
  [[nodiscard]] std::span<const Input> inputs() const { return inputs_; }
  [[nodiscard]] std::span<const Output> outputs() const { return outputs_; }
  // The producing node of a value, or null for inputs and constants.
  [[nodiscard]] const Node* producer(ValueId id) const {
    const Value& v = values_[id.index()];
    return v.kind == ValueKind::kResult ? &nodes_[v.producer.index()] : nullptr;
  }
  template <class A>
  [[nodiscard]] static const A& attrs(const Node& node) {
    return get<A>(*node.attrs);
  }

  // Consumers of each value, in order, one entry per use (outputs not included). Built on first use.
  [[nodiscard]] std::span<const NodeId> users(ValueId id) const;
  [[nodiscard]] bool is_output(ValueId id) const;

 private:
  friend class Rewriter;
  friend class TextReader;  // parse() restores names and types exactly
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
