// widen-halves: computes in f32 what a program of f16 or bf16 computes between dequantize and quantize nodes.
//
//   %q: i8  = quantize(%x: f16)             %x.wide: f32 = cast(%x: f16)
//                                           %q: i8  = quantize(%x.wide)
//   %a: f16 = dequantize(%q)          ->    %a: f32 = dequantize(%q)
//   %c: f16 = conv(%a, %w, %bias)           %c: f32 = conv(%a, %w.wide, %bias.wide)
//   %r: i8  = quantize(%c)                  %r: i8  = quantize(%c)
//   %y: f16 = dequantize(%r)                %y.wide: f32 = dequantize(%r)
//                                           %y: f16 = cast(%y.wide)
//
// A target with profile FP computes with f16 and bf16 as torch does; for it, nothing is widened.
//
// Every f16 and bf16 is an f32, so quantizing and dequantizing give the same numbers as before. Operators
// between them no longer round their floats to 11 or 8 bits before the result is quantized.
//
// A node is *widened* if all its float operands of 16 bits are dequantized, constants or results of widened
// nodes, one of them is not a constant, and only quantize nodes and widened nodes read its results. A cast of
// f32 is widened, too, if only such nodes read it. Nodes with regions or effects and foreign operators are
// never widened. Other nodes read a cast of the widened value. Casts from f32 to f32 are left out.

#include <algorithm>
#include <utility>
#include <vector>

#include "tosaic/base/error.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/infer.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/copy_node.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/qdq/io_quantization.h"

namespace tosaic::passes {
namespace {

TensorType widened(TensorType type) {
  if (is_half(type.dtype)) type.dtype = DType::kF32;
  return type;
}

Attrs widened(const Attrs& attrs) {
  Attrs out = attrs;
  if (auto* cast = get_if<CastAttrs>(&out); cast != nullptr && is_half(cast->dtype))
    cast->dtype = DType::kF32;
  return out;
}

class Widening {
 public:
  explicit Widening(const Graph& graph)
      : graph_(graph),
        widens_(graph.nodes().size(), false),
        made_(graph.values().size()),
        wide_(graph.values().size()) {}

  std::optional<Graph> run() {
    if (std::ranges::none_of(graph_.nodes(), [this](const Node& node) { return converts(node); }))
      return std::nullopt;
    find_candidates();
    drop_what_others_read();
    return make();
  }

 private:
  [[nodiscard]] bool is_half(ValueId id) const {
    return id.valid() && passes::is_half(graph_.type(id).dtype);
  }
  [[nodiscard]] bool is_constant(ValueId id) const { return graph_.value(id).kind == ValueKind::kConstant; }
  [[nodiscard]] std::size_t index_of(const Node& node) const {
    return static_cast<std::size_t>(&node - graph_.nodes().data());
  }
  [[nodiscard]] bool quantizes(const Node& node) const {
    return node.op == Op::kQuantize && is_half(graph_.operands(node)[0]);
  }
  [[nodiscard]] bool dequantizes(const Node& node) const {
    return node.op == Op::kDequantize && is_half(graph_.result(node));
  }
  [[nodiscard]] bool converts(const Node& node) const { return quantizes(node) || dequantizes(node); }

  // True if the value will exist as an f32: it is dequantized, or the result of a node that is widened.
  [[nodiscard]] bool is_widened(ValueId id) const {
    const Node* producer = graph_.producer(id);
    return producer != nullptr && (dequantizes(*producer) || widens_[index_of(*producer)]);
  }

  // True if the operands meet the condition for a widened node.
  [[nodiscard]] bool reads_widened(const Node& node) const {
    bool any = narrows(graph_, node);  // a cast of f32 rounds nothing if it is widened
    for (const ValueId id : graph_.operands(node)) {
      if (!is_half(id) || is_constant(id)) continue;
      if (!is_widened(id)) return false;
      any = true;
    }
    return any;
  }

  // True if the operator is valid with f32 in place of f16 and bf16, in its operands and in its results.
  [[nodiscard]] bool has_wide_form(const Node& node) const {
    std::vector<TensorType> types;
    for (const ValueId id : graph_.operands(node))
      types.push_back(id.valid() ? widened(graph_.type(id)) : TensorType{});
    std::vector<const TensorType*> operands;
    for (std::size_t i = 0; i < types.size(); ++i)
      operands.push_back(graph_.operands(node)[i].valid() ? &types[i] : nullptr);
    std::vector<TensorType> made;
    try {
      made = infer(node.op, widened(*node.attrs), operands);
    } catch (const Error&) {
      return false;
    }
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const TensorType wanted = widened(graph_.type(graph_.result(node, r)));
      if (made[r].dtype != wanted.dtype || made[r].shape != wanted.shape) return false;
    }
    return true;
  }

  void find_candidates() {
    for (const Node& node : graph_.nodes()) {
      if (converts(node) || is_foreign(node.op) || !node.regions.empty() || info(node.op).has(kEffect))
        continue;
      widens_[index_of(node)] = has_inference(node.op) && reads_widened(node) && has_wide_form(node);
    }
  }

  [[nodiscard]] bool is_read_elsewhere(ValueId id) const {
    if (graph_.is_output(id)) return true;
    return std::ranges::any_of(graph_.users(id), [this](NodeId user) {
      return !quantizes(graph_.node(user)) && !widens_[user.index()];
    });
  }

  // Drops candidates that read a float of 16 bits that is not widened, or whose results of 16 bits other
  // nodes read, until none is left. When a node is dropped, its neighbours are checked again.
  void drop_what_others_read() {
    std::vector<NodeId> queue;
    for (std::size_t n = graph_.nodes().size(); n-- > 0;)
      if (widens_[n]) queue.emplace_back(static_cast<std::uint32_t>(n));
    std::reverse(queue.begin(), queue.end());  // popped from the back: the last node first
    while (!queue.empty()) {
      const NodeId id = queue.back();
      queue.pop_back();
      if (!widens_[id.index()] || may_stay(graph_.node(id))) continue;
      widens_[id.index()] = false;
      const Node& dropped = graph_.node(id);
      for (const ValueId operand : graph_.operands(dropped))
        if (const Node* producer = operand.valid() ? graph_.producer(operand) : nullptr)
          queue.emplace_back(static_cast<std::uint32_t>(index_of(*producer)));
      for (std::uint32_t r = 0; r < dropped.result_count; ++r)
        for (const NodeId user : graph_.users(graph_.result(dropped, r))) queue.push_back(user);
    }
  }

  [[nodiscard]] bool may_stay(const Node& node) const {
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph_.result(node, r);
      if (is_half(result) && is_read_elsewhere(result)) return false;
    }
    return reads_widened(node);
  }

  // ---- the new graph ----

  Graph make() {
    out_.name = graph_.name;
    out_.stage = graph_.stage;
    copy_inputs(graph_, out_, made_);
    for (const Node& node : graph_.nodes()) make(node);
    for (Output output : graph_.outputs()) {
      output.value = same(output.value);
      out_.add_output(std::move(output));
    }
    return std::move(out_);
  }

  void make(const Node& node) {
    if (dequantizes(node)) {
      DequantizeAttrs attrs = Graph::attrs<DequantizeAttrs>(node);
      attrs.dtype = DType::kF32;
      const ValueId operands[] = {same(graph_.operands(node)[0])};
      wide_[node.first_result] =
          out_.add(Op::kDequantize, std::move(attrs), operands, node.origin, graph_.node_name(node));
    } else if (quantizes(node)) {
      const ValueId operands[] = {wide(graph_.operands(node)[0], node)};
      made_[node.first_result] =
          out_.add(Op::kQuantize, *node.attrs, operands, node.origin, graph_.node_name(node));
    } else if (widens_[index_of(node)]) {
      make_wide(node);
    } else {
      copy_node(graph_, node, out_, made_, [this](ValueId id) { return same(id); });
    }
  }

  void make_wide(const Node& node) {
    std::vector<ValueId> operands;
    for (const ValueId id : graph_.operands(node))
      operands.push_back(is_half(id) ? wide(id, node) : same(id));
    const ValueId result = graph_.result(node);
    if (node.op == Op::kCast && out_.type(operands[0]).dtype == DType::kF32 &&
        widened(graph_.type(result)).dtype == DType::kF32) {
      (is_half(result) ? wide_ : made_)[result.index()] = operands[0];
      return;
    }
    std::vector<TensorType> types;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      types.push_back(widened(graph_.type(graph_.result(node, r))));
    const NodeId made = out_.add_node(node.op, std::make_shared<const Attrs>(widened(*node.attrs)), operands,
                                      types, node.origin, graph_.node_name(node));
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      (is_half(graph_.result(node, r)) ? wide_ : made_)[node.first_result + r] =
          out_.result(out_.node(made), r);
  }

  // The value with its own dtype.
  ValueId same(ValueId id) {
    if (!id.valid()) return id;
    ValueId& made = made_[id.index()];
    if (made.valid()) return made;
    if (is_constant(id)) {
      made = out_.add_constant(graph_.value(id).constant);
      out_.set_qparams(made, graph_.type(id).qparams);
      return made;
    }
    const ValueId operands[] = {wide_[id.index()]};
    return made = out_.add(Op::kCast, CastAttrs{graph_.type(id).dtype}, operands, graph_.producer(id)->origin,
                           graph_.value(id).name + ".half");
  }

  // The value as f32, for this reader.
  ValueId wide(ValueId id, const Node& reader) {
    ValueId& made = wide_[id.index()];
    if (made.valid()) return made;
    const ValueId operands[] = {same(id)};
    const Node* producer = graph_.producer(id);
    return made = out_.add(Op::kCast, CastAttrs{DType::kF32}, operands,
                           producer != nullptr ? producer->origin : reader.origin,
                           graph_.value(id).name + ".wide");
  }

  const Graph& graph_;
  Graph out_;
  std::vector<bool> widens_;   // by node
  std::vector<ValueId> made_;  // by old value: the new value of the same dtype
  std::vector<ValueId> wide_;  // by old value: the new value as f32
};

}  // namespace

std::optional<Graph> widen_halves(const Graph& graph, const PassOptions& options) {
  if (options.target.has(target::Profile::kFp)) return std::nullopt;
  return Widening(graph).run();
}

}  // namespace tosaic::passes
