// Foreign operators that compute with integers (attribute `integers` of opaque nodes).
//
//   %y: i8 {qparams} = opaque(%x: i8 {qparams}) {arguments="{..}"}   at stage quantized: q(op(dq(x)))
//     ->
//   %y: i8 {qparams} = opaque(%x: i8 {qparams}) {arguments="{.., "qparams": {"operands": [..], "results": [..]}}"}
//
// All float operands and results must have qparams, which the arguments then hold as JSON, so that the
// kernel, and the reader of the tosa.custom, know which numbers the integers represent. Otherwise the
// operator stays between dequantize and quantize.

#include "tosaic/ir/lexical.h"
#include "tosaic/passes/lower_to_integer/integer_lowering.h"

namespace tosaic::passes {
namespace {

void append_qparams(std::string& out, const QParamsRef& qparams) {
  if (!qparams) {
    out += "null";
    return;
  }
  const auto list = [&out](const char* name, const auto& numbers) {
    out += std::string(",\"") + name + "\":[";
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (i != 0) out += ',';
      append_number(out, numbers[i]);
    }
    out += ']';
  };
  out += "{\"storage\":\"" + std::string(to_string(qparams->storage)) + "\",\"qmin\":";
  append_number(out, qparams->qmin);
  out += ",\"qmax\":";
  append_number(out, qparams->qmax);
  list("scales", qparams->scales);
  list("zero_points", qparams->zero_points);
  out += ",\"axis\":" + (qparams->axis ? std::to_string(*qparams->axis) : std::string("null")) + "}";
}

// The arguments, a JSON object, with an entry "qparams".
std::string with_qparams(const std::string& arguments, const std::vector<QParamsRef>& operands,
                         const std::vector<QParamsRef>& results) {
  std::string out = arguments.substr(0, arguments.rfind('}'));
  const auto list = [&out](const char* name, const std::vector<QParamsRef>& all) {
    out += std::string("\"") + name + "\":[";
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i != 0) out += ',';
      append_qparams(out, all[i]);
    }
    out += ']';
  };
  out += ",\"qparams\":{";
  list("operands", operands);
  out += ',';
  list("results", results);
  return out + "}}";
}

}  // namespace

bool IntegerLowering::computes_with_integers(const Node& node) const {
  if (!has_integer_kernel(node)) return false;
  const auto is_stored = [this](ValueId id) {
    const TensorType& type = source_->type(id);
    return !is_float(type.dtype) && (!type.qparams || carried(*type.qparams));
  };
  for (const ValueId id : source_->operands(node))
    if (id.valid() && !is_stored(id)) return false;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (!is_stored(source_->result(node, r))) return false;
  return true;
}

void IntegerLowering::lower_foreign(const Node& node) {
  std::vector<ValueId> operands;
  std::vector<QParamsRef> of_operands, of_results;
  std::vector<TensorType> types;
  for (const ValueId id : source_->operands(node)) {
    operands.push_back(mapped(id));
    of_operands.push_back(out_.type(operands.back()).qparams);
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    TensorType type = source_->type(source_->result(node, r));
    if (type.qparams) {
      type.qparams = std::make_shared<const QParams>(*carried(*type.qparams));
      type.dtype = type.qparams->storage;
    }
    of_results.push_back(type.qparams);
    types.push_back(std::move(type));
  }
  OpaqueAttrs attrs = Graph::attrs<OpaqueAttrs>(node);
  attrs.arguments = with_qparams(attrs.arguments, of_operands, of_results);
  const NodeId made =
      out_.add_node(Op::kOpaque, share(std::move(attrs)), operands, types, node.origin, name_);
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source_->result(node, r);
    forms_[result.index()].id = out_.result(out_.node(made), r);
    out_.try_rename(forms_[result.index()].id, source_->value(result).name);
  }
}

}  // namespace tosaic::passes
