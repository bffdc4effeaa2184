// quantize-boundary: replaces float inputs of the graph by the integers to which they are quantized, and
// float outputs by the integers from which they are dequantized.
//
//   input %x: f32                   ->  input %x: i8 boundary(source=f32 q(..))
//   %p = pad(%x)                        %q = pad(%x)
//   %q: i8 = quantize(%p)
//
//   %y: f32 = dequantize(%i: i8)    ->  output %i: i8 boundary(source=f32 q(..))
//   output %y
//
// With FloatIoForm::kConverted, a run quantizes and dequantizes the caller's arrays, so its results are the
// same. With kInteger, the caller's arrays are integers too.
//
// An input may be moved before it is quantized, since movements commute with quantization. An input that is
// quantized in several ways becomes several inputs, next to each other and with the same path. A run makes
// all of them from the caller's one array.
//
//   input %x: f32 path="x"     ->  input %x: i8 path="x" boundary(source=f32 q(..))
//   %a: i8 = quantize(%x)          input %x_1: i16 path="x" boundary(source=f32 q(..))
//   %b: i16 = quantize(%x)
//
// Some inputs stay floats: inputs that are also read as floats, inputs that are quantized by channel and, with
// kInteger, inputs that are quantized in several ways.
//
// State, such as the keys and values that an attention layer has seen, becomes integers if the qparams with
// which the program reads it are those of its new value. So its initial value is quantized here, and a run
// stores the integers. The caller does not see them, so the forms that the options ask for do not matter.
//
//   state %k: f32 initial=[..]      ->  state %k: i8 initial=[..]
//   %q: i8 = quantize(%k)               %n: i8 = index_put(%k, ..)
//   %n: i8 = index_put(%q, ..)          output %n updates %k
//   %f: f32 = dequantize(%n)
//   output %f updates %k
//
// On a target without floats, an input that nobody reads becomes i8 of scale 1, so that the file has an input
// for each of the caller's arrays.
//
// An input that the program writes and its new value must both be integers of one dtype, or both floats,
// because the new value is stored to the input. With kInteger, both must have the same qparams.

#include <algorithm>
#include <deque>

#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/copy_node.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

bool moves_one(const Graph& graph, const Node& node) {
  return moves(node) && node.operand_count == 1 && node.result_count == 1 &&
         graph.type(graph.operands(node)[0]).dtype == DType::kF32;
}

class Boundaries {
 public:
  Boundaries(const Graph& graph, const PassOptions& options) : graph_(graph), options_(options) {}

  std::optional<Graph> run() {
    quantizations_.resize(graph_.values().size());
    if (options_.inputs != FloatIoForm::kFloat)
      for (const Input& input : graph_.inputs())
        if (input.kind == InputKind::kUser) find_quantizations_of_input(input.value);
    for (const Input& input : graph_.inputs())
      if (is_updated_state(input)) find_quantizations_of_state(input.value);
    for (const Output& output : graph_.outputs()) dequantized_.push_back(integers_of(output));
    const bool any = std::any_of(quantizations_.begin(), quantizations_.end(),
                                 [](const Quantizations& all) { return !all.empty(); }) ||
                     std::any_of(dequantized_.begin(), dequantized_.end(),
                                 [](const Node* node) { return node != nullptr; });
    return any ? std::optional(make()) : std::nullopt;
  }

 private:
  using Attrs = const QuantizeAttrs*;

  using Quantizations = std::vector<Attrs>;

  static void add_distinct(Quantizations& all, Attrs quantization) {
    if (std::none_of(all.begin(), all.end(), [&](Attrs known) { return *known == *quantization; }))
      all.push_back(quantization);
  }

  // The different qparams with which the readers of a float quantize it, possibly after movements. Empty if
  // the float is an output, or if a reader does not quantize it or quantizes it by channel.
  [[nodiscard]] Quantizations quantizations_by_readers(ValueId id) const {
    Quantizations found;
    if (graph_.is_output(id)) return found;
    for (const NodeId user : graph_.users(id)) {
      const Node& node = graph_.node(user);
      if (node.op == Op::kQuantize && !Graph::attrs<QuantizeAttrs>(node).axis) {
        add_distinct(found, &Graph::attrs<QuantizeAttrs>(node));
        continue;
      }
      const Quantizations behind =
          moves_one(graph_, node) ? quantizations_by_readers(graph_.result(node)) : Quantizations{};
      if (behind.empty()) return {};
      for (Attrs quantization : behind) add_distinct(found, quantization);
    }
    return found;
  }

  [[nodiscard]] bool is_unread(ValueId id) const { return graph_.users(id).empty() && !graph_.is_output(id); }

  void find_quantizations_of_input(ValueId id) {
    const DType dtype = graph_.type(id).dtype;
    if (!options_.target.has(target::Profile::kFp) && is_float(dtype) && is_unread(id))
      quantizations_[id.index()] = {&unread_};
    else if (dtype == DType::kF32)
      find_quantizations(id);
  }

  // True for a state of f32 that the program updates, and whose initial value is known.
  [[nodiscard]] bool is_updated_state(const Input& input) const {
    if (input.kind != InputKind::kState || graph_.type(input.value).dtype != DType::kF32) return false;
    if (!input.initial || !input.initial->storage.bound()) return false;
    return std::ranges::any_of(graph_.outputs(), [&](const Output& output) {
      return output.kind == OutputKind::kMutation && &graph_.inputs()[output.mutated_input] == &input;
    });
  }

  // agrees() then compares the quantization with that of the new value.
  void find_quantizations_of_state(ValueId id) {
    if (quantizations_by_readers(id).size() == 1) mark(id);
  }

  void find_quantizations(ValueId id) {
    const Quantizations all = quantizations_by_readers(id);
    if (all.size() == 1 || (all.size() > 1 && options_.inputs == FloatIoForm::kConverted)) mark(id);
  }

  // Records the quantizations of the value, and of all values that movements make of it.
  void mark(ValueId id) {
    quantizations_[id.index()] = quantizations_by_readers(id);
    for (const NodeId user : graph_.users(id))
      if (graph_.node(user).op != Op::kQuantize) mark(graph_.result(graph_.node(user)));
  }

  // Records that the value, and all values that movements make of it, stay floats.
  void unmark(ValueId id) {
    if (quantizations_[id.index()].empty()) return;
    quantizations_[id.index()].clear();
    for (const NodeId user : graph_.users(id))
      if (graph_.node(user).op != Op::kQuantize) unmark(graph_.result(graph_.node(user)));
  }

  // The form that the options ask for. State that becomes integers is stored as integers.
  [[nodiscard]] FloatIoForm form(const Output& output) const {
    if (output.kind == OutputKind::kUser) return options_.outputs;
    const Input& input = graph_.inputs()[output.mutated_input];
    if (input.kind == InputKind::kUser) return options_.inputs;
    return quantizations_[input.value.index()].empty() ? FloatIoForm::kFloat : FloatIoForm::kInteger;
  }

  // The dequantize node whose operand becomes the output; null if the output stays a float.
  [[nodiscard]] const Node* integers_of(const Output& output) {
    if (form(output) == FloatIoForm::kFloat) return nullptr;
    const Node* node = graph_.producer(output.value);
    if (node != nullptr && node->op == Op::kDequantize) {
      const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
      if (attrs.axis || attrs.dtype != DType::kF32) node = nullptr;
    } else {
      node = nullptr;
    }
    return output.kind == OutputKind::kUser || agrees(output, node) ? node : nullptr;
  }

  // For an output whose value is stored to an input: true if both can be the same integers. If they cannot,
  // both stay floats. `node` is the dequantize node of the output, or null.
  [[nodiscard]] bool agrees(const Output& output, const Node* node) {
    const ValueId input = graph_.inputs()[output.mutated_input].value;
    if (node == nullptr) {
      unmark(input);
      return false;
    }
    const auto& attrs = Graph::attrs<DequantizeAttrs>(*node);
    const DType dtype = graph_.type(graph_.operands(*node)[0]).dtype;
    if (is_unread(input)) {  // the program writes the input but never reads it
      written_.push_back(
          {dtype, attrs.axis, attrs.qmin, attrs.qmax, attrs.scales, attrs.zero_points, attrs.groups});
      quantizations_[input.index()] = {&written_.back()};
    }
    const Quantizations& all = quantizations_[input.index()];
    const bool agree = all.size() == 1 && all.front()->dtype == dtype &&
                       (form(output) == FloatIoForm::kConverted ||
                        *qparams_of(*all.front(), dtype) == *qparams_of(attrs, dtype));
    if (!agree) unmark(input);
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
        if (form(output) == FloatIoForm::kConverted) output.boundary.source_dtype = DType::kF32;
        output.value = graph_.operands(*node)[0];
        output.boundary.qparams =
            qparams_of(Graph::attrs<DequantizeAttrs>(*node), graph_.type(output.value).dtype);
      }
      output.value = made(output.value);
      if (output.kind == OutputKind::kMutation) output.mutated_input = input_at_[output.mutated_input];
      out_.add_output(std::move(output));
    }
    std::optional<Graph> clean = dead_code(out_);
    return clean ? std::move(*clean) : std::move(out_);
  }

  [[nodiscard]] static ConstantRef quantized_constant(const Constant& floats, const QuantizeAttrs& attrs) {
    const Elements elements(floats);
    const float inverse = inverse_scale(attrs.scales.front());
    std::vector<double> integers(elements.size());
    for (std::size_t i = 0; i < integers.size(); ++i) {
      const float number =
          quantize_unbounded(static_cast<float>(elements.as_double(i)), inverse, attrs.zero_points.front());
      integers[i] = static_cast<double>(bound_quantized(number, attrs.qmin, attrs.qmax));
    }
    auto out = std::make_shared<Constant>(*make_constant(floats.name, attrs.dtype, floats.shape, integers));
    out->kind = floats.kind;
    return out;
  }

  void add_input(const Input& input) {
    input_at_.push_back(static_cast<std::uint32_t>(out_.inputs().size()));
    const Value& value = graph_.value(input.value);
    const Quantizations& all = quantizations_[input.value.index()];
    if (all.empty())
      made_[input.value.index()] =
          out_.add_input(input.kind, value.name, value.type, input.path, input.boundary, input.initial);
    const std::string& path = input.path.empty() && all.size() > 1 ? value.name : input.path;
    for (Attrs quantization : all) {
      TensorType type = value.type;
      BoundaryFormat boundary = input.boundary;
      boundary.qparams = qparams_of(*quantization, quantization->dtype);
      const bool is_state = input.kind == InputKind::kState;
      if (options_.inputs == FloatIoForm::kConverted && !is_state) boundary.source_dtype = type.dtype;
      type.dtype = quantization->dtype;
      if (graph_.stage == Stage::kInteger) type.qparams = boundary.qparams;
      quantized_.push_back(
          {input.value, quantization,
           out_.add_input(input.kind, value.name, type, path, boundary,
                          is_state ? quantized_constant(*input.initial, *quantization) : input.initial)});
    }
  }

  // The value, quantized by `quantization`, in the new graph.
  [[nodiscard]] ValueId quantized(ValueId id, Attrs quantization) const {
    const auto found = std::find_if(quantized_.begin(), quantized_.end(), [&](const Quantized& known) {
      return known.from == id && *known.quantization == *quantization;
    });
    return found->made;
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
    const ValueId from = node.operand_count == 1 ? graph_.operands(node)[0] : ValueId();
    const bool of_input = from.valid() && !quantizations_[from.index()].empty();
    if (of_input && node.op == Op::kQuantize) {
      made_[node.first_result] = quantized(from, &Graph::attrs<QuantizeAttrs>(node));
      return;
    }
    if (of_input) return move(node, from);
    copy_node(graph_, node, out_, made_, [this](ValueId id) { return made(id); });
  }

  // A movement of a float becomes one movement for each quantization of its result.
  void move(const Node& node, ValueId from) {
    const ValueId result = graph_.result(node);
    for (Attrs quantization : quantizations_[result.index()]) {
      tosaic::Attrs attrs = *node.attrs;
      if (auto* pad = get_if<PadAttrs>(&attrs)) pad->value = quantization->zero_points.front();
      const ValueId operands[] = {quantized(from, quantization)};
      const ValueId id = out_.add(node.op, std::move(attrs), operands, node.origin, graph_.node_name(node));
      out_.set_qparams(id, qparams_of(*quantization, quantization->dtype));
      quantized_.push_back({result, quantization, id});
    }
  }

  struct Quantized {
    ValueId from;  // a float of the old graph
    Attrs quantization;
    ValueId made;  // its integers in the new graph
  };

  const Graph& graph_;
  const PassOptions& options_;
  Graph out_;
  // By value: the quantizations of an input, or of a value moved from one; empty if it stays a float.
  std::vector<Quantizations> quantizations_;
  std::vector<Quantized> quantized_;
  std::vector<const Node*> dequantized_;  // by output: see integers_of()
  std::deque<QuantizeAttrs> written_;     // for inputs that are written, but not read
  const QuantizeAttrs unread_{DType::kI8, std::nullopt, -128,
                              127,        {1.0},        {0}};  // for inputs that nobody reads
  std::vector<ValueId> made_;            // by value: its value in the new graph, if `quantizations_` is empty
  std::vector<std::uint32_t> input_at_;  // by input: the index of its first input in the new graph
};

}  // namespace

std::optional<Graph> quantize_boundary(const Graph& graph, const PassOptions& options) {
  const bool has_integers = graph.stage == Stage::kInteger;
  const bool has_only_integers = graph.stage == Stage::kExported && !options.target.has(target::Profile::kFp);
  return has_integers || has_only_integers ? Boundaries(graph, options).run() : std::nullopt;
}

}  // namespace tosaic::passes
