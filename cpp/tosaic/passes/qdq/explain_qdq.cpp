#include "tosaic/passes/qdq/qdq.h"

#include <algorithm>
#include <string>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/qdq/io_quantization.h"

namespace tosaic::passes {
namespace {

class Explanation {
 public:
  explicit Explanation(const Graph& graph) : graph_(graph) {}

  std::vector<ErrorParts> run() && {
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::kDequantize)
        integers(node);
      else if (touches_quantized(node))
        floats(node);
    }
    return std::move(reasons_);
  }

 private:
  void add(const Node& node, std::string what, std::string hint = {}) {
    ErrorParts parts{.where = "fold-qdq", .what = std::move(what), .hint = std::move(hint)};
    reasons_.push_back(located(std::move(parts), node.origin, graph_.node_name(node)));
  }

  [[nodiscard]] const Node* producer(ValueId id) const { return id.valid() ? graph_.producer(id) : nullptr; }
  [[nodiscard]] bool is_made_by(ValueId id, Op op) const {
    const Node* node = producer(id);
    return node != nullptr && node->op == op;
  }
  [[nodiscard]] bool is_quantized(const NodeId user) const { return graph_.node(user).op == Op::kQuantize; }

  // True for a cast between f32 and f16 or bf16 next to a quantized input or a dequantized output.
  [[nodiscard]] bool is_at_boundary(const Node& node) const {
    if (node.op != Op::kCast) return false;
    const ValueId from = graph_.operands(node)[0], to = graph_.result(node);
    if (widens(graph_, node)) return quantization_by_readers(graph_, to).obstacle.empty();
    return is_made_by(from, Op::kDequantize) && graph_.users(to).empty();
  }

  // True if the node reads a dequantized value, or computes a value that is quantized. Quantize nodes do not
  // count.
  [[nodiscard]] bool touches_quantized(const Node& node) const {
    if (node.op == Op::kQuantize || is_at_boundary(node)) return false;
    for (const ValueId id : graph_.operands(node))
      if (is_made_by(id, Op::kDequantize)) return true;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const std::span<const NodeId> users = graph_.users(graph_.result(node, r));
      if (std::any_of(users.begin(), users.end(), [this](NodeId user) { return is_quantized(user); }))
        return true;
    }
    return false;
  }

  void integers(const Node& node) {
    const ValueId from = graph_.operands(node)[0];
    const QParamsRef& known = graph_.type(from).qparams;
    if (known && same_grid(*known, Graph::attrs<DequantizeAttrs>(node))) return;
    const std::span<const NodeId> users = graph_.users(from);
    for (const NodeId user : users)
      if (graph_.node(user).op != Op::kDequantize) {
        add(node, "its integers are counted with by node '" + graph_.node_name(graph_.node(user)) + "'");
        return;
      }
    add(node, "its integers were quantized with other parameters than it reads them with",
        "Quantize and dequantize with one scale and zero point");
  }

  [[nodiscard]] std::string text_of(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.kind == ValueKind::kInput ? "input '" + value.name + "'" : "node '" + value.name + "'";
  }

  void floats(const Node& node) {
    if (is_foreign(node.op) && !has_integer_kernel(node))
      return add(node, "a foreign operator has no integer form",
                 "Describe it with a kernel over integers: tosaic.ports.ForeignOp(.., quantized=..)");
    if (!node.regions.empty()) return add(node, "control flow has no integer form");
    for (std::uint32_t i = 0; i < node.operand_count; ++i) operand(node, i);
    for (std::uint32_t r = 0; r < node.result_count; ++r) result(node, r);
  }

  void operand(const Node& node, std::uint32_t i) {
    const ValueId id = graph_.operands(node)[i];
    if (!id.valid() || !is_float(graph_.type(id).dtype)) return;
    const DType dtype = graph_.type(id).dtype;
    const bool is_dequantized =
        is_made_by(id, Op::kDequantize) ||
        (is_made_by(id, Op::kCast) && is_made_by(graph_.operands(*producer(id))[0], Op::kDequantize));
    const std::string name = "operand '" + std::string(info(node.op).operand_name(i)) + "'";
    if (!has_integer_form(dtype))
      add(node,
          name + " is " + std::string(to_string(dtype)) + ", and integers stand for f32, f16 and bf16 alone");
    else if (graph_.value(id).kind != ValueKind::kConstant && !is_dequantized)
      add(node, name + " was never quantized: it is a float of " + text_of(id), "Annotate that edge");
  }

  void result(const Node& node, std::uint32_t r) {
    const ValueId id = graph_.result(node, r);
    const DType dtype = graph_.type(id).dtype;
    if (!is_float(dtype)) return;
    if (!has_integer_form(dtype)) {
      add(node, "its result is " + std::string(to_string(dtype)) +
                    ", and integers stand for f32, f16 and bf16 alone");
      return;
    }
    const std::span<const NodeId> users = graph_.users(id);
    const auto reader =
        std::find_if(users.begin(), users.end(), [this](NodeId user) { return !is_quantized(user); });
    if (reader != users.end())
      add(node, "its result is read as a float by node '" + graph_.node_name(graph_.node(*reader)) + "'");
    if (graph_.is_output(id)) add(node, "its result is an output of the graph, as a float");
  }

  const Graph& graph_;
  std::vector<ErrorParts> reasons_;
};

}  // namespace

std::vector<ErrorParts> explain_qdq(const Graph& quantized) { return Explanation(quantized).run(); }

}  // namespace tosaic::passes
