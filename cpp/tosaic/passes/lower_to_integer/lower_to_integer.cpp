// lower-to-integer: makes operators over quantized values compute with the integers.
//
//   %c: i8 q(..) = conv(%x: i8 q(..), %w: i8 q(..), %b)
//     ->  %s: i32 = integer_conv(%x, %w, %b') {input_zp=..}
//         %c: i8 = rescale(%s) {multiplier=[..] shift=[..]}
//
// Every result is within one unit of the result of torch's q/dq graph for the same integers (results of 16
// bits: within the bound of the operator's rule). The executor, the TOSA reference model and hardware compute
// the same bits. No integer overflows: the range of every value is known, and values for which a multiplier
// is not defined are clamped first. An operator without integer arithmetic kStays an operator over floats
// between dequantize and quantize nodes.

#include <utility>

#include "tosaic/passes/lower_to_integer/byte_functions.h"
#include "tosaic/passes/lower_to_integer/integer_lowering.h"
#include "tosaic/passes/lower_to_integer/lower_to_integer.h"

namespace tosaic::passes {
namespace {

using Rule = Lowered (*)(IntegerLowering&);

constexpr Rule kNoIntegerRule = nullptr;

// The rule of an operator, or null. Without a rule, an elementwise operator may still become a table or
// another function, and a composite may be expanded.
Rule rule_of(const Node& node) {
  if (node.op == Op::kIndexPut && Graph::attrs<IndexPutAttrs>(node).accumulate) return kNoIntegerRule;
  switch (node.op) {
#define TOSAIC_OP(Name, text, AttrsT, operands, results, traits, int16, inference, error, kernel, expansion, \
                  legalization, integer_rule)                                                                \
  case Op::Name:                                                                                             \
    return integer_rule;
#define TOSAIC_TOSA_OP(Name, ...) case Op::Name:
#include "tosaic/ir/ops.def"
    return kNoIntegerRule;
  }
  return kNoIntegerRule;
}

}  // namespace

// Stores what a rule returned: rounded to the qparams of the result or, if it has none, as a Real.
void IntegerLowering::give(const Node& node, std::uint32_t result, const Lowered& made) {
  const ValueId value = source_->result(node, result);
  Form& form = forms_[value.index()];
  const Real* real = std::get_if<Real>(&made);
  if (real == nullptr) {
    form.id = std::get<ValueId>(made);
  } else if (target_) {
    form.id = store(*real, *target_);
    if (real->undefined) form.id = with_nan(form.id, *real->undefined);
  } else if (!stands_for_number(source_->type(value).dtype)) {
    throw NoIntegerForm("its result is no f32, f16 or bf16");
  } else {
    form.real = *real;
    return;
  }
  if (target_ && !out_.type(form.id).qparams) {
    if (out_.value(form.id).kind == ValueKind::kConstant) return;
    out_.set_qparams(form.id, std::make_shared<const QParams>(*target_));
    out_.try_rename(form.id, source_->value(value).name);
  }
}

// Evaluates an elementwise operator over constants alone, if its result is quantized; else false.
bool IntegerLowering::evaluate_known(const Node& node) {
  if (node.operand_count == 0 || !target_ || !info(node.op).has(kElementwise) || info(node.op).is_tosa)
    return false;
  std::vector<ConstantRef> constants;
  std::vector<const QParams*> labels;
  for (std::size_t i = 0; i < operand_count(); ++i) {
    if (!has(i) || !is_constant(i)) return false;
    const Value& value = source_->value(operand(i));
    if (!value.constant->storage.bound()) return false;
    constants.push_back(value.constant);
    labels.push_back(value.type.qparams.get());
  }
  give(node, 0, out_.add_constant(evaluate_stored(constants, labels)));
  return true;
}

bool IntegerLowering::lower_by_rule(const Node& node) {
  if (node.result_count != 1) return false;
  const QParamsRef& label = result_type().qparams;
  target_ = label ? carried(*label) : std::nullopt;
  if (evaluate_known(node)) return true;
  const Rule rule = rule_of(node);
  if (target_ || rule == nullptr) {  // a result without qparams has more bits by arithmetic than by a table
    if (const std::optional<Lowered> function = tabulated(*this)) {
      give(node, 0, *function);
      return true;
    }
  }
  if (rule == nullptr) {
    const std::optional<Lowered> function = integer_function(*this);
    if (function) give(node, 0, with_exceptions(*function));
    return function.has_value();
  }
  give(node, 0, with_exceptions(rule(*this)));
  return true;
}

// Expands the node in a graph of its own, whose inputs are the node's operands, and lowers the parts. False
// if the node does not expand.
bool IntegerLowering::lower_expanded(const Node& node) {
  // The expansion of a rounded quotient corrects the last bit of floats, which integers do not have.
  if (node.op == Op::kDiv) return false;
  Graph alone;
  std::vector<ValueId> operands, inputs;
  for (const ValueId id : source_->operands(node)) {
    if (!id.valid()) {
      operands.emplace_back();
      continue;
    }
    TensorType type = source_->type(id);
    const bool is_real = type.qparams || forms_[id.index()].real;
    const ConstantRef& constant = source_->value(id).constant;
    if (constant && !is_real) {
      operands.push_back(alone.add_constant(constant));
      continue;
    }
    if (type.qparams) type.dtype = DType::kF32;
    type.qparams = nullptr;
    operands.push_back(
        alone.add_input(InputKind::kUser, source_->value(id).name, type, source_->value(id).name));
    inputs.push_back(id);
  }
  const NodeId made = alone.add_node(node.op, node.attrs, operands, float_types(node), node.origin, name_);
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    alone.add_output({.value = alone.result(alone.node(made), r),
                      .kind = OutputKind::kUser,
                      .path = std::to_string(r),
                      .mutated_input = 0,
                      .border = {}});
  const std::optional<Graph> expanded = expand_composites(alone, [&](const Graph&, const Node& inner) {
    return rule_of(inner) == nullptr || inner.op == node.op;
  });
  if (!expanded) return false;
  const std::optional<Graph> folded = fold_constants(*expanded);
  lower_inside(folded ? *folded : *expanded, inputs, node);
  return true;
}

void IntegerLowering::lower_part(const Node& part) {
  try {
    lower_somehow(part);
  } catch (const NoIntegerForm&) {
    node_ = &part;
    if (!lower_composed(part)) throw;
  }
}

void IntegerLowering::lower_inside(const Graph& inner, const std::vector<ValueId>& inputs, const Node& node) {
  std::vector<Form> forms(inner.values().size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Form& form = forms[inner.inputs()[i].value.index()];
    if (source_->type(inputs[i]).qparams || forms_[inputs[i].index()].real) {
      form.real = real_of(inputs[i]);
    } else {
      form.id = mapped(inputs[i]);
    }
  }
  const Graph* const outer = std::exchange(source_, &inner);
  std::swap(forms, forms_);
  std::vector<Lowered> results;
  std::optional<NoIntegerForm> failed;
  try {
    for (const Node& part : inner.nodes()) {
      node_ = &part;
      const bool is_number = part.result_count != 0 && is_float(inner.type(inner.result(part)).dtype);
      bool reads_numbers = false;
      for (const ValueId id : inner.operands(part))
        reads_numbers = reads_numbers || (id.valid() && forms_[id.index()].real);
      if (!is_number && !reads_numbers) {
        keep(part);
      } else {
        lower_part(part);
      }
    }
    for (const Output& output : inner.outputs()) {
      const Form& form = forms_[output.value.index()];
      results.push_back(form.real ? Lowered(*form.real) : Lowered(mapped(output.value)));
    }
  } catch (const NoIntegerForm& why) {
    failed = why;
  } catch (const QuantMismatch& why) {
    failed = NoIntegerForm(why.parts().what);
  }
  std::swap(forms, forms_);
  source_ = outer;
  node_ = &node;
  if (failed) throw NoIntegerForm(*failed);
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const QParamsRef& label = source_->type(source_->result(node, r)).qparams;
    target_ = label ? carried(*label) : std::nullopt;
    give(node, r, results[r]);
  }
}

IntegerRules integer_rules(const target::TargetSpec& target) {
  return {.float_arithmetic = target.has(target::Profile::kFp),
          .wide_integers = target.has(target::Extension::kInt16),
          .rounding_mode = target.has(target::Extension::kDoubleRound) ? RoundingMode::kDoubleRound
                                                                       : RoundingMode::kSingleRound};
}

LoweredToInteger lower_to_integer(const Graph& graph, const IntegerRules& rules) {
  IntegerLowering lowering(graph, rules);
  Graph out = lowering.run();
  if (std::optional<Graph> joined = join_byte_functions(out)) out = std::move(*joined);
  std::optional<Graph> clean = dead_code(out);
  return {clean ? std::move(*clean) : std::move(out), lowering.left()};
}

}  // namespace tosaic::passes
