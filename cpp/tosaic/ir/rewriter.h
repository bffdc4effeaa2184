// Rewriter: builds a new graph from an old one, for a pass.
//
//   for each node of the old graph, in order:
//     either copy(node), or emit other nodes and replace(node, their results)
//   finish()
//
//   old: %c = conv(%x)  %r = relu(%c)        new: %c = conv(%x)  %r = clamp(%c) {min=0}
//        copy(conv)     replace(relu, emit(clamp))
//
// Nothing is copied before the first replace() or begin_output(), so a pass that matches nothing costs only
// its scan. The new results get the names of the results that they replace. Every emitted node has the origin
// of the replaced node merged into its own. Nodes that become dead stay in the graph until dead-code,
// lower-to-integer or legalize-tosa removes them.
//
// A Rewriter trusts its caller: most mistakes are InternalError or a broken graph. CheckedRewriter
// (checked_rewriter.h) refuses them as InvalidGraph. ops.def names the attribute struct of each operator.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/graph.h"

namespace tosaic {

class Rewriter {
 public:
  explicit Rewriter(const Graph& source) : source_(source) {}

  [[nodiscard]] const Graph& source() const { return source_; }
  [[nodiscard]] bool changed() const { return started_; }

  // ---- the walk: visit the source nodes in order and call exactly one of copy() and replace() for each ----
  void copy(const Node& node);
  // Copies the node, but with other regions. Their inputs and outputs have the types that the old regions
  // have.
  void copy(const Node& node, std::vector<std::shared_ptr<const Graph>> regions);
  // Every later use of the results of `node` becomes a use of these values of the new graph. A value that was
  // added to begin_output() for this node, i.e. since the walk's last call, gets the name, source and
  // canonical_order of the result that it replaces. Its producer gets the origin of `node`. At stage integer,
  // where qparams only say which numbers integers represent, it gets the qparams as well if it has none.
  // Throws InternalError if the number of results, a dtype or a shape differs.
  void replace(const Node& node, std::span<const ValueId> results);
  void replace(const Node& node, ValueId result) { replace(node, std::span(&result, 1)); }

  // The graph to which mapped ids refer: the new graph once it is started, and the source before that.
  [[nodiscard]] const Graph& current() const { return started_ ? out_ : source_; }

  // ---- emitting, between the walk's calls ----
  // The graph under construction. The first call copies everything before `at`, the node being visited.
  Graph& begin_output(const Node& at);
  // The new id of an old value: an input, a constant or a result of a node that was visited. Throws
  // InternalError for other values.
  [[nodiscard]] ValueId map(ValueId old) const;
  [[nodiscard]] std::vector<ValueId> map_operands(const Node& node) const;
  // Emits a node on behalf of `at`, the node being visited. Its origin is that of `at` or, if `extra` (the
  // origin of an earlier node) is not null, the union of both, `extra` first.
  ValueId emit(const Node& at, Op op, Attrs attrs, std::span<const ValueId> operands,
               const OriginRef& extra = nullptr);
  ValueId emit(const Node& at, Op op, Attrs attrs, std::initializer_list<ValueId> operands,
               const OriginRef& extra = nullptr) {
    return emit(at, op, std::move(attrs), std::span(operands.begin(), operands.size()), extra);
  }
  ValueId constant(const Node& at, ConstantRef constant) {
    return begin_output(at).add_constant(std::move(constant));
  }

  // Before the walk: start() begins the copy, then bind() makes every use of `old` a use of `fresh`, a value
  // of the new graph. Used to merge equal constants.
  void start();
  void bind(ValueId old, ValueId fresh);

  // The graph without the dead constants and nodes. All inputs stay. The caller marks the operands of live
  // nodes, and graph outputs, as live. Names are unchanged, except that a constant whose own name is free
  // again gets it back.
  [[nodiscard]] static Graph pruned(const Graph& source, const std::vector<bool>& live_values,
                                    const std::vector<bool>& live_nodes);

  // The finished graph, with mapped outputs; nullopt if nothing changed.
  [[nodiscard]] std::optional<Graph> finish() &&;

 private:
  const Graph& source_;
  Graph out_;
  std::vector<ValueId> map_;
  std::size_t first_emitted_ = 0;  // values of out_ from here on were added since the walk's last call
  bool started_ = false;
};

}  // namespace tosaic
