// IntegerBuilder: adds nodes to the new graph on behalf of one node of the source graph. The nodes have the
// origin of that node, and their names begin with its name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/shared_storages.h"
#include "tosaic/passes/lower_to_integer/lower_to_integer.h"

namespace tosaic::passes {

// The graph that the pass makes, and the rules of the target for it.
struct NewGraph {
  Graph graph;
  IntegerRules rules;
  // One entry for each operator over quantized values that stays an operator over floats. It says why.
  std::vector<ErrorParts> float_operators = {};
  SharedStorages storages = {};  // of the constants that the pass makes
};

class IntegerBuilder {
 public:
  IntegerBuilder(NewGraph& made, OriginRef origin, std::string name)
      : made_(&made), origin_(std::move(origin)), name_(std::move(name)) {}

  [[nodiscard]] const Graph& graph() const { return made_->graph; }
  [[nodiscard]] const IntegerRules& rules() const { return made_->rules; }
  [[nodiscard]] const OriginRef& origin() const { return origin_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // Returns a copy: adding a value to the graph invalidates references to its types.
  [[nodiscard]] TensorType type(ValueId id) const { return graph().type(id); }
  // The value as a constant, or null if the value is not a constant.
  [[nodiscard]] const ConstantRef& known(ValueId id) const { return graph().value(id).constant; }

  // Adds a node with one result. A view or movement of constants is folded.
  ValueId emit(Op op, Attrs attributes, const std::vector<ValueId>& operands);
  // Adds a node whose operands broadcast: all are reshaped to one rank first.
  ValueId elementwise(Op op, Attrs attributes, std::vector<ValueId> operands);
  ValueId binary(Op op, ValueId a, ValueId b);
  // These three add no node if x has the shape or dtype already.
  ValueId reshape(ValueId x, const Shape& shape);
  ValueId expand(ValueId x, const Shape& shape);
  ValueId cast(ValueId x, DType dtype);
  // Adds axes of extent 1 in front until x broadcasts to `shape`, and broadcasts it.
  ValueId broadcast_to(ValueId x, const Shape& shape);

  ValueId constant(DType dtype, const Shape& shape, const std::vector<std::int64_t>& values);
  // A constant of one element, with `rank` axes of extent 1.
  ValueId number(std::int64_t value, std::size_t rank, DType dtype = DType::kI32);
  // A constant of the source graph, or one that the pass computed.
  ValueId constant(const ConstantRef& constant) {
    return made_->graph.add_constant(made_->storages.shared(constant));
  }

  // Clamps `x`, whose values are in `range`, to the range `to`; adds no node if `range` is within `to`.
  ValueId bounded(ValueId x, ValueRange range, ValueRange to);
  // The logical or, and the logical and, of masks of bools. An absent mask is false everywhere.
  std::optional<ValueId> either(const std::optional<ValueId>& a, const std::optional<ValueId>& b);
  std::optional<ValueId> both(const std::optional<ValueId>& a, const std::optional<ValueId>& b);

 private:
  NewGraph* made_;
  OriginRef origin_;
  std::string name_;
};

}  // namespace tosaic::passes
