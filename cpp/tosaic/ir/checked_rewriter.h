// CheckedRewriter: a Rewriter that checks how it is used, for passes that are written outside of tosaic.
//
// A Rewriter trusts its caller. A CheckedRewriter checks that nodes are visited in order and each once, that
// values exist, that results of operators over quantized values have qparams, and that a replacement has the
// type and qparams of what it replaces. If not, it throws InvalidGraph, which names the node. In the function
// of a pass:
//
//   std::optional<Graph> run(const Graph& graph, const passes::PassOptions&) {
//     CheckedRewriter rewriter(graph);
//     for (const Node& node : graph.nodes()) {
//       const NodeId at = graph.id(node);
//       if (node.op == Op::kRelu) {
//         const ValueId x = rewriter.map(graph.operands(node)[0]);
//         rewriter.replace(at, rewriter.emit(at, Op::kAbs, NoAttrs{}, std::span(&x, 1)));
//       } else {
//         rewriter.copy(at);
//       }
//     }
//     return rewriter.finish();
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tosaic/ir/rewriter.h"

namespace tosaic {

class CheckedRewriter {
 public:
  // Shares the ownership of the graph.
  explicit CheckedRewriter(std::shared_ptr<const Graph> source)
      : source_(std::move(source)), rewriter_(*source_) {}
  // Refers to the graph, which must outlive the rewriter.
  explicit CheckedRewriter(const Graph& source)
      : CheckedRewriter(std::shared_ptr<const Graph>(std::shared_ptr<const Graph>(), &source)) {}
  explicit CheckedRewriter(const Graph&& source) = delete;
  CheckedRewriter(const CheckedRewriter&) = delete;
  CheckedRewriter& operator=(const CheckedRewriter&) = delete;

  [[nodiscard]] const std::shared_ptr<const Graph>& source() const { return source_; }
  // The graph that the ids of emitted values refer to.
  [[nodiscard]] const Graph& current() const { return rewriter_.current(); }

  // Copies the node, which must be the next node of the walk.
  void copy(NodeId node);
  // Replaces the results of the node, which must be the next node of the walk, by values of current(). There
  // must be as many values as results, with the same dtypes and shapes. At stage quantized their qparams must
  // be the same, too. At other stages qparams only say what integers represent: an emitted value without
  // qparams gets the qparams of the result.
  void replace(NodeId node, std::span<const ValueId> results);
  // Adds a node in front of `at`, the next node of the walk. The new node has the origin of `at`. `operands`
  // are values of current(); an invalid id is an absent operand. Returns its results, whose types infer()
  // determines.
  //
  // `qparams` is empty, or has one entry per result, which is null for a result without qparams. At stage
  // quantized the operator computes f32 and a result with qparams is quantized: its dtype is the storage
  // dtype. An f32 result of an operator over values with qparams must have qparams. The result of quantize
  // has the qparams of its attributes, and the result of dequantize has none. At other stages qparams label
  // results of their storage dtype.
  std::vector<ValueId> emit(NodeId at, Op op, Attrs attrs, std::span<const ValueId> operands,
                            std::span<const QParamsRef> qparams = {});
  // A constant of current(). `qparams` say which numbers its integers represent.
  ValueId constant(NodeId at, ConstantRef constant, QParamsRef qparams = nullptr);
  // The value of current() that a value of the source has become. The node that makes the source's value must
  // have been visited.
  [[nodiscard]] ValueId map(ValueId old) const;

  // Returns the new graph, or nothing if every node was copied. All nodes must have been visited. The
  // function can be called only once.
  [[nodiscard]] std::optional<Graph> finish();

 private:
  const Node& turn_of(NodeId node) const;
  // Starts the copy with all that is before `at`, and maps these values of current() to values of the copy.
  // Constants that are after `at` have other ids in the copy.
  std::vector<ValueId> begin_with(const Node& at, std::span<const ValueId> values);
  void require_values(std::span<const ValueId> values, const Node& at) const;
  void require_allowed(const Node& at, Op op) const;
  // Adds `qparams` to the inferred types of the results.
  void quantize_results(const Node& at, Op op, const Attrs& attrs, std::span<const ValueId> operands,
                        std::span<const QParamsRef> qparams, std::vector<TensorType>& types) const;

  std::shared_ptr<const Graph> source_;
  Rewriter rewriter_;
  std::uint32_t next_ = 0;             // index of the next node of the walk
  std::vector<ValueId> emitted_ = {};  // results of nodes emitted since the last copy() or replace()
  bool finished_ = false;
};

}  // namespace tosaic
