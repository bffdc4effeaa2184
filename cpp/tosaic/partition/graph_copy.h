// graph_copy: copies nodes of a graph to another one, value by value.
#pragma once

#include <span>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic::partition {

// The copies of values of one graph. Several objects may share `out`. Both graphs must outlive this object.
class GraphCopy {
 public:
  GraphCopy(const Graph& source, Graph& out) : source_(source), out_(out), made_(source.values().size()) {}

  // True if the value has a copy, or stands for another value.
  [[nodiscard]] bool has(ValueId value) const { return made_[value.index()].valid(); }
  // Lets `made`, a value of `out`, stand for `value`, a value of the source: of(value) then returns `made`.
  void set(ValueId value, ValueId made) { made_[value.index()] = made; }
  // The copy of a value, or an invalid id for an absent operand. A constant is copied when it is first read.
  // Throws InternalError for another value that was not copied yet.
  [[nodiscard]] ValueId of(ValueId value);
  [[nodiscard]] std::vector<ValueId> all(std::span<const ValueId> values);

  void add_inputs();
  // Adds a copy of the node onto these operands, which are values of `out`. Its results stand for the results
  // of the node.
  NodeId add(const Node& node, std::span<const ValueId> operands);
  NodeId add(const Node& node) { return add(node, all(source_.operands(node))); }
  void add_outputs();

 private:
  const Graph& source_;
  Graph& out_;
  std::vector<ValueId> made_;  // by value of the source
};

}  // namespace tosaic::partition
