// GraphBuilder: writes a graph front to back from calls that another framework has recorded.
//
//   builder.add_input("x", {kF32, {2, 3}}, "args[0]")                    -> value 0
//   builder.add_node(kRelu, {}, {0}, origin, "relu", {kF32, {2, 3}})     -> value 1; its type is checked
//   builder.add_output(1, "out", ..)
//   builder.finish()                                                     -> the graph
//
// The builder infers the result types of each node and compares them with the types that the framework
// recorded, so that a wrong reading of a call is found at the call. Result types of operators without
// inference (foreign operators, control flow) are those that were recorded.
//
// A value that does not exist, and any call after finish(), is a fault of the caller: InternalError.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

class GraphBuilder {
 public:
  // A call that becomes a node.
  struct Call {
    Op op = Op::kOpaque;
    Attrs attrs;
    std::span<const ValueId> operands;  // an invalid id: the optional operand is absent
    OriginRef origin;
    std::string name;
    // The recorded types of the leading results. For an operator with inference there may be fewer than
    // results, or none; then the other results are not checked.
    std::span<const TensorType> recorded;
    std::vector<std::shared_ptr<const Graph>> regions = {};
  };

  GraphBuilder(std::string name, Stage stage);

  // Adds a user input or, with `initial`, a state. `order` is the dim order of the caller's array in memory.
  ValueId add_input(std::string name, TensorType type, std::string path, DimOrder order = {},
                    ConstantRef initial = nullptr);
  // Returns the same value for the same ConstantRef.
  ValueId add_constant(ConstantRef constant);
  // Returns the first result. Throws InvalidGraph, located at the call, if an inferred type is not the
  // recorded one. Throws what infer() throws.
  ValueId add_node(Call call);
  // Adds a user output or, with `mutated_input`, the new value of the input of this index.
  void add_output(ValueId value, std::string path, std::optional<std::uint32_t> mutated_input,
                  DimOrder order = {});

  [[nodiscard]] const TensorType& type(ValueId value) const;
  // The constant that the value is, or of which it is a clone or reshape. Returns null for other values.
  [[nodiscard]] ConstantRef constant(ValueId value) const;

  // The graph as far as it has been written.
  [[nodiscard]] const Graph& written() const { return graph(); }
  // Returns the graph. The builder cannot be used afterwards.
  [[nodiscard]] std::shared_ptr<Graph> finish();

 private:
  [[nodiscard]] Graph& graph() const;
  [[nodiscard]] ValueId checked(ValueId value) const;

  std::shared_ptr<Graph> graph_;
};

}  // namespace tosaic
