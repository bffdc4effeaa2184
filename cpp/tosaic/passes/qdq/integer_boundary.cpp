#include "tosaic/passes/qdq/integer_boundary.h"

#include <algorithm>
#include <utility>

#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/copy_node.h"
#include "tosaic/passes/qdq/io_quantization.h"

namespace tosaic::passes {
namespace {

using Quantizations = std::vector<QuantizeAttrs>;

QParamsRef at_index(const std::vector<QParamsRef>& all, std::size_t index) {
  return index < all.size() ? all[index] : nullptr;
}

// The qparams to note at a boundary, which has only one scale; null for per-channel qparams.
QParamsRef at_boundary(const QParamsRef& qparams) { return qparams->axis ? nullptr : qparams; }

const QuantizeAttrs& quantization_of_unread() {
  static const QuantizeAttrs unread{DType::kI8, std::nullopt, -128, 127, {1.0}, {0}, {}};
  return unread;
}

class Boundaries {
 public:
  Boundaries(const Graph& graph, const IntegerBoundary& wanted) : graph_(graph), wanted_(wanted) {}

  std::optional<Graph> run() {
    quantizations_.resize(graph_.values().size());
    stored_.resize(graph_.values().size());
    for (std::size_t i = 0; i < graph_.inputs().size(); ++i) {
      const Input& input = graph_.inputs()[i];
      if (input.kind == InputKind::kUser)
        find_quantizations_of_input(i);
      else if (wanted_.states && is_updated_state(input))
        find_quantizations_of_state(input.value);
    }
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) dequantized_.push_back(integers_of(i));
    const auto is_any = [](const auto& all) {
      return std::any_of(all.begin(), all.end(), [](const QParamsRef& each) { return each != nullptr; });
    };
    const bool any =
        is_any(wanted_.requantized_inputs) || is_any(wanted_.requantized_outputs) ||
        std::any_of(quantizations_.begin(), quantizations_.end(),
                    [](const Quantizations& all) { return !all.empty(); }) ||
        std::any_of(dequantized_.begin(), dequantized_.end(),
                    [](const std::optional<DequantizedOutput>& found) { return found.has_value(); });
    return any ? std::optional(make()) : std::nullopt;
  }

 private:
  [[nodiscard]] bool is_unread(ValueId id) const { return graph_.users(id).empty() && !graph_.is_output(id); }

  void find_quantizations_of_input(std::size_t index) {
    const ValueId id = graph_.inputs()[index].value;
    const FloatIoForm form = wanted_.inputs.at(index);
    const DType dtype = graph_.type(id).dtype;
    if (form == FloatIoForm::kFloat || at_index(wanted_.requantized_inputs, index)) return;
    if (wanted_.unread_too && is_float(dtype) && is_unread(id)) {
      quantizations_[id.index()] = {quantization_of_unread()};
    } else if (has_integer_form(dtype)) {
      const Quantizations all = quantization_by_readers(graph_, id).found;
      const bool by_channel = std::any_of(all.begin(), all.end(),
                                          [](const QuantizeAttrs& each) { return each.axis.has_value(); });
      if (form == FloatIoForm::kConverted ? !all.empty() && !by_channel : all.size() == 1) mark(id, all);
    }
  }

  // True for a state of floats that the program updates, and whose initial value is known.
  [[nodiscard]] bool is_updated_state(const Input& input) const {
    if (input.kind != InputKind::kState || !has_integer_form(graph_.type(input.value).dtype)) return false;
    if (!input.initial || !input.initial->storage.bound()) return false;
    return std::ranges::any_of(graph_.outputs(), [&](const Output& output) {
      return output.kind == OutputKind::kMutation && &graph_.inputs()[output.mutated_input] == &input;
    });
  }

  // Finds the quantization of a state, which agrees() then compares with that of the new value. A state that
  // nobody reads has the quantization of its new value.
  void find_quantizations_of_state(ValueId id) {
    const Quantizations all =
        is_unread(id) ? quantization_of_new_value(id) : quantization_by_readers(graph_, id).found;
    if (all.size() == 1 && !all.front().axis) mark(id, all);
  }

  [[nodiscard]] Quantizations quantization_of_new_value(ValueId state) const {
    for (const Output& output : graph_.outputs()) {
      if (output.kind != OutputKind::kMutation) continue;
      if (graph_.inputs()[output.mutated_input].value != state) continue;
      if (const std::optional<DequantizedOutput> found = dequantized_output(graph_, output.value))
        return {attrs_of_qparams<QuantizeAttrs>(found->qparams->storage, *found->qparams)};
    }
    return {};
  }

  // Records the quantizations of the value, and of all values that movements make of it.
  void mark(ValueId id, const Quantizations& all) {
    quantizations_[id.index()] = all;
    for (const NodeId user : graph_.users(id)) {
      if (graph_.node(user).op == Op::kQuantize) continue;
      const ValueId result = graph_.result(graph_.node(user));
      mark(result, quantization_by_readers(graph_, result).found);
    }
  }

  // Records that the value, and all values that movements make of it, stay floats.
  void unmark(ValueId id) {
    if (quantizations_[id.index()].empty()) return;
    quantizations_[id.index()].clear();
    for (const NodeId user : graph_.users(id))
      if (graph_.node(user).op != Op::kQuantize) unmark(graph_.result(graph_.node(user)));
  }

  // The wanted form of an output. A state that has integer quantizations is stored as integers.
  [[nodiscard]] FloatIoForm form(std::size_t index) const {
    const Output& output = graph_.outputs()[index];
    if (output.kind == OutputKind::kUser) return wanted_.outputs.at(index);
    const Input& input = graph_.inputs()[output.mutated_input];
    if (input.kind == InputKind::kUser) return wanted_.inputs.at(output.mutated_input);
    return quantizations_[input.value.index()].empty() ? FloatIoForm::kFloat : FloatIoForm::kInteger;
  }

  // The dequantize node whose operand becomes the output; nothing if the output stays a float.
  [[nodiscard]] std::optional<DequantizedOutput> integers_of(std::size_t index) {
    const Output& output = graph_.outputs()[index];
    if (form(index) == FloatIoForm::kFloat || at_index(wanted_.requantized_outputs, index))
      return std::nullopt;
    std::optional<DequantizedOutput> found = dequantized_output(graph_, output.value);
    if (found && found->qparams->axis && form(index) == FloatIoForm::kConverted) found.reset();
    if (output.kind == OutputKind::kUser || agrees(index, found)) return found;
    return std::nullopt;
  }

  // For an output whose value is stored to an input: true if both can be the same integers. If they cannot,
  // both stay floats.
  [[nodiscard]] bool agrees(std::size_t index, std::optional<DequantizedOutput>& found) {
    const ValueId input = graph_.inputs()[graph_.outputs()[index].mutated_input].value;
    if (!found) {
      unmark(input);
      return false;
    }
    const QParams stored = *found->qparams;
    Quantizations& all = quantizations_[input.index()];
    if (is_unread(input))  // the program writes the input but never reads it
      all = {attrs_of_qparams<QuantizeAttrs>(stored.storage, stored)};
    const bool converts = form(index) == FloatIoForm::kConverted;
    const bool agree = all.size() == 1 && all.front().dtype == stored.storage &&
                       (converts || same_grid(all.front(), stored));
    if (!agree) unmark(input);
    if (agree && !converts) found->qparams = with_stored_range(input, *found);
    return agree;
  }

  // The qparams of integers that are stored to `input`: those with which the program reads it, with the range
  // widened to that of the new value. If it was widened, a clamp bounds what the program reads.
  [[nodiscard]] QParamsRef with_stored_range(ValueId input, const DequantizedOutput& found) {
    const QuantizeAttrs& read = quantizations_[input.index()].front();
    const QParamsRef label = graph_.type(graph_.operands(*found.dequantize)[0]).qparams;
    const QParams& made = label ? *label : *found.qparams;
    QParams stored = *qparams_of(read, read.dtype);
    if (made.qmin >= read.qmin && made.qmax <= read.qmax) return std::make_shared<const QParams>(stored);
    stored.qmin = std::min(made.qmin, read.qmin);
    stored.qmax = std::max(made.qmax, read.qmax);
    return stored_[input.index()] = std::make_shared<const QParams>(stored);
  }

  struct Quantized {
    ValueId from;  // a float of the old graph
    QuantizeAttrs quantization;
    ValueId made;  // its integers in the new graph
  };

  // Clamps integers that were stored to the range to which the program quantizes them.
  ValueId bounded(const Quantized& read) {
    const ClampAttrs range{Scalar(read.quantization.qmin), Scalar(read.quantization.qmax)};
    const std::span<const NodeId> users = graph_.users(read.from);
    const ValueId made = out_.add(Op::kClamp, range, std::span(&read.made, 1),
                                  users.empty() ? nullptr : graph_.node(users.front()).origin,
                                  graph_.value(read.from).name + ".bounded");
    if (values_have_qparams()) out_.set_qparams(made, qparams_of(read.quantization, read.quantization.dtype));
    return made;
  }

  Graph make() {
    out_.name = graph_.name;
    out_.stage = graph_.stage;
    made_.resize(graph_.values().size());
    integers_.resize(graph_.values().size());
    for (std::size_t i = 0; i < graph_.inputs().size(); ++i) add_input(i);
    for (const auto& [index, fresh] : requantized_) dequantize_input(index, fresh);
    for (Quantized& each : quantized_)
      if (stored_[each.from.index()]) each.made = bounded(each);
    for (const Node& node : graph_.nodes()) add(node);
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) add_output(i);
    std::optional<Graph> clean = dead_code(out_);
    return clean ? std::move(*clean) : std::move(out_);
  }

  [[nodiscard]] bool values_have_qparams() const {
    return graph_.stage == Stage::kInteger || graph_.stage == Stage::kQuantized;
  }

  void add_output(std::size_t index) {
    Output output = graph_.outputs()[index];
    const ValueId old = output.value;
    if (const std::optional<DequantizedOutput>& found = dequantized_[index]) {
      if (form(index) == FloatIoForm::kConverted) output.boundary.source_dtype = graph_.type(old).dtype;
      output.value = integers_before(*found);
      output.boundary.qparams = at_boundary(found->qparams);
    } else {
      output.value = made(old);
      if (const QParamsRef qparams = at_index(wanted_.requantized_outputs, index)) {
        output.value = add_quantize(output.value, *qparams, old);
        output.boundary.qparams = at_boundary(qparams);
      }
    }
    if (output.kind == OutputKind::kMutation) output.mutated_input = input_at_[output.mutated_input];
    out_.add_output(std::move(output));
  }

  // The integers of an output: the operand of its dequantize node, moved as the numbers are moved.
  ValueId integers_before(const DequantizedOutput& found) {
    const ValueId operand = graph_.operands(*found.dequantize)[0];
    ValueId integers = made(operand);
    const std::int64_t zero_point = Graph::attrs<DequantizeAttrs>(*found.dequantize).zero_points.front();
    for (const Node* movement : found.movements) {
      ValueId& known = integers_[movement->first_result];
      if (!known.valid()) {
        const QParamsRef& before = out_.type(integers).qparams;
        const QParamsRef behind = before ? *qparams_behind(graph_, *movement, before) : nullptr;
        known = add_movement(*movement, integers, found.qparams->storage, zero_point, behind);
      }
      integers = known;
    }
    return integers;
  }

  ValueId add_quantize(ValueId floats, const QParams& qparams, ValueId old) {
    const Node* producer = graph_.producer(old);
    const ValueId operands[] = {floats};
    const ValueId id = out_.add(Op::kQuantize, attrs_of_qparams<QuantizeAttrs>(qparams.storage, qparams),
                                operands, producer ? producer->origin : nullptr, graph_.value(old).name);
    if (values_have_qparams()) out_.set_qparams(id, std::make_shared<const QParams>(qparams));
    return id;
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

  void add_input(std::size_t index) {
    const Input& input = graph_.inputs()[index];
    input_at_.push_back(static_cast<std::uint32_t>(out_.inputs().size()));
    const Value& value = graph_.value(input.value);
    if (const QParamsRef qparams = at_index(wanted_.requantized_inputs, index)) {
      requantized_.emplace_back(index, add_integer_input(input, *qparams, input.path, false, input.initial));
      return;
    }
    const Quantizations& all = quantizations_[input.value.index()];
    if (all.empty())
      made_[input.value.index()] =
          out_.add_input(input.kind, value.name, value.type, input.path, input.boundary, input.initial);
    const std::string& path = input.path.empty() && all.size() > 1 ? value.name : input.path;
    for (const QuantizeAttrs& each : all) {
      const bool is_state = input.kind == InputKind::kState;
      const bool converts = !is_state && wanted_.inputs.at(index) == FloatIoForm::kConverted;
      const ConstantRef initial = is_state ? quantized_constant(*input.initial, each) : input.initial;
      const QParamsRef& stored = stored_[input.value.index()];
      const QParamsRef qparams = stored ? stored : qparams_of(each, each.dtype);
      quantized_.push_back({input.value, each, add_integer_input(input, *qparams, path, converts, initial)});
    }
  }

  ValueId add_integer_input(const Input& input, const QParams& qparams, const std::string& path,
                            bool converts, const ConstantRef& initial) {
    TensorType type = graph_.type(input.value);
    BoundaryFormat boundary = input.boundary;
    const auto known = std::make_shared<const QParams>(qparams);
    boundary.qparams = at_boundary(known);
    if (converts) boundary.source_dtype = type.dtype;
    type.dtype = qparams.storage;
    if (values_have_qparams()) type.qparams = known;
    return out_.add_input(input.kind, graph_.value(input.value).name, type, path, boundary, initial);
  }

  // Emits the dequantize node of an input whose integers have parameters that the caller chose.
  void dequantize_input(std::size_t index, ValueId fresh) {
    const ValueId old = graph_.inputs()[index].value;
    const std::span<const NodeId> users = graph_.users(old);
    const QParams& qparams = *wanted_.requantized_inputs[index];
    const ValueId operands[] = {fresh};
    made_[old.index()] = out_.add(
        Op::kDequantize, attrs_of_qparams<DequantizeAttrs>(graph_.type(old).dtype, qparams), operands,
        users.empty() ? nullptr : graph_.node(users.front()).origin, graph_.value(old).name + ".dequantize");
  }

  // The value, quantized by `quantization`, in the new graph.
  [[nodiscard]] ValueId quantized(ValueId id, const QuantizeAttrs& quantization) const {
    const auto found = std::find_if(quantized_.begin(), quantized_.end(), [&](const Quantized& known) {
      return known.from == id && known.quantization == quantization;
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
      made_[node.first_result] = quantized(from, Graph::attrs<QuantizeAttrs>(node));
      return;
    }
    if (of_input) return move(node, from);
    copy_node(graph_, node, out_, made_, [this](ValueId id) { return made(id); });
  }

  // A movement of a float becomes one movement for each quantization of its result. A cast becomes nothing.
  void move(const Node& node, ValueId from) {
    const ValueId result = graph_.result(node);
    for (const QuantizeAttrs& each : quantizations_[result.index()]) {
      if (widens(graph_, node)) {
        quantized_.push_back({result, each, quantized(from, each)});
        continue;
      }
      const ValueId operand = quantized(from, *quantization_before(graph_, node, each));
      const QParamsRef qparams = values_have_qparams() ? qparams_of(each, each.dtype) : nullptr;
      quantized_.push_back(
          {result, each, add_movement(node, operand, each.dtype, each.zero_points.front(), qparams)});
    }
  }

  ValueId add_movement(const Node& node, ValueId operand, DType dtype, std::int64_t zero_point,
                       const QParamsRef& qparams) {
    TensorType type = graph_.type(graph_.result(node));
    type.dtype = dtype;
    type.qparams = qparams;
    const NodeId made =
        out_.add_node(node.op, std::make_shared<const Attrs>(attrs_on_integers(node, zero_point)),
                      std::span(&operand, 1), std::span(&type, 1), node.origin, graph_.node_name(node));
    return out_.result(out_.node(made));
  }

  const Graph& graph_;
  const IntegerBoundary& wanted_;
  Graph out_;
  // By value: the quantizations of an input, or of a value moved from one; empty if it stays a float.
  std::vector<Quantizations> quantizations_;
  std::vector<Quantized> quantized_;
  std::vector<QParamsRef> stored_;  // by value: see with_stored_range(); null where nothing has to be bounded
  std::vector<std::pair<std::size_t, ValueId>> requantized_;   // index of an input, its new value
  std::vector<std::optional<DequantizedOutput>> dequantized_;  // by output: see integers_of()
  std::vector<ValueId> made_;      // by value: its value in the new graph, if `quantizations_` is empty
  std::vector<ValueId> integers_;  // by value: its integers, for floats between dequantize and an output
  std::vector<std::uint32_t> input_at_;  // by input: the index of its first input in the new graph
};

}  // namespace

std::optional<Graph> with_integer_boundary(const Graph& graph, const IntegerBoundary& wanted) {
  return Boundaries(graph, wanted).run();
}

}  // namespace tosaic::passes
