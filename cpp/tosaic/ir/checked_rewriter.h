// CheckedRewriter: a Rewriter that checks how it is used, for passes that are written outside of tosaic.
//
// A Rewriter trusts its caller. A CheckedRewriter checks that nodes are visited in order and each once, that
// values exist, and that a replacement has the type of what it replaces, and throws InvalidGraph that names
// the node. It owns its source graph.
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
  explicit CheckedRewriter(std::shared_ptr<const Graph> source)
      : source_(std::move(source)), rewriter_(*source_) {}
  CheckedRewriter(const CheckedRewriter&) = delete;
  CheckedRewriter& operator=(const CheckedRewriter&) = delete;

  [[nodiscard]] const std::shared_ptr<const Graph>& source() const { return source_; }
  // The graph that the ids of emitted values refer to.
  [[nodiscard]] const Graph& current() const { return rewriter_.current(); }

  // Copies the node, whose turn it must be.
  void copy(NodeId node);
  // Replaces the results of the node, whose turn it must be, by values of current(): as many values, with the
  // same dtypes and shapes.
  void replace(NodeId node, std::span<const ValueId> results);
  // Adds a node in front of `at`, whose turn it must be, and whose origin it has. `operands` are values of
  // current(); an invalid id is an absent operand. Returns its results, whose types infer() determines.
  std::vector<ValueId> emit(NodeId at, Op op, Attrs attrs, std::span<const ValueId> operands);
  // A constant of current().
  ValueId constant(NodeId at, ConstantRef constant);
  // The value of current() that a value of the source has become. The node that makes the source's value must
  // have been visited.
  [[nodiscard]] ValueId map(ValueId old) const;

  // The new graph, or nothing if every node was copied. All nodes must have been visited. Can be called only
  // once.
  [[nodiscard]] std::optional<Graph> finish();

 private:
  const Node& turn_of(NodeId node) const;
  // Begins the copy in front of `at`, and returns these values of current() as values of the copy. Constants that
  // stand behind `at` have other ids in the copy.
  std::vector<ValueId> begin_with(const Node& at, std::span<const ValueId> values);
  void require_values(std::span<const ValueId> values, const Node& at) const;

  std::shared_ptr<const Graph> source_;
  Rewriter rewriter_;
  std::uint32_t next_ = 0;  // index of the node whose turn it is
  bool finished_ = false;
};

}  // namespace tosaic
