// quantize-borders: floats at the border become the integers that they are quantized to.
//
//   input %x: f32        %p = pad(%x)  %q: i8 = quantize(%p)     ->  input %x: i8 border(source=f32 q(..)) %q
//   = pad(%x) output %y: f32 = dequantize(%i: i8)                          ->  output %i: i8
//   border(source=f32 q(..))
//
// The caller's arrays are quantized and dequantized when the program runs, with the same result. An input may
// be moved before it is quantized: quantizing commutes with that. Inputs that are quantized in two ways, or
// read as floats too, stay what they are, and so do state and scales by channel. An input that the program
// writes and its new value are both integers of one dtype, or both floats: the value is written where the
// input was. Where the caller's arrays are integers, both must have the same parameters.

#include <algorithm>
#include <deque>

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
    if (options_.inputs != FloatBorder::kFloat)
      for (const Input& input : graph_.inputs())
        if (input.kind == InputKind::kUser && graph_.type(input.value).dtype == DType::kF32)
          mark(input.value, common(input.value));
    dequantized_.reserve(graph_.outputs().size());
    for (const Output& output : graph_.outputs()) dequantized_.push_back(integers_of(output));
    const auto found = [](const auto* each) { return each != nullptr; };
    const bool any = std::any_of(quantization_.begin(), quantization_.end(), found) ||
                     std::any_of(dequantized_.begin(), dequantized_.end(), found);
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

  // `attrs`: null for floats.
  void mark(ValueId id, Attrs attrs) {
    quantization_[id.index()] = attrs;
    for (const NodeId user : graph_.users(id)) {
      const Node& node = graph_.node(user);
      if (node.op != Op::kQuantize && moves_one(graph_, node)) mark(graph_.result(node), attrs);
    }
  }

  // The form that was asked for.
  [[nodiscard]] FloatBorder form(const Output& output) const {
    if (output.kind == OutputKind::kUser) return options_.outputs;
    const bool is_user = graph_.inputs()[output.mutated_input].kind == InputKind::kUser;
    return is_user ? options_.inputs : FloatBorder::kFloat;
  }

  // The node whose integers are the output; null where it stays a float.
  [[nodiscard]] const Node* integers_of(const Output& output) {
    if (form(output) == FloatBorder::kFloat) return nullptr;
    const Node* node = graph_.producer(output.value);
    if (node != nullptr && node->op == Op::kDequantize) {
      const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
      if (attrs.axis || attrs.dtype != DType::kF32) node = nullptr;
    } else {
      node = nullptr;
    }
    return output.kind == OutputKind::kUser || agrees(output, node) ? node : nullptr;
  }

  // An input that the program writes and its new value are both integers, or both floats.
  [[nodiscard]] bool agrees(const Output& output, const Node* node) {
    const ValueId input = graph_.inputs()[output.mutated_input].value;
    if (node == nullptr) {
      mark(input, nullptr);
      return false;
    }
    const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
    const DType dtype = graph_.type(graph_.operands(*node)[0]).dtype;
    if (graph_.users(input).empty() && !graph_.is_output(input)) {  // written, but never read
      written_.push_back({dtype, attrs.axis, attrs.qmin, attrs.qmax, attrs.scales, attrs.zero_points});
      mark(input, &written_.back());
    }
    const Attrs wanted = quantization_[input.index()];
    const bool agree =
        wanted != nullptr && wanted->dtype == dtype &&
        (form(output) == FloatBorder::kConverted || *qparams_of(*wanted, dtype) == *qparams_of(attrs, dtype));
    if (!agree) mark(input, nullptr);
    return agree;
  }

  Graph make() {
    out_.name = graph_.name;
    out_.stage = graph_.stage;
    made_.resize(graph_.values().size());
    for (const Input& input : graph_.inputs()) add_input(input);
    for (const Node& node : graph_.nodes()) add(node);
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
      Output output = graph_.outputs()[i];
      if (const Node* node = dequantized_[i]) {
        if (form(output) == FloatBorder::kConverted) output.border.source_dtype = DType::kF32;
        output.value = graph_.operands(*node)[0];
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
  std::vector<Attrs> quantization_;       // by float value: how it is quantized
  std::vector<const Node*> dequantized_;  // by output: the node whose integers it becomes
  std::deque<QuantizeAttrs> written_;     // of inputs that are not read
  std::vector<ValueId> made_;
};

}  // namespace

std::optional<Graph> quantize_borders(const Graph& graph, const PassOptions& options) {
  return graph.stage == Stage::kInteger ? Borders(graph, options).run() : std::nullopt;
}

}  // namespace tosaic::passes
