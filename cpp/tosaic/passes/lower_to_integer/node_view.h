// NodeView: the node that is being lowered, as the source graph has it, with its operands, attributes, types,
// and the qparams to which its result is rounded. It is made once for each node and never changed.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "tosaic/ir/graph.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/lower_to_integer/scaled_integer.h"

namespace tosaic::passes {

class NodeView {
 public:
  NodeView(const Graph& graph, const Node& node) : graph_(&graph), node_(&node) {
    if (node.result_count == 1) result_qparams_ = signed_qparams(0);
  }

  [[nodiscard]] const Graph& graph() const { return *graph_; }
  [[nodiscard]] const Node& node() const { return *node_; }
  [[nodiscard]] Op op() const { return node_->op; }
  [[nodiscard]] const Attrs& attributes() const { return *node_->attrs; }
  template <class A>
  [[nodiscard]] const A& attrs() const {
    return Graph::attrs<A>(*node_);
  }

  [[nodiscard]] std::size_t operand_count() const { return node_->operand_count; }
  [[nodiscard]] ValueId operand(std::size_t i) const { return graph_->operands(*node_)[i]; }
  [[nodiscard]] bool has(std::size_t i) const { return i < operand_count() && operand(i).valid(); }
  [[nodiscard]] const TensorType& operand_type(std::size_t i) const { return graph_->type(operand(i)); }
  [[nodiscard]] bool is_constant(std::size_t i) const {
    return graph_->value(operand(i)).kind == ValueKind::kConstant;
  }
  // The float dtype in which the source graph computes with operand i: f32 if it is quantized.
  [[nodiscard]] DType number_dtype(std::size_t i) const {
    const DType dtype = operand_type(i).dtype;
    return has_integer_form(dtype) ? dtype : DType::kF32;
  }

  [[nodiscard]] ValueId result(std::size_t r = 0) const { return graph_->result(*node_, r); }
  [[nodiscard]] const TensorType& result_type(std::size_t r = 0) const { return graph_->type(result(r)); }
  // The qparams of result r in signed form. Returns nothing if the result has no qparams, or if its qparams
  // have no signed form.
  [[nodiscard]] std::optional<QParams> signed_qparams(std::size_t r) const {
    const QParamsRef& qparams = result_type(r).qparams;
    return qparams ? signed_form(*qparams) : std::nullopt;
  }
  // signed_qparams() of the only result; null if there are none. Where a rule is called, they are per tensor.
  [[nodiscard]] const QParams* result_qparams() const {
    return result_qparams_ ? &*result_qparams_ : nullptr;
  }
  // result_qparams(), or else the qparams (signed form) to which the only reader of the result quantizes it.
  // Numbers beyond their range saturate.
  [[nodiscard]] std::optional<QParams> eventual_qparams() const {
    if (result_qparams_) return result_qparams_;
    const std::span<const NodeId> users = graph_->users(result());
    if (users.size() != 1 || graph_->is_output(result())) return std::nullopt;
    const Node& reader = graph_->node(users.front());
    if (reader.op != Op::kQuantize) return std::nullopt;
    const std::optional<QParams> qparams = NodeView(*graph_, reader).result_qparams_;
    return qparams && !qparams->axis ? qparams : std::nullopt;
  }

  // eventual_qparams(), or the qparams after operators that move the numbers of the result, each the only
  // reader of the one before.
  [[nodiscard]] std::optional<QParams> qparams_behind_movement() const {
    if (const std::optional<QParams> eventual = eventual_qparams()) return eventual;
    const std::span<const NodeId> users = graph_->users(result());
    if (users.size() != 1 || graph_->is_output(result())) return std::nullopt;
    const Node& reader = graph_->node(users.front());
    if (!rearranges(reader) || reader.operand_count != 1 || reader.result_count != 1) return std::nullopt;
    return NodeView(*graph_, reader).qparams_behind_movement();
  }

  // Among all qparams to which the readers of the result quantize it, possibly after movement, the largest
  // number. Returns nothing if the result has readers that do not quantize it.
  [[nodiscard]] std::optional<double> largest_quantized() const {
    if (result_qparams_) return largest_number(*result_qparams_);
    return largest_quantized(result());
  }

 private:
  [[nodiscard]] std::optional<double> largest_quantized(ValueId id) const {
    const std::span<const NodeId> users = graph_->users(id);
    if (users.empty() || graph_->is_output(id)) return std::nullopt;
    double largest = 0;
    for (const NodeId user : users) {
      const Node& reader = graph_->node(user);
      std::optional<double> read;
      if (reader.op == Op::kQuantize) {
        const std::optional<QParams> qparams = NodeView(*graph_, reader).result_qparams_;
        if (qparams && !qparams->axis) read = largest_number(*qparams);
      } else if (info(reader.op).has(kMovement) && reader.result_count == 1) {
        read = largest_quantized(graph_->result(reader));
      }
      if (!read) return std::nullopt;
      largest = std::max(largest, *read);
    }
    return largest;
  }

  const Graph* graph_;
  const Node* node_;
  std::optional<QParams> result_qparams_;
};

}  // namespace tosaic::passes
