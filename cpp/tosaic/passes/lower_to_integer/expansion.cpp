#include "tosaic/passes/lower_to_integer/expansion.h"

#include "tosaic/passes/lower_to_integer/copied_nodes.h"
#include "tosaic/passes/lower_to_integer/node_lowering.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/pass.h"

namespace tosaic::passes {
namespace {

struct Expansion {
  Graph graph;
  std::vector<ValueId> inputs;  // by input of `graph`: the node's operand that it replaces
};

// A graph that contains only the node. An operand becomes an input of this graph, or a constant if it has no
// integers.
Expansion isolated(const RuleContext& ctx) {
  const Graph& source = ctx.node.graph();
  const Node& node = ctx.node.node();
  Expansion out;
  std::vector<ValueId> operands;
  for (const ValueId id : source.operands(node)) {
    if (!id.valid()) {
      operands.emplace_back();
      continue;
    }
    const ConstantRef& constant = source.value(id).constant;
    if (constant && !ctx.values.has_integers(id)) {
      operands.push_back(out.graph.add_constant(constant));
      continue;
    }
    TensorType type = source.type(id);
    if (type.qparams) type.dtype = DType::kF32;
    type.qparams = nullptr;
    const std::string& name = source.value(id).name;
    operands.push_back(out.graph.add_input(InputKind::kUser, name, type, name));
    out.inputs.push_back(id);
  }
  const NodeId made = out.graph.add_node(node.op, node.attrs, operands, float_types(source, node),
                                         node.origin, ctx.build.name());
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    out.graph.add_output({.value = out.graph.result(out.graph.node(made), r),
                          .kind = OutputKind::kUser,
                          .path = std::to_string(r),
                          .mutated_input = 0,
                          .boundary = {}});
  return out;
}

// A node that expands to a single one, as an adaptive pool does to a pool, has that node's result. The single
// node gets the qparams, by which rules choose their form.
void name_numbers_of_single(Graph& graph, const QParams* qparams) {
  if (qparams == nullptr || graph.nodes().size() != 1 || graph.outputs().size() != 1) return;
  const ValueId result = graph.outputs()[0].value;
  if (graph.value(result).kind == ValueKind::kResult && !graph.type(result).qparams)
    graph.set_qparams(result, std::make_shared<const QParams>(*qparams));
}

// Returns nothing if the node does not expand.
std::optional<Expansion> expansion_of(const RuleContext& ctx) {
  const Op op = ctx.node.op();
  // The expansion of a rounded quotient corrects the last bit of floats, which integers do not have.
  if (op == Op::kDiv) return std::nullopt;
  Expansion out = isolated(ctx);
  std::optional<Graph> expanded = expand_composites(
      out.graph, [&](const Graph&, const Node& node) { return rule_of(node) == nullptr || node.op == op; });
  if (!expanded) return std::nullopt;
  std::optional<Graph> folded = fold_constants(*expanded);
  out.graph = std::move(folded ? *folded : *expanded);
  name_numbers_of_single(out.graph, ctx.node.result_qparams());
  return out;
}

// True if the part computes with numbers: its result is a float, or it reads scaled integers.
bool computes_with_numbers(const ValueMap& values, const Node& part) {
  const Graph& graph = values.source();
  if (part.result_count != 0 && is_float(graph.type(graph.result(part)).dtype)) return true;
  for (const ValueId id : graph.operands(part))
    if (id.valid() && values.scaled(id) != nullptr) return true;
  return false;
}

Outcome lower_part(const RuleContext& ctx) {
  Outcome refused = lower_node(ctx);
  if (refused && !refused->by_scale && lower_as_smooth_function(ctx) == kLowered) return kLowered;
  return refused;
}

// Lowers the parts in order. Returns the results of the graph, or why one of the parts cannot be lowered.
Outcome lower_parts(ValueMap& values, IntegerBuilder& build, std::vector<RuleResult>& results) {
  const Graph& graph = values.source();
  for (const Node& part : graph.nodes()) {
    if (!computes_with_numbers(values, part))
      copy_node(values, part, build);
    else if (const Outcome refused = lower_part({values, part, build}))
      return refused;
  }
  for (const Output& output : graph.outputs()) {
    if (const ScaledInteger* const scaled = values.scaled(output.value))
      results.emplace_back(*scaled);
    else
      results.emplace_back(values.value(output.value, build));
  }
  return kLowered;
}

// Quantizes result r if it is a float constant, because the node expands to one of its operands, as a
// slice_scatter that writes everything. Refuses another float that has to be quantized.
RuleResult stored_constant(const RuleContext& ctx, std::uint32_t r, RuleResult made) {
  const ValueId* const id = std::get_if<ValueId>(&made);
  const std::optional<QParams> to = ctx.node.signed_qparams(r);
  if (id == nullptr || !to || !is_float(ctx.build.type(*id).dtype)) return made;
  const ConstantRef constant = ctx.build.known(*id);
  if (!constant || !constant->storage.bound()) return Refusal{"its result is a float that has no integers"};
  const Elements elements(*constant);
  std::vector<double> numbers(elements.size());
  for (std::size_t k = 0; k < numbers.size(); ++k) numbers[k] = elements.as_double(k);
  return ctx.quantized_numbers(numbers, constant->shape, *to);
}

// The expansion of a max pool pads with minus infinity. The result never is minus infinity, since every
// window has an element of the operand.
RuleResult without_padding(const RuleContext& ctx, RuleResult made) {
  const Op op = ctx.node.op();
  ScaledInteger* const scaled = std::get_if<ScaledInteger>(&made);
  if ((op != Op::kMaxPool && op != Op::kAdaptiveMaxPool) || scaled == nullptr || !ctx.is_scaled(0))
    return made;
  const ScaledInteger x = ctx.scaled(0);
  if (x.minus_infinity || !scaled->minus_infinity) return made;
  scaled->minus_infinity.reset();
  if (!x.axis && scaled->scale() == x.scale() && scaled->zero_point == 0) scaled->range = x.centred();
  return made;
}

}  // namespace

Outcome lower_by_parts(const RuleContext& ctx) {
  const std::optional<Expansion> expansion = expansion_of(ctx);
  if (!expansion) return Refusal{};
  return attempt([&]() -> Outcome {
    const bool moves = info(ctx.node.op()).has(kMovement) || ctx.node.op() == Op::kIndexPut;
    ValueMap parts(expansion->graph, ctx.values, ctx.node.node(), moves);
    for (std::size_t i = 0; i < expansion->inputs.size(); ++i) {
      const ValueId input = expansion->graph.inputs()[i].value, operand = expansion->inputs[i];
      if (ctx.values.has_integers(operand))
        parts.set_scaled(input, ctx.stored_value(operand));
      else
        parts.set_value(input, ctx.values.value(operand, ctx.build));
    }
    std::vector<RuleResult> results;
    // If RESCALE cannot express a scale of a part, only the expansion is ruled out: other routes are still
    // tried.
    if (const Outcome refused = attempt([&] { return lower_parts(parts, ctx.build, results); }))
      return Refusal{refused->reason};
    for (std::uint32_t r = 0; r < results.size(); ++r)
      if (Outcome refused = store_result(ctx, r, stored_constant(ctx, r, without_padding(ctx, results[r]))))
        return refused;
    return kLowered;
  });
}

}  // namespace tosaic::passes
