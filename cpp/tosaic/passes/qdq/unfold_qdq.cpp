// unfold-qdq: does the inverse of fold-qdq, so that float kernels can run a quantized graph.
//
//   %c: i8 q(..) = conv(%x: i8 q(..), %w: i8 q(..), %b)   ->   %c = quantize(conv(dequantize(%x),
//                                                                            dequantize(%w), %b))
//
// An operator that only rearranges elements between values of equal parameters runs on the integers. A value
// is dequantized at most once.

#include <vector>

#include "tosaic/ir/infer.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/copy_node.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

using Filter = std::function<bool(const Graph&, const Node&)>;

class Unfolding {
 public:
  Unfolding(const Graph& graph, const Filter& stays)
      : graph_(graph), stays_(stays), made_(graph.values().size()), numbers_(graph.values().size()) {}

  Graph run() {
    out_.name = graph_.name;
    out_.stage = Stage::kExported;
    copy_inputs(graph_, out_, made_);
    for (const Node& node : graph_.nodes()) make(node);
    for (Output output : graph_.outputs()) {
      output.value = integers(output.value);
      out_.add_output(std::move(output));
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] const QParamsRef& label(ValueId id) const { return graph_.type(id).qparams; }

  // The value as it is stored: integers if it has qparams.
  ValueId integers(ValueId id) {
    if (!id.valid()) return id;
    ValueId& made = made_[id.index()];
    if (!made.valid()) {
      made = out_.add_constant(graph_.value(id).constant);
      out_.set_qparams(made, label(id));
    }
    return made;
  }

  // The value as a float: dequantized if it has qparams.
  ValueId number(ValueId id, const Node& user) {
    const ValueId stored = integers(id);
    if (!id.valid() || !label(id)) return stored;
    ValueId& made = numbers_[id.index()];
    if (made.valid()) return made;
    const auto attrs = attrs_of_qparams<DequantizeAttrs>(DType::kF32, *label(id));
    const Node* producer = graph_.producer(id);
    return made = out_.add(Op::kDequantize, attrs, std::span(&stored, 1),
                           producer != nullptr ? producer->origin : user.origin,
                           graph_.value(id).name + "_number");
  }

  void make(const Node& node) {
    if (!computes_dequantized(graph_, node) || runs_on_integers(graph_, node) ||
        (stays_ && stays_(graph_, node))) {
      copy(node);
      return;
    }
    std::vector<ValueId> operands;
    for (const ValueId id : graph_.operands(node)) operands.push_back(number(id, node));
    std::vector<TensorType> types;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      TensorType type = graph_.type(graph_.result(node, r));
      type.dtype = dtype_seen_by(graph_, node.op, type);
      type.qparams = nullptr;
      types.push_back(std::move(type));
    }
    const bool rounds = label(graph_.result(node)) != nullptr;
    const std::string name = graph_.node_name(node) + (rounds ? "_unrounded" : "");
    const NodeId made = out_.add_node(node.op, node.attrs, operands, types, node.origin, name, node.regions);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      made_[node.first_result + r] = rounded(node, r, out_.result(out_.node(made), r));
  }

  ValueId rounded(const Node& node, std::uint32_t r, ValueId number) {
    const ValueId result = graph_.result(node, r);
    if (!label(result)) return number;
    const auto attrs = attrs_of_qparams<QuantizeAttrs>(label(result)->storage, *label(result));
    const ValueId made =
        out_.add(Op::kQuantize, attrs, std::span(&number, 1), node.origin, graph_.value(result).name);
    out_.set_qparams(made, label(result));
    return made;
  }

  void copy(const Node& node) {
    copy_node(graph_, node, out_, made_, [this](ValueId id) { return integers(id); });
  }

  const Graph& graph_;
  const Filter& stays_;
  Graph out_;
  std::vector<ValueId> made_, numbers_;  // by old value: the new value as stored, and as a float
};

}  // namespace

std::optional<Graph> unfold_qdq(const Graph& graph, const Filter& stays) {
  return graph.stage == Stage::kQuantized ? std::optional(Unfolding(graph, stays).run()) : std::nullopt;
}

}  // namespace tosaic::passes
