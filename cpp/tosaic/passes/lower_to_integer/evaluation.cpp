#include "tosaic/passes/lower_to_integer/evaluation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

// Runs a graph that has only constants and returns the value `result`.
ConstantRef folded_result(Graph& graph, ValueId result) {
  graph.add_output(
      {.value = result, .kind = OutputKind::kUser, .path = "out", .mutated_input = 0, .boundary = {}});
  std::optional<Graph> simple = expand_composites(
      graph, [](const Graph&, const Node& node) { return info(node.op).runs_as_expansion(); });
  std::optional<Graph> folded = fold_constants(simple ? *simple : graph);
  if (!folded) throw NoIntegerForm("it could not be tabulated");
  const ConstantRef& constant = folded->value(folded->outputs().front().value).constant;
  if (!constant) throw NoIntegerForm("it could not be tabulated");
  return constant;
}

ValueId dequantized(Graph& graph, ValueId id, DType to, const QParams& qparams) {
  return graph.add(Op::kDequantize, attrs_of_qparams<DequantizeAttrs>(to, qparams), std::span(&id, 1),
                   nullptr);
}

// Does the work of evaluate_stored(), but quantizes the result only if `stored` is not null.
ConstantRef evaluated(const NodeView& node, const std::vector<ConstantRef>& operands,
                      const std::vector<const QParams*>& qparams, const QParams* stored) {
  Graph graph;
  std::vector<ValueId> ids;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    ValueId id;
    if (operands[i]) {
      id = graph.add_constant(operands[i]);
      if (qparams[i] != nullptr) id = dequantized(graph, id, node.number_dtype(i), *qparams[i]);
    }
    ids.push_back(id);
  }
  ValueId result = graph.add(node.op(), node.attributes(), ids, nullptr);
  if (stored != nullptr)
    result = graph.add(Op::kQuantize, attrs_of_qparams<QuantizeAttrs>(stored->storage, *stored),
                       std::span(&result, 1), nullptr);
  return folded_result(graph, result);
}

// True for elementwise operators. A cast counts only if it is to f32 or bool, since the function is evaluated
// in f32.
bool is_function(const Node& node) {
  const OpInfo& row = info(node.op);
  if (is_foreign(node.op) || !row.has(kElementwise) || row.is_tosa || node.result_count != 1) return false;
  if (node.op == Op::kQuantize || node.op == Op::kDequantize) return false;
  if (node.op != Op::kCast) return true;
  const DType to = Graph::attrs<CastAttrs>(node).dtype;
  return to == DType::kF32 || to == DType::kBool;
}

// The same elements in another dtype.
ConstantRef converted(const ConstantRef& constant, DType dtype) {
  if (constant->dtype == dtype) return constant;
  const Elements elements(*constant);
  std::vector<double> values(elements.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = elements.as_double(i);
  return make_constant(constant->name, dtype, constant->shape, values);
}

// True for integers without qparams, and for floats that elementwise operators and views compute from them.
bool is_counted(const Graph& graph, ValueId id) {
  for (;;) {
    if (graph.type(id).qparams) return false;
    if (!is_float(graph.type(id).dtype)) return true;
    const Node* const producer = graph.producer(id);
    if (producer == nullptr || !(info(producer->op).has(kElementwise) || info(producer->op).has(kView)))
      return false;
    ValueId next;
    for (const ValueId operand : graph.operands(*producer))
      if (operand.valid() && graph.value(operand).kind != ValueKind::kConstant) next = operand;
    if (!next.valid() || producer->op == Op::kDequantize) return false;
    id = next;
  }
}

}  // namespace

ConstantRef evaluate_stored(const NodeView& node, const std::vector<ConstantRef>& operands,
                            const std::vector<const QParams*>& qparams) {
  const QParams* const in_signed = node.result_qparams();
  if (in_signed == nullptr) return evaluated(node, operands, qparams, nullptr);
  const QParams& declared = *node.result_type().qparams;
  const std::int64_t offset = signed_offset(declared.storage);
  const QParams* const stored = node.op() == Op::kQuantize ? nullptr : offset != 0 ? &declared : in_signed;
  const ConstantRef made = evaluated(node, operands, qparams, stored);
  return in_signed->storage == made->dtype ? made : recoded(*made, in_signed->storage, -offset);
}

ConstantRef evaluate_unrounded(const NodeView& node, const std::vector<ConstantRef>& operands,
                               const std::vector<const QParams*>& qparams) {
  return evaluated(node, operands, qparams, nullptr);
}

ConstantRef evaluate_in_double(Op op, const Attrs& attributes, const std::vector<double>& numbers) {
  Graph graph;
  const ValueId x = graph.add_constant(
      make_constant("", DType::kF64, {static_cast<std::int64_t>(numbers.size())}, numbers));
  return folded_result(graph, graph.add(op, attributes, std::span(&x, 1), nullptr));
}

std::vector<ValueId> deciding_values(const RuleContext& ctx) {
  constexpr int kFarthest = 32;  // the most nodes of a chain; longer chains are seldom smooth functions
  const Graph& graph = ctx.node.graph();
  std::vector<ValueId> out;
  std::map<std::size_t, ValueId> open;  // values that the result depends on, in the order of the graph
  const auto explain = [&](const Node& node) {
    for (const ValueId id : graph.operands(node)) {
      if (!id.valid()) continue;
      const Value& value = graph.value(id);
      if (value.kind != ValueKind::kConstant) {
        open.emplace(id.index(), id);
      } else if (num_elements(value.type.shape) != 1 || !value.constant->storage.bound() ||
                 (value.type.qparams && value.type.qparams->axis)) {
        return false;
      }
    }
    return !open.empty();
  };
  if (!is_function(ctx.node.node()) || !explain(ctx.node.node())) return out;
  for (int far = 0; far < kFarthest; ++far) {
    const ValueId last = open.rbegin()->second;
    const TensorType& type = graph.type(last);
    if (far != 0 && open.size() == 1 && ctx.values.has_integers(last) &&
        type.shape == ctx.node.result_type().shape)
      out.push_back(last);
    const Node* const producer = graph.producer(last);
    if (type.qparams || producer == nullptr || !is_function(*producer)) break;
    open.erase(last.index());
    if (!explain(*producer)) break;
  }
  return out;
}

ConstantRef evaluate_from(const NodeView& node, ValueId variable, const ConstantRef& at) {
  const Graph& source = node.graph();
  Graph graph;
  std::map<std::size_t, ValueId> made{{variable.index(), graph.add_constant(at)}};
  const std::function<ValueId(ValueId)> take = [&](ValueId id) -> ValueId {
    if (!id.valid()) return id;
    if (const auto known = made.find(id.index()); known != made.end()) return known->second;
    const Value& value = source.value(id);
    ValueId out;
    if (value.kind == ValueKind::kConstant) {
      auto one = std::make_shared<Constant>(*value.constant);
      one->shape = {1};
      out = graph.add_constant(is_float(one->dtype) ? converted(one, DType::kF32) : one);
      if (const QParams* const qparams = value.type.qparams.get())
        out = dequantized(graph, out, DType::kF32, *qparams);
    } else {
      const Node& producer = *source.producer(id);
      std::vector<ValueId> operands;
      for (const ValueId operand : source.operands(producer)) operands.push_back(take(operand));
      out = graph.add(producer.op, *producer.attrs, operands, nullptr);
    }
    made.emplace(id.index(), out);
    return out;
  };
  return folded_result(graph, take(node.result()));
}

void require_fine_counts(const RuleContext& ctx, ValueId variable, const ScaledInteger& x, double unit) {
  constexpr double kFewest = 256;
  if (ctx.node.eventual_qparams() || !is_counted(ctx.node.graph(), variable) ||
      !ctx.values.is_only_returned(ctx.node.node()))
    return;
  std::vector<double> least;
  for (const std::int64_t step : {-1, 0, 1}) {
    const std::int64_t q = std::clamp(x.zero_point + step, x.range.low, x.range.high);
    least.push_back(static_cast<double>(q - x.zero_point) * x.scale());
  }
  const ConstantRef made = evaluate_from(ctx.node, variable, make_constant("", DType::kF32, {3}, least));
  const Elements f(*made);
  double size = 0, lost = 0;
  for (std::size_t i = 0; i < least.size(); ++i) {
    const double number = f.as_double(i);
    if (!std::isfinite(number)) continue;
    size = std::max(size, std::abs(number));
    lost = std::max(lost, std::abs(std::nearbyint(number / unit) * unit - number));
  }
  if (lost > 0 && size < kFewest * unit) throw NoIntegerForm("its results span too many orders of magnitude");
}

}  // namespace tosaic::passes
