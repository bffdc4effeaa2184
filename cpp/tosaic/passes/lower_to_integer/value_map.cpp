#include "tosaic/passes/lower_to_integer/value_map.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tosaic/ir/op_table.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/lower_to_integer/copied_nodes.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"

namespace tosaic::passes {
namespace {

// True if the condition holds for all nodes that read a result of the node.
template <class F>
bool all_readers(const Graph& graph, const Node& node, F condition) {
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    for (const NodeId reader : graph.users(graph.result(node, r)))
      if (!condition(graph.node(reader))) return false;
  return true;
}

// True if nothing but the outputs of the graph reads the results of the node.
bool is_result_only(const Graph& graph, const Node& node) {
  return all_readers(graph, node, [](const Node& /*reader*/) { return false; });
}

// True if every element of the result is an element of an operand or a bound.
bool views_or_selects(const Node& node) {
  return info(node.op).has(kView) || info(node.op).has(kSelection) || node.op == Op::kClamp;
}

// True if only outputs of the graph read the results of the node, or views and selections of these results.
bool is_only_returned(const Graph& graph, const Node& node) {
  return all_readers(graph, node, [&](const Node& reader) {
    return views_or_selects(reader) && is_only_returned(graph, reader);
  });
}

constexpr OpTable<bool> kPositions = {{Op::kArgmax, true}, {Op::kArgmin, true}, {Op::kArgsort, true}};

// True if the integers of a value follow from numbers that were cast to integers, whose range the analysis of
// integers does not know. Truth values and positions, such as the results of an argmax, do not follow from
// numbers.
bool counts_numbers(const Graph& graph, ValueId id) {
  std::vector<ValueId> waiting{id};
  std::set<std::uint32_t> seen;
  while (!waiting.empty()) {
    const ValueId at = waiting.back();
    waiting.pop_back();
    const TensorType& type = graph.type(at);
    if (type.qparams || is_float(type.dtype)) return true;
    const Node* const producer = graph.producer(at);
    if (type.dtype == DType::kBool || producer == nullptr || !seen.insert(at.index()).second) continue;
    if (kPositions.contains(producer->op)) continue;
    for (const ValueId operand : graph.operands(*producer))
      if (operand.valid()) waiting.push_back(operand);
  }
  return false;
}

}  // namespace

const ScaledInteger* ValueMap::scaled(ValueId id) const {
  const Form& form = forms_[id.index()];
  return form.scaled ? &*form.scaled : nullptr;
}

const FunctionTable* ValueMap::deferred_table(ValueId id) const {
  const Form& form = forms_[id.index()];
  return form.deferred ? &form.deferred->table : nullptr;
}

std::optional<analysis::RelevantNumbers> ValueMap::noticed(const Node& node) const {
  if (whole_ != nullptr)
    return moves_ || is_result_only(*source_, node) ? whole_->noticed(*composite_) : std::nullopt;
  return readers().relevance.of_results(node);
}

const ValueMap::Readers& ValueMap::readers() const {
  if (readers_ == nullptr) readers_ = std::make_unique<const Readers>(*source_);
  return *readers_;
}

double ValueMap::least_magnitude(ValueId id) const {
  return whole_ == nullptr ? readers().ranges.of(id).least : 0;
}

std::optional<ValueRange> ValueMap::range_of_integers(ValueId id) const {
  if (counts_numbers(*source_, id)) return std::nullopt;
  if (integers_ == nullptr)
    integers_ = std::make_unique<const analysis::IntegerRanges>(
        *source_, analysis::initial_integer_ranges(*source_), analysis::IntegerWidth());
  return integers_->of(id);
}

bool ValueMap::is_only_returned(const Node& node) const {
  return passes::is_only_returned(*source_, node) &&
         (whole_ == nullptr || whole_->is_only_returned(*composite_));
}

void ValueMap::set_rounded(ValueId id) {
  if (whole_ == nullptr) {
    forms_[id.index()].is_rounded = true;
  } else if (moves_) {
    whole_->set_rounded(whole_->source_->result(*composite_));
  }
}

// True if the value, or a value whose elements were only moved to make it, was rounded to a coarser scale.
bool ValueMap::is_rounded(ValueId id) const {
  while (!forms_[id.index()].is_rounded) {
    const Node* const producer = source_->producer(id);
    const bool moves =
        producer != nullptr &&
        (rearranges(*producer) || (producer->operand_count == 1 && info(producer->op).has(kMovement)));
    if (!moves) return false;
    id = source_->operands(*producer)[0];
  }
  return true;
}

bool ValueMap::has_integers(ValueId id) const {
  return source_->type(id).qparams != nullptr || scaled(id) != nullptr;
}

ValueId ValueMap::value(ValueId id, IntegerBuilder& reader) {
  if (!id.valid()) return id;
  Form& form = forms_[id.index()];
  if (!form.value.valid() && form.scaled) {
    if (made_->rules.float_arithmetic && whole_ == nullptr && is_rounded(id))
      rounded_for_floats_.push_back(id);
    form.value = dequantized(*form.scaled, id, reader);
  }
  if (!form.value.valid() && form.deferred)
    add_over_floats(*this, *form.deferred->node, form.deferred->reason);
  if (!form.value.valid()) form.value = copied_constant(source_->value(id));
  return form.value;
}

// Adds the dequantize node of a number that is read as a float. The float is NaN where x is NaN, and minus
// infinity where x is.
ValueId ValueMap::dequantized(const ScaledInteger& x, ValueId id, IntegerBuilder& reader) {
  const bool is_weight = made_->graph.value(x.id).kind == ValueKind::kConstant;
  const ScaledInteger y = is_weight ? x : with_one_scale(reader, x);
  const TensorType& float_type = source_->type(id);
  const DType dtype = has_integer_form(float_type.dtype) ? float_type.dtype : DType::kF32;
  const auto attrs = attrs_of_qparams<DequantizeAttrs>(dtype, full_range_qparams(reader, y));
  const ValueId operands[] = {y.id};
  const Node* producer = source_->producer(id);
  const OriginRef& origin = producer != nullptr ? producer->origin : reader.origin();
  ValueId made = made_->graph.add(Op::kDequantize, attrs, operands, origin, source_->value(id).name);
  const ValueId finite = made;
  const auto put = [&](ValueId where, double number) {
    const double values[] = {number};
    const ConstantRef constant = make_constant("", dtype, Dims::filled(reader.type(made).rank(), 1), values);
    made = reader.elementwise(Op::kWhere, NoAttrs{}, {where, reader.constant(constant), made});
  };
  if ((y.minus_infinity || y.nan_mask) && !made_->rules.float_arithmetic && producer != nullptr)
    report_float_operator(*this, *producer,
                          std::string("its result may be ") + (y.minus_infinity ? "minus infinity" : "NaN") +
                              ", which no integer represents");
  if (y.minus_infinity) {
    const TensorType type = reader.type(y.id);
    const ValueId least = reader.number(*y.minus_infinity, type.rank(), type.dtype);
    put(reader.binary(Op::kTosaGreaterEqual, least, y.id), -std::numeric_limits<double>::infinity());
  }
  if (y.nan_mask) put(*y.nan_mask, std::numeric_limits<double>::quiet_NaN());
  if (made != finite) {
    made_->graph.try_rename(finite, source_->value(id).name + ".finite");
    made_->graph.try_rename(made, source_->value(id).name);
  }
  return made;
}

ValueId ValueMap::copied_constant(const Value& value) {
  ConstantRef constant = value.constant;
  QParamsRef qparams = value.type.qparams;
  if (qparams) {
    const std::optional<QParams> in_signed = signed_form(*qparams);
    if (in_signed && constant->storage.bound()) {
      if (in_signed->storage != constant->dtype)
        constant = recoded(*constant, in_signed->storage, -signed_offset(qparams->storage));
      qparams = std::make_shared<const QParams>(*in_signed);
    }
  }
  const ValueId made = made_->graph.add_constant(constant);
  made_->graph.set_qparams(made, qparams);
  return made;
}

ValueId ValueMap::as_float(ValueId id, IntegerBuilder& reader) {
  if (!id.valid() || !source_->type(id).qparams) return value(id, reader);
  ValueId& made = forms_[id.index()].dequantized;
  if (made.valid()) return made;
  const ValueId integers = value(id, reader);
  // The integers may belong to another value at another scale: x * 0.3 has the integers of x.
  const QParams& source = *source_->type(id).qparams;
  const QParams qparams = signed_form(source).value_or(source);
  const ValueId operands[] = {integers};
  made = made_->graph.add(Op::kDequantize, attrs_of_qparams<DequantizeAttrs>(DType::kF32, qparams), operands,
                          reader.origin(), source_->value(id).name + "_number");
  return made;
}

void ValueMap::defer(ValueId id, const Node& node, FunctionTable table, std::string reason) {
  forms_[id.index()].deferred =
      std::make_unique<const Deferred>(Deferred{std::move(table), &node, std::move(reason)});
}

const FunctionTable* ValueMap::composed_table(ValueId id,
                                              const std::function<std::optional<FunctionTable>()>& compute) {
  Form& form = forms_[id.index()];
  if (!form.is_composed) {
    form.is_composed = true;
    if (std::optional<FunctionTable> made = compute())
      form.composed = std::make_unique<const FunctionTable>(std::move(*made));
  }
  return form.composed.get();
}

}  // namespace tosaic::passes
