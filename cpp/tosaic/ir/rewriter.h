// Rewriter: how a pass makes a new graph from an old one.
//
// before:  a walk over the old nodes in order          after: a new graph, also in order
//   for each node: keep() it, or emit other nodes into out() and replace() its results
//
// Nothing is copied until the first replace() or out(): a pass that matches nothing costs its scan. Replaced
// nodes hand their names to the new results and their origins are merged into every node emitted for them.
// Nodes that became dead stay until `dead_code`.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

class Rewriter {
 public:
  explicit Rewriter(const Graph& source) : source_(source) {}

  [[nodiscard]] const Graph& source() const { return source_; }
  [[nodiscard]] bool changed() const { return started_; }

  // Walk control: visit the source nodes in order and call exactly one of these for each.
  void keep(const Node& node);
  // The same node over other regions, which take and give what the old ones do.
  void keep(const Node& node, std::vector<std::shared_ptr<const Graph>> regions);
  // The results of `node` become these values of out(), which take over their names where they were emitted
  // for the node. Types must agree in dtype and shape.
  void replace(const Node& node, std::span<const ValueId> results);
  void replace(const Node& node, ValueId result) { replace(node, std::span(&result, 1)); }

  // The graph that mapped ids refer to: out() once started, else the source.
  [[nodiscard]] const Graph& current() const { return started_ ? out_ : source_; }

  // ---- emitting, between the walk's calls ----
  // The graph under construction; starts the copy at `at`, the node being visited.
  Graph& out(const Node& at);
  // The new id of an old value (of a node already walked, an input or a constant).
  [[nodiscard]] ValueId map(ValueId old) const;
  [[nodiscard]] std::vector<ValueId> map_operands(const Node& node) const;
  // Emits a node on behalf of `at`: origin = merge(extra, at's origin), earlier nodes first.
  ValueId emit(const Node& at, Op op, Attrs attrs, std::span<const ValueId> operands,
               const OriginRef& extra = nullptr);
  ValueId emit(const Node& at, Op op, Attrs attrs, std::initializer_list<ValueId> operands,
               const OriginRef& extra = nullptr) {
    return emit(at, op, std::move(attrs), std::span(operands.begin(), operands.size()), extra);
  }
  ValueId constant(const Node& at, ConstantRef constant) { return out(at).add_constant(std::move(constant)); }

  // Old value -> new value by force (borders that change type); used before the walk starts.
  void start();
  void bind(ValueId old, ValueId fresh);

  // The graph with only the live nodes and constants; inputs stay, and so do names, but that a
  // constant takes its own name where that is free again. Operands of live
  // nodes and outputs are live.
  [[nodiscard]] static Graph pruned(const Graph& source, const std::vector<bool>& live_values,
                                    const std::vector<bool>& live_nodes);

  // The finished graph; nullopt if nothing changed. Outputs are mapped.
  [[nodiscard]] std::optional<Graph> finish() &&;

 private:
  const Graph& source_;
  Graph out_;
  std::vector<ValueId> map_;
  bool started_ = false;
};

}  // namespace tosaic
