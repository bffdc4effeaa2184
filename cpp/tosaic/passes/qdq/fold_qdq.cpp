// fold-qdq: moves quantization from quantize and dequantize nodes onto values.
//
//   %a = dequantize(%x)                                %c: i8 q(..) = conv(%x: i8 q(..), %w: i8 q(..), %bias)
//   %c = conv(%a, dequantize(%w), %bias)        ->
//   %r = relu(%c)                                      %r: i8 q(..) = relu(%c)
//   %q = quantize(%r)
//
// The *label* of an integer value is the qparams of the numbers that it represents. The *wanted qparams* of a
// float value are those with which its readers quantize it. A *form* of a float value is integers with
// qparams that replace it:
//   exact      the integers represent exactly this float: it was dequantized from them, or its
//              elements were moved or selected from such floats
//   quantized  the integers are the float quantized with these qparams. A reader may use them only if it
//              would quantize the float with the same qparams itself, directly or through operators that
//              commute with quantization (relu, clamp, views, pools ...)
//
// A node whose float operands all have forms or are constants is emitted once for each of the wanted qparams
// of its result. It is also emitted unchanged if its floats are still read. If all of its float operands are
// constants, it must commute with quantization: a lookup in a table of floats, or a selection (where).
//
// The labels are found first. Three walks follow. They find the wanted qparams of each float (backwards), its
// forms (forwards), and which floats are still read (backwards). Then the new graph is built.
//
// A constant that several dequantize nodes read with different parameters is split into one constant for
// each.
//
// Integers have labels only if dequantize nodes, views and outputs are their only readers. These nodes stay
// unchanged: nodes with regions or effects, foreign operators, nodes with floats other than f32, and
// dequantize nodes whose parameters differ from those that quantized the integers. Every value is rounded
// exactly as before.

#include <algorithm>
#include <utility>
#include <vector>

#include "tosaic/ir/computing_calls.h"
#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/infer.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/ir/rewriter.h"
#include "tosaic/passes/copy_node.h"
#include "tosaic/passes/pass.h"
#include "tosaic/passes/qdq/io_quantization.h"

namespace tosaic::passes {
namespace {

struct Form {
  QParamsRef qparams;
  bool exact = false;
  ValueId id;  // the value in the new graph; invalid until it is made
};
using Forms = std::vector<Form>;
using QParamsList = std::vector<QParamsRef>;

void add_distinct(QParamsList& all, const QParamsRef& wanted) {
  if (std::none_of(all.begin(), all.end(),
                   [&](const QParamsRef& known) { return same_qparams(known, wanted); }))
    all.push_back(wanted);
}

class Folding {
 public:
  explicit Folding(const Graph& graph)
      : graph_(graph),
        calls_(graph),
        labels_(graph.values().size()),
        wanted_(graph.values().size()),
        forms_(graph.values().size()),
        made_(graph.values().size()),
        read_(graph.values().size(), false) {}

  Graph run() {
    find_labels();
    find_wanted_qparams();
    find_forms();
    find_reads();
    make();
    std::optional<Graph> clean = dead_code(out_);
    return clean ? *std::move(clean) : std::move(out_);
  }

  static bool is_qdq(Op op) { return op == Op::kQuantize || op == Op::kDequantize; }

 private:
  [[nodiscard]] bool is_f32(ValueId id) const { return id.valid() && graph_.type(id).dtype == DType::kF32; }
  [[nodiscard]] bool is_constant(ValueId id) const { return graph_.value(id).kind == ValueKind::kConstant; }
  [[nodiscard]] ValueId operand(const Node& node) const { return graph_.operands(node)[0]; }
  [[nodiscard]] QParamsRef wanted_qparams(const Node& quantize) const {
    const auto& attrs = Graph::attrs<QuantizeAttrs>(quantize);
    return qparams_of(attrs, attrs.dtype);
  }
  [[nodiscard]] QParamsRef read_by(const Node& dequantize) const {
    return qparams_of(Graph::attrs<DequantizeAttrs>(dequantize), graph_.type(operand(dequantize)).dtype);
  }

  // A number of Python, such as the exponent of a power, does not change the dtype in which a node computes.
  [[nodiscard]] bool is_python_number(ValueId id) const {
    return is_constant(id) && graph_.type(id).dtype == DType::kF64 && graph_.type(id).rank() == 0;
  }

  // True if the node may compute over quantized values. All its floats must be f32, or numbers of Python.
  [[nodiscard]] bool may_fold(const Node& node) const {
    if (is_foreign(node.op) && !has_integer_kernel(node)) return false;
    if (!node.regions.empty() || info(node.op).has(kEffect)) return false;
    for (const ValueId id : graph_.operands(node))
      if (id.valid() && is_float(graph_.type(id).dtype) && !is_f32(id) && !is_python_number(id)) return false;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const DType dtype = graph_.type(graph_.result(node, r)).dtype;
      if (is_float(dtype) && dtype != DType::kF32) return false;
    }
    return node.result_count != 0;
  }

  // ---- labels of integers ----

  // True if the node moves the elements of one operand, so that its result may have the operand's label.
  [[nodiscard]] static bool passes_label(const Node& node) {
    return (rearranges(node) || inserted_number(node)) && node.operand_count == 1 && node.result_count == 1;
  }

  // The label of the node's result, or null. A node that inserts an integer passes a label only if that
  // integer represents 0.
  [[nodiscard]] QParamsRef label_behind(const Node& node) const {
    const QParamsRef& from = labels_[operand(node).index()];
    if (const std::optional<double> integer = inserted_number(node)) {
      const auto is_it = [&](std::int64_t zero) { return static_cast<double>(zero) == *integer; };
      if (!has_zero(*from) || !std::ranges::all_of(from->zero_points, is_it)) return nullptr;
    }
    return qparams_behind(graph_, node, from).value_or(nullptr);
  }

  // The readers of a value. `only_dequantize` is true if all readers are dequantize nodes, outputs, or views
  // whose readers are also only dequantize nodes, outputs or such views. `first` has the qparams with which
  // the first of these dequantize nodes reads the value.
  struct Readers {
    std::vector<bool> only_dequantize;
    std::vector<QParamsRef> first;
  };
  [[nodiscard]] Readers readers() const {
    Readers out{std::vector<bool>(labels_.size(), true), std::vector<QParamsRef>(labels_.size())};
    const std::span<const Node> nodes = graph_.nodes();
    for (std::size_t n = nodes.size(); n-- > 0;) {
      const Node& node = nodes[n];
      for (const ValueId id : graph_.operands(node)) {
        if (!id.valid()) continue;
        if (node.op == Op::kDequantize) {
          out.first[id.index()] = read_by(node);
        } else if (passes_label(node) && out.only_dequantize[node.first_result]) {
          const QParamsRef& behind = out.first[node.first_result];
          if (behind && !behind->axis) out.first[id.index()] = behind;
        } else {
          out.only_dequantize[id.index()] = false;
        }
      }
    }
    return out;
  }

  // The label of an input or constant that is read with the parameters `read`. An input may hold any integer
  // of its dtype, so its range becomes the range of the dtype; dequantizing does not depend on the range. A
  // constant retains the range of `read` if all its elements are inside.
  [[nodiscard]] static QParamsRef label_of_source(const QParams& read, const Constant* constant) {
    const ValueRange dtype = *integer_limits(read.storage);
    if (read.qmin <= dtype.low && read.qmax >= dtype.high) return std::make_shared<const QParams>(read);
    bool inside = false;
    if (constant != nullptr && constant->storage.bound() && num_elements(constant->shape) != 0) {
      const ValueRange found = extremes_of(*constant);
      inside = found.low >= read.qmin && found.high <= read.qmax;
    }
    QParams out = read;
    if (!inside) {
      out.qmin = dtype.low;
      out.qmax = dtype.high;
    }
    return std::make_shared<const QParams>(std::move(out));
  }

  void find_labels() {
    const Readers readers = this->readers();
    const auto label = [&](ValueId id, const QParamsRef& qparams) {
      if (readers.only_dequantize[id.index()]) labels_[id.index()] = qparams;
    };
    for (std::size_t i = 0; i < graph_.values().size(); ++i) {
      const ValueId id(static_cast<std::uint32_t>(i));
      const Value& value = graph_.value(id);
      if (value.kind == ValueKind::kResult || !is_integer(value.type.dtype) || !readers.first[i]) continue;
      label(id, label_of_source(*readers.first[i], value.constant.get()));
    }
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::kQuantize) label(graph_.result(node), wanted_qparams(node));
      if (!passes_label(node) || !labels_[operand(node).index()]) continue;
      label(graph_.result(node), label_behind(node));
    }
    drop_labels_that_end();
  }

  // A node that passes a label has it at its operand and its result, or at neither. An axis of scales may end
  // at a node, as in a reshape that joins axes; no value that is connected with that node has a label then.
  void drop_labels_that_end() {
    const std::span<const Node> nodes = graph_.nodes();
    for (std::size_t n = nodes.size(); n-- > 0;)
      if (passes_label(nodes[n]) && !labels_[nodes[n].first_result])
        labels_[operand(nodes[n]).index()].reset();
    for (const Node& node : nodes)
      if (passes_label(node) && !labels_[operand(node).index()]) labels_[node.first_result].reset();
  }

  // True if the node dequantizes its integers to f32 with the scale and zero point of their label.
  [[nodiscard]] bool agrees(const Node& dequantize) const {
    const QParamsRef& known = labels_[operand(dequantize).index()];
    return known && Graph::attrs<DequantizeAttrs>(dequantize).dtype == DType::kF32 &&
           same_grid(*known, Graph::attrs<DequantizeAttrs>(dequantize));
  }

  // ---- wanted qparams of floats ----

  void find_wanted_qparams() {
    const std::span<const Node> nodes = graph_.nodes();
    for (std::size_t n = nodes.size(); n-- > 0;) {
      const Node& node = nodes[n];
      if (node.op == Op::kQuantize) {
        if (is_f32(operand(node)) && labels_[node.first_result])
          add_distinct(wanted_[operand(node).index()], wanted_qparams(node));
        continue;
      }
      if (!may_fold(node) || !commutes_with_quantize(node)) continue;
      for (std::uint32_t r = 0; r < node.result_count; ++r)
        for (const QParamsRef& wanted : wanted_[node.first_result + r])
          if (!wanted->axis)
            for (const ValueId id : graph_.operands(node))
              if (is_f32(id)) add_distinct(wanted_[id.index()], wanted);
    }
  }

  // ---- forms ----

  // The form of `id` that the node may read if its result is quantized with the qparams `wanted`, or null. If
  // `wanted` is null, only exact forms qualify.
  [[nodiscard]] const Form* readable(const Node& node, ValueId id, const QParamsRef& wanted) const {
    const Forms& forms = forms_[id.index()];
    const auto is_same = [&](const Form& form) { return same_qparams(form.qparams, wanted); };
    const auto same = std::find_if(forms.begin(), forms.end(), is_same);
    if (same != forms.end() && (same->exact || (wanted && commutes_with_quantize(node)))) return &*same;
    const auto exact = std::find_if(forms.begin(), forms.end(), [](const Form& form) { return form.exact; });
    return exact == forms.end() ? nullptr : &*exact;
  }

  // True if quantizing the node's constant operands is the same as quantizing its result, as in a lookup in a
  // table.
  [[nodiscard]] static bool quantizes_constants(const Node& node, const QParamsRef& wanted) {
    return wanted && !wanted->axis && commutes_with_quantize(node);
  }

  [[nodiscard]] bool has_readable(const Node& node, const QParamsRef& wanted) const {
    const auto ids = graph_.operands(node);
    return std::any_of(ids.begin(), ids.end(),
                       [&](ValueId id) { return is_f32(id) && readable(node, id, wanted) != nullptr; });
  }

  // True if every float operand is readable or a constant, and at least one is readable or all are constants
  // that may be quantized.
  [[nodiscard]] bool may_read(const Node& node, const QParamsRef& wanted) const {
    bool any_f32 = false;
    for (const ValueId id : graph_.operands(node)) {
      if (!is_f32(id)) continue;
      if (readable(node, id, wanted) == nullptr && !is_constant(id)) return false;
      any_f32 = true;
    }
    return any_f32 && (has_readable(node, wanted) || quantizes_constants(node, wanted));
  }

  // The qparams of the exact form of the node's result, or null. The result has an exact form if the node
  // moves or selects elements, and all its float operands have exact forms with the same qparams.
  [[nodiscard]] QParamsRef chosen(const Node& node) const {
    if (!selects_elements(node)) return nullptr;
    QParamsRef common;
    for (const ValueId id : graph_.operands(node)) {
      if (!is_f32(id)) continue;
      const Form* form = readable(node, id, common);
      if (form == nullptr || !form->exact || (common && !same_qparams(form->qparams, common))) return nullptr;
      common = form->qparams;
    }
    if (!common || (!info(node.op).has(kView) && !has_zero(*common))) return nullptr;
    if (common->axis && !moves(node)) return nullptr;
    return qparams_after(graph_, node, common).value_or(nullptr);
  }

  [[nodiscard]] QParamsList wanted_by_readers(const Node& node) const {
    QParamsList all;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      for (const QParamsRef& wanted : wanted_[node.first_result + r]) add_distinct(all, wanted);
    return all;
  }

  void find_forms() {
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::kDequantize && agrees(node))
        forms_[node.first_result].push_back({labels_[operand(node).index()], true, ValueId()});
      if (is_qdq(node.op) || !may_fold(node)) continue;
      const auto add_form = [&](const QParamsRef& wanted, bool exact) {
        for (std::uint32_t r = 0; r < node.result_count; ++r)
          if (is_f32(graph_.result(node, r)))
            forms_[node.first_result + r].push_back({wanted, exact, ValueId()});
      };
      const QParamsRef exact = chosen(node);
      if (exact) add_form(exact, true);
      if (exact && moves(node)) continue;  // make_quantized() emits a node for other qparams
      for (const QParamsRef& wanted : wanted_by_readers(node))
        if (!same_qparams(wanted, exact) && may_read(node, wanted)) add_form(wanted, false);
    }
  }

  // ---- floats that are still read ----

  [[nodiscard]] bool has_exact(ValueId id) const {
    const Forms& forms = forms_[id.index()];
    return std::any_of(forms.begin(), forms.end(), [](const Form& form) { return form.exact; });
  }

  // True if the node can compute from exact forms and constants, and has no float result. Examples are
  // comparisons and argmax.
  [[nodiscard]] bool only_reads(const Node& node) const {
    if (is_qdq(node.op) || !may_fold(node) || !may_read(node, nullptr)) return false;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      if (is_f32(graph_.result(node, r))) return false;
    return true;
  }

  // True if the node is emitted over floats, with or without being emitted over forms.
  [[nodiscard]] bool stays(const Node& node) const {
    if (is_qdq(node.op) || only_reads(node)) return false;
    bool formless = true;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph_.result(node, r);
      if (read_[result.index()] && !has_exact(result)) return true;
      formless = formless && forms_[result.index()].empty();
    }
    return formless;
  }

  // The form that replaces a quantize node, or null if there is none. An exact form may have other qparams.
  [[nodiscard]] const Form* replacement_form(const Node& quantize) const {
    const ValueId id = operand(quantize);
    if (!labels_[quantize.first_result]) return nullptr;  // another operator computes with the integers
    const Forms& forms = forms_[id.index()];
    const QParamsRef wanted = wanted_qparams(quantize);
    const auto same = std::find_if(forms.begin(), forms.end(),
                                   [&](const Form& form) { return same_qparams(form.qparams, wanted); });
    if (same != forms.end()) return &*same;
    const auto exact = std::find_if(forms.begin(), forms.end(), [](const Form& form) { return form.exact; });
    return exact == forms.end() ? nullptr : &*exact;
  }

  void find_reads() {
    for (const Output& output : graph_.outputs()) read_[output.value.index()] = true;
    const std::span<const Node> nodes = graph_.nodes();
    for (std::size_t n = nodes.size(); n-- > 0;) {
      const Node& node = nodes[n];
      if (node.op == Op::kQuantize ? replacement_form(node) == nullptr : stays(node))
        for (const ValueId id : graph_.operands(node))
          if (id.valid()) read_[id.index()] = true;
    }
  }

  // ---- the new graph ----

  void make() {
    out_.name = graph_.name;
    out_.stage = Stage::kQuantized;
    for (const Input& input : graph_.inputs()) {
      const Value& value = graph_.value(input.value);
      TensorType type = value.type;
      type.qparams = labels_[input.value.index()];
      made_[input.value.index()] =
          out_.add_input(input.kind, value.name, type, input.path, input.boundary, input.initial);
    }
    for (const Node& node : graph_.nodes()) make(node);
    for (Output output : graph_.outputs()) {
      output.value = original_value(output.value);
      out_.add_output(std::move(output));
    }
  }

  // The constant with its label.
  ValueId constant(ValueId id) {
    ValueId& made = made_[id.index()];
    if (made.valid()) return made;
    made = out_.add_constant(graph_.value(id).constant);
    out_.set_qparams(made, labels_[id.index()]);
    return made;
  }

  // The new value for a reader that needs the value as it was in the old graph, a float or integers. If the
  // new graph has a float only as the integers of an exact form, these are dequantized, once for all readers.
  ValueId original_value(ValueId id) {
    if (is_constant(id)) return constant(id);
    ValueId& made = made_[id.index()];
    if (made.valid()) return made;
    for (const Form& form : forms_[id.index()]) {
      if (!form.exact) continue;
      const Node& node = *graph_.producer(id);
      const auto attrs = attrs_of_qparams<DequantizeAttrs>(DType::kF32, *form.qparams);
      return made =
                 out_.add(Op::kDequantize, attrs, std::span(&form.id, 1), node.origin, graph_.value(id).name);
    }
    throw InternalError({.where = "fold-qdq", .what = "a float was left out", .node = graph_.value(id).name});
  }

  // The origins of the node and of the quantize and dequantize nodes that are folded into it.
  [[nodiscard]] OriginRef origin_of(const Node& node, const QParamsRef& wanted) const {
    std::vector<OriginRef> origins;
    for (const ValueId id : graph_.operands(node)) {
      const Node* producer = id.valid() ? graph_.producer(id) : nullptr;
      if (producer != nullptr && producer->op == Op::kDequantize && !calls_.contain(leaves(producer->origin)))
        origins.push_back(producer->origin);
    }
    origins.push_back(node.origin);
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      for (const NodeId user : graph_.users(graph_.result(node, r)))
        if (graph_.node(user).op == Op::kQuantize && same_qparams(wanted_qparams(graph_.node(user)), wanted))
          origins.push_back(graph_.node(user).origin);
    return merge(origins);
  }

  // Quantizes a constant operand. fold-constants computes the emitted node.
  ValueId quantized_constant(const Node& node, ValueId id, const QParamsRef& wanted) {
    const auto attrs = attrs_of_qparams<QuantizeAttrs>(wanted->storage, *wanted);
    const ValueId operands[] = {constant(id)};
    const ValueId made = out_.add(Op::kQuantize, attrs, operands, node.origin, graph_.node_name(node));
    out_.set_qparams(made, wanted);
    return made;
  }

  // Emits the node over forms of its operands, with its f32 results quantized by `wanted`.
  NodeId make_over_forms(const Node& node, const QParamsRef& wanted) {
    std::vector<ValueId> operands;
    const bool any_form = has_readable(node, wanted);
    for (const ValueId id : graph_.operands(node)) {
      const Form* form = is_f32(id) ? readable(node, id, wanted) : nullptr;
      if (form != nullptr)
        operands.push_back(form->id);
      else if (is_f32(id) && !any_form)
        operands.push_back(quantized_constant(node, id, wanted));
      else
        operands.push_back(id.valid() ? original_value(id) : id);
    }
    std::vector<TensorType> types;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      TensorType type = graph_.type(graph_.result(node, r));
      if (type.dtype == DType::kF32) {
        type.dtype = wanted->storage;
        type.qparams = wanted;
      }
      types.push_back(std::move(type));
    }
    return out_.add_node(node.op, node.attrs, operands, types, origin_of(node, wanted),
                         graph_.node_name(node));
  }

  void make_forms(const Node& node) {
    QParamsList all;
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      for (const Form& form : forms_[node.first_result + r]) add_distinct(all, form.qparams);
    for (const QParamsRef& wanted : all) {
      const NodeId made = make_over_forms(node, wanted);
      for (std::uint32_t r = 0; r < node.result_count; ++r) {
        const ValueId result = out_.result(out_.node(made), r);
        for (Form& form : forms_[node.first_result + r])
          if (same_qparams(form.qparams, wanted)) form.id = result;
        if (!is_f32(graph_.result(node, r))) made_[node.first_result + r] = result;
      }
    }
  }

  // Emits a pad over labelled integers. It inserts the number 0, no longer the integer that represents 0.
  void make_labelled_pad(const Node& node) {
    PadAttrs attrs = Graph::attrs<PadAttrs>(node);
    attrs.value = 0.0;
    TensorType type = graph_.type(graph_.result(node));
    type.qparams = labels_[node.first_result];
    const ValueId operands[] = {original_value(operand(node))};
    const NodeId made = out_.add_node(node.op, share(std::move(attrs)), operands, std::span(&type, 1),
                                      node.origin, graph_.node_name(node));
    made_[node.first_result] = out_.result(out_.node(made));
  }

  void make_original(const Node& node) {
    if (node.op == Op::kPad && labels_[node.first_result]) return make_labelled_pad(node);
    copy_node(graph_, node, out_, made_, [this](ValueId id) { return id.valid() ? original_value(id) : id; });
    for (std::uint32_t r = 0; r < node.result_count; ++r)
      out_.set_qparams(made_[node.first_result + r], labels_[node.first_result + r]);
  }

  void make(const Node& node) {
    if (node.op == Op::kQuantize) return make_quantized(node);
    if (node.op == Op::kDequantize && !forms_[node.first_result].empty()) {
      forms_[node.first_result].front().id = original_value(operand(node));
      return;
    }
    if (only_reads(node)) {
      const NodeId made = make_over_forms(node, nullptr);
      for (std::uint32_t r = 0; r < node.result_count; ++r)
        made_[node.first_result + r] = out_.result(out_.node(made), r);
      return;
    }
    if (!is_qdq(node.op)) make_forms(node);
    if (is_qdq(node.op) || stays(node)) make_original(node);
  }

  // Replaces a quantize node by a form, or by a clone of an exact form that has the node's qparams, or emits
  // it unchanged.
  void make_quantized(const Node& node) {
    const Form* form = replacement_form(node);
    if (form == nullptr) return make_original(node);
    ValueId& made = made_[node.first_result];
    const QParamsRef wanted = wanted_qparams(node);
    if (same_qparams(form->qparams, wanted)) {
      made = form->id;
      return;
    }
    TensorType type = graph_.type(graph_.result(node));
    type.qparams = wanted;
    const ValueId operands[] = {form->id};
    const NodeId clone = out_.add_node(Op::kClone, share(default_attrs(Op::kClone)), operands,
                                       std::span(&type, 1), node.origin, graph_.node_name(node));
    made = out_.result(out_.node(clone));
  }

  const Graph& graph_;
  Graph out_;
  ComputingCalls calls_;
  std::vector<QParamsRef> labels_;   // by integer value: its label
  std::vector<QParamsList> wanted_;  // by float value: the wanted qparams
  std::vector<Forms> forms_;         // by float value: its forms
  std::vector<ValueId> made_;        // by old value: the new value that equals it
  std::vector<bool> read_;           // by old value: it is still read as it was
};

// Splits a constant that is dequantized with different parameters into several constants with the same bytes.
std::optional<Graph> split_constants(const Graph& graph) {
  struct Reading {
    ValueId constant;
    QParamsRef read;
    ConstantRef own;
  };
  std::vector<Reading> readings;
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const ValueId id = node.operand_count == 1 ? graph.operands(node)[0] : ValueId();
    if (node.op != Op::kDequantize || graph.value(id).kind != ValueKind::kConstant) {
      rewriter.copy(node);
      continue;
    }
    const auto& attrs = Graph::attrs<DequantizeAttrs>(node);
    const auto is_known = [&](const Reading& r) { return r.constant == id && same_grid(*r.read, attrs); };
    auto found = std::find_if(readings.begin(), readings.end(), is_known);
    if (found == readings.end()) {
      const bool first =
          std::none_of(readings.begin(), readings.end(), [&](const Reading& r) { return r.constant == id; });
      readings.push_back({id, qparams_of(attrs, graph.type(id).dtype), nullptr});
      found = readings.end() - 1;
      if (!first) found->own = std::make_shared<const Constant>(*graph.value(id).constant);
    }
    if (!found->own) {
      rewriter.copy(node);
      continue;
    }
    const ValueId own = rewriter.constant(node, found->own);
    rewriter.replace(node, rewriter.emit(node, Op::kDequantize, attrs, {own}));
  }
  return std::move(rewriter).finish();
}

}  // namespace

std::optional<Graph> fold_qdq(const Graph& graph) {
  if (graph.stage != Stage::kExported) return std::nullopt;
  const auto quantizes = [](const Node& node) { return Folding::is_qdq(node.op); };
  if (std::ranges::none_of(graph.nodes(), quantizes)) return std::nullopt;
  const std::optional<Graph> split = split_constants(graph);
  return Folding(split ? *split : graph).run();
}

}  // namespace tosaic::passes
