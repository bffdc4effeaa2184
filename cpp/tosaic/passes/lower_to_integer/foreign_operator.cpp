#include "tosaic/passes/lower_to_integer/foreign_operator.h"

#include <algorithm>

#include "tosaic/ir/json_object.h"
#include "tosaic/ir/lexical.h"
#include "tosaic/ir/quantized.h"

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
  out += ",\"axis\":" + (qparams->axis ? std::to_string(*qparams->axis) : std::string("null"));
  if (qparams->groups) list("groups", std::vector{qparams->groups->axis, qparams->groups->size});
  out += "}";
}

// The arguments, a JSON object, with an entry "qparams".
std::string with_qparams(const std::string& arguments, const std::vector<QParamsRef>& operands,
                         const std::vector<QParamsRef>& results) {
  std::string entry = "{";
  const auto list = [&entry](const char* name, const std::vector<QParamsRef>& all) {
    entry += std::string("\"") + name + "\":[";
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i != 0) entry += ',';
      append_qparams(entry, all[i]);
    }
    entry += ']';
  };
  list("operands", operands);
  entry += ',';
  list("results", results);
  return with_entry(arguments, "qparams", entry + "}");
}

}  // namespace

bool computes_with_integers(const Graph& source, const Node& node) {
  if (!has_integer_kernel(node)) return false;
  const auto is_stored = [&](ValueId id) {
    const TensorType& type = source.type(id);
    return !is_float(type.dtype) && (!type.qparams || signed_form(*type.qparams));
  };
  const auto is_known_float = [&](ValueId id) {  // a constant parameter, e.g. the scale of another operand
    return source.value(id).kind == ValueKind::kConstant && is_float(source.type(id).dtype);
  };
  for (const ValueId id : source.operands(node))
    if (id.valid() && !is_stored(id) && !is_known_float(id)) return false;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    if (!is_stored(source.result(node, r))) return false;
  return true;
}

void lower_foreign(ValueMap& values, const Node& node, IntegerBuilder& build) {
  const Graph& source = values.source();
  Graph& out = values.made().graph;
  std::vector<ValueId> operands;
  std::vector<QParamsRef> of_operands, of_results;
  std::vector<TensorType> types;
  for (const ValueId id : source.operands(node)) {
    operands.push_back(values.value(id, build));
    of_operands.push_back(out.type(operands.back()).qparams);
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    TensorType type = source.type(source.result(node, r));
    if (type.qparams) {
      type.qparams = std::make_shared<const QParams>(*signed_form(*type.qparams));
      type.dtype = type.qparams->storage;
    }
    of_results.push_back(type.qparams);
    types.push_back(std::move(type));
  }
  OpaqueAttrs attrs = Graph::attrs<OpaqueAttrs>(node);
  // The axis of per-channel qparams is an axis in torch's order, which layout kAny may permute.
  const auto has_axis = [](const QParamsRef& qparams) { return qparams && qparams->axis.has_value(); };
  if (attrs.layout == ForeignLayout::kAny &&
      (std::ranges::any_of(of_operands, has_axis) || std::ranges::any_of(of_results, has_axis)))
    attrs.layout = ForeignLayout::kRowMajor;
  attrs.arguments = with_qparams(attrs.arguments, of_operands, of_results);
  const NodeId made =
      out.add_node(Op::kOpaque, share(std::move(attrs)), operands, types, node.origin, build.name());
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source.result(node, r), id = out.result(out.node(made), r);
    values.set_value(result, id);
    out.try_rename(id, source.value(result).name);
  }
}

}  // namespace tosaic::passes
