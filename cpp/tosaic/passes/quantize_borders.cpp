// quantize-borders: floats at the border become the integers that they are quantized to.
//
//   input %x: f32        %p = pad(%x)  %q: i8 = quantize(%p)     ->  input %x: i8 border(source=f32 q(..)) %q
//   = pad(%x) output %y: f32 = dequantize(%i: i8)                          ->  output %i: i8
//   border(source=f32 q(..))
//
// The caller's arrays are quantized and dequantized when the program runs, with the same result. An input may
// be moved before it is quantized: quantizing commutes with that. Inputs that are quantized in two ways, or
// read as floats too, stay what they are, and so do state and scales by channel.

#include <map>

#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

bool moves_one(const Graph& graph, const Node& node) {
  return moves(node) && node.operand_count == 1 && node.result_count == 1 &&
         graph.type(graph.operands(node)[0]).dtype == DType::kF32;
}

class Borders {
 public:
  Borders(const Graph& graph, const PassOptions& options) : graph_(graph), options_(options) {}

  std::optional<Graph> run() {
    quantization_.resize(graph_.values().size());
    bool any = false;
    if (options_.inputs != FloatBorder::kFloat)
      for (const Input& input : graph_.inputs())
        if (input.kind == InputKind::kUser && graph_.type(input.value).dtype == DType::kF32)
          any = spread(input.value) || any;
    if (options_.outputs != FloatBorder::kFloat)
      for (const Output& output : graph_.outputs()) any = any || dequantized(output) != nullptr;
    return any ? std::optional(make()) : std::nullopt;
  }

 private:
  using Attrs = const QuantizeAttrs*;

  // How all readers of a float quantize it, behind movements perhaps; null where they do not agree.
  [[nodiscard]] Attrs common(ValueId id) const {
    if (graph_.is_output(id) || graph_.users(id).empty()) return nullptr;
    Attrs found = nullptr;
    for (const NodeId user : graph_.users(id)) {
      const Node& node = graph_.node(user);
      Attrs wanted = nullptr;
      if (node.op == Op::kQuantize)
        wanted = &Graph::attrs<QuantizeAttrs>(node);
      else if (moves_one(graph_, node))
        wanted = common(graph_.result(node));
      if (wanted == nullptr || wanted->axis || (found != nullptr && !(*wanted == *found))) return nullptr;
      found = wanted;
    }
    return found;
  }

  bool spread(ValueId id) {
    const Attrs attrs = common(id);
    if (attrs != nullptr) mark(id, attrs);
    return attrs != nullptr;
  }

  void mark(ValueId id, Attrs attrs) {
    quantization_[id.index()] = attrs;
    for (const NodeId user : graph_.users(id))
      if (graph_.node(user).op != Op::kQuantize) mark(graph_.result(graph_.node(user)), attrs);
  }

  // The node whose integers are the output.
  [[nodiscard]] const Node* dequantized(const Output& output) const {
    const Node* node = graph_.producer(output.value);
    if (node == nullptr || node->op != Op::kDequantize || output.kind != OutputKind::kUser) return nullptr;
    const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
    return attrs.axis || attrs.dtype != DType::kF32 ? nullptr : node;
  }

  Graph make() {
    out_.name = graph_.name;
    out_.stage = graph_.stage;
    made_.resize(graph_.values().size());
    for (const Input& input : graph_.inputs()) add_input(input);
    for (const Node& node : graph_.nodes()) add(node);
    for (Output output : graph_.outputs()) {
      const Node* node = options_.outputs != FloatBorder::kFloat ? dequantized(output) : nullptr;
      if (node != nullptr) {
        output.value = graph_.operands(*node)[0];
        if (options_.outputs == FloatBorder::kConverted) output.border.source_dtype = DType::kF32;
        output.border.qparams =
            qparams_of(Graph::attrs<DequantizeAttrs>(*node), graph_.type(output.value).dtype);
      }
      output.value = made(output.value);
      out_.add_output(std::move(output));
    }
    std::optional<Graph> clean = dead_code(out_);
    return clean ? std::move(*clean) : std::move(out_);
  }

  void add_input(const Input& input) {
    TensorType type = graph_.type(input.value);
    Border border = input.border;
    if (const Attrs attrs = quantization_[input.value.index()]) {
      type.dtype = attrs->dtype;
      type.qparams = border.qparams = qparams_of(*attrs, attrs->dtype);
      if (options_.inputs == FloatBorder::kConverted) border.source_dtype = DType::kF32;
    }
    made_[input.value.index()] =
        out_.add_input(input.kind, graph_.value(input.value).name, type, input.path, border, input.initial);
  }

  [[nodiscard]] ValueId made(ValueId id) {
    if (!id.valid()) return id;
    ValueId& to = made_[id.index()];
    if (!to.valid()) {
      to = out_.add_constant(graph_.value(id).constant);
      out_.set_qparams(to, graph_.type(id).qparams);
    }
    return to;
  }

  void add(const Node& node) {
    std::vector<ValueId> operands;
    for (const ValueId id : graph_.operands(node)) operands.push_back(made(id));
    const Attrs moved = node.result_count == 1 ? quantization_[node.first_result] : nullptr;
    if (node.op == Op::kQuantize && quantization_[graph_.operands(node)[0].index()] != nullptr) {
      made_[node.first_result] = operands[0];
    } else if (moved != nullptr) {
      tosaic::Attrs attrs = *node.attrs;
      if (auto* pad = std::get_if<PadAttrs>(&attrs)) pad->value = moved->zero_points.front();
      const ValueId id = out_.add(node.op, std::move(attrs), operands, node.origin, graph_.node_name(node));
      out_.set_qparams(id, qparams_of(*moved, moved->dtype));
      made_[node.first_result] = id;
    } else {
      const NodeId id = out_.add_copy(graph_, node, operands);
      for (std::uint32_t r = 0; r < node.result_count; ++r)
        made_[node.first_result + r] = out_.result(out_.node(id), r);
    }
  }

  const Graph& graph_;
  const PassOptions& options_;
  Graph out_;
  std::vector<Attrs> quantization_;  // by float value: how it is quantized
  std::vector<ValueId> made_;
};

}  // namespace

std::optional<Graph> quantize_borders(const Graph& graph, const PassOptions& options) {
  return graph.stage == Stage::kInteger ? Borders(graph, options).run() : std::nullopt;
}

}  // namespace tosaic::passes
