#include "tosaic/passes/lower_to_integer/graph_lowering.h"

#include <algorithm>

#include "tosaic/ir/control_flow.h"
#include "tosaic/ir/quantized.h"
#include "tosaic/passes/lower_to_integer/copied_nodes.h"
#include "tosaic/passes/lower_to_integer/foreign_operator.h"
#include "tosaic/passes/lower_to_integer/function_table.h"
#include "tosaic/passes/lower_to_integer/node_lowering.h"
#include "tosaic/passes/lower_to_integer/refused_qparams.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"

namespace tosaic::passes {
namespace {

// True if each reader of the result has another operand that is dequantized.
bool is_read_beside_integers(const NodeView& node) {
  const Graph& graph = node.graph();
  const auto is_quantized = [&](ValueId id) {
    const Node* const producer = id.valid() && id != node.result() ? graph.producer(id) : nullptr;
    return producer != nullptr && producer->op == Op::kDequantize;
  };
  return std::ranges::all_of(graph.users(node.result()), [&](NodeId user) {
    return std::ranges::any_of(graph.operands(graph.node(user)), is_quantized);
  });
}

// By value: true if every reader quantizes the value, directly or after other operators, and neither the
// value nor a float between is one of `floats`.
std::vector<bool> values_that_end_quantized(const Graph& graph, const std::vector<bool>& floats) {
  std::vector<bool> ends = floats;
  ends.flip();
  for (const Output& output : graph.outputs()) ends[output.value.index()] = false;
  const std::span<const Node> nodes = graph.nodes();
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const Node& node = nodes[n];
    if (node.op == Op::kQuantize && !Graph::attrs<QuantizeAttrs>(node).axis) continue;
    bool results_end = !is_foreign(node.op) && node.regions.empty() && node.op != Op::kQuantize;
    for (std::uint32_t r = 0; r < node.result_count; ++r) {
      const ValueId result = graph.result(node, r);
      const TensorType& type = graph.type(result);
      results_end = results_end && (type.qparams || !is_float(type.dtype) || ends[result.index()]);
    }
    if (results_end) continue;
    for (const ValueId id : graph.operands(node))
      if (id.valid()) ends[id.index()] = false;
  }
  return ends;
}

// The attributes of a quantize or dequantize node for integers in signed form.
template <class A>
A in_signed_form(A attrs, DType storage) {
  const std::int64_t offset = signed_offset(storage);
  attrs.qmin -= offset;
  attrs.qmax -= offset;
  for (std::int64_t& zero_point : attrs.zero_points) zero_point -= offset;
  return attrs;
}

}  // namespace

GraphLowering::GraphLowering(const Graph& source, const IntegerRules& rules, const std::vector<bool>& floats)
    : source_(source),
      made_{{}, rules},
      values_(source, made_),
      ends_quantized_(values_that_end_quantized(source, floats)) {
  made_.graph.name = source.name;
  made_.graph.stage = Stage::kInteger;
}

LoweredToInteger GraphLowering::run() {
  add_inputs();
  for (const Node& node : source_.nodes()) lower(node);
  add_outputs();
  return {std::move(made_.graph), std::move(made_.float_operators)};
}

// Adds the inputs. A node directly after an unsigned input converts it to signed form.
void GraphLowering::add_inputs() {
  Graph& out = made_.graph;
  for (const Input& input : source_.inputs()) {
    const Value& value = source_.value(input.value);
    const TensorType& type = value.type;
    ValueId id = out.add_input(input.kind, value.name, type, input.path, input.boundary, input.initial);
    const std::optional<QParams> in_signed = type.qparams ? signed_form(*type.qparams) : std::nullopt;
    if (in_signed && in_signed->storage != type.dtype) {
      IntegerBuilder build(made_, nullptr, value.name);
      id = with_other_sign(build, id, type.dtype, in_signed->storage);
      out.set_qparams(id, std::make_shared<const QParams>(*in_signed));
    }
    values_.set_value(input.value, id);
  }
}

// The nodes that convert outputs have the origin of the last node of the source graph.
void GraphLowering::add_outputs() {
  const std::span<const Node> nodes = source_.nodes();
  const OriginRef origin = nodes.empty() ? nullptr : nodes.back().origin;
  std::string name = nodes.empty() ? "" : source_.node_name(nodes.back());
  for (Output output : source_.outputs()) {
    const TensorType& type = source_.type(output.value);
    number_deferred(output.value);
    IntegerBuilder reader(made_, origin, name);
    output.value = values_.value(output.value, reader);
    const DType dtype = made_.graph.type(output.value).dtype;
    if (type.dtype != dtype && type.qparams) {
      name = output.path;
      IntegerBuilder build(made_, origin, name);
      output.value = with_other_sign(build, output.value, dtype, type.dtype);
    }
    made_.graph.add_output(std::move(output));
  }
}

// ---- routes ----

void GraphLowering::lower(const Node& node) {
  IntegerBuilder build(made_, node.origin, source_.node_name(node));
  const RuleContext ctx(values_, node, build);
  switch (route_of(ctx.node)) {
    case Route::kQuantize:
      return lower_quantize(ctx);
    case Route::kDequantize:
      return lower_dequantize(ctx);
    case Route::kForeign:
      number_deferred_operands(node);
      return lower_foreign(values_, node, build);
    case Route::kCopied:
      number_deferred_operands(node);
      return copy_node(values_, node, build);
    case Route::kComputed:
      return lower_computed(ctx);
  }
}

GraphLowering::Route GraphLowering::route_of(const NodeView& view) const {
  const Node& node = view.node();
  if (node.op == Op::kQuantize) return Route::kQuantize;
  if (node.op == Op::kDequantize) return Route::kDequantize;
  if (computes_with_integers(source_, node)) return Route::kForeign;
  if (runs_on_integers(source_, node)) return Route::kCopied;
  const bool computes = computes_dequantized(source_, node) || continues_numbers(node) || makes_numbers(view);
  return computes ? Route::kComputed : Route::kCopied;
}

// True if scaled integers may replace a float: all readers quantize it in the end, or the target has no
// floats.
bool GraphLowering::may_be_scaled(ValueId id) const {
  return has_integer_form(source_.type(id).dtype) &&
         (!made_.rules.float_arithmetic || ends_quantized_[id.index()]);
}

// True for an index_put or scatter of float constants, if other operands, such as the indices, are computed.
bool GraphLowering::places_constants(const NodeView& view) const {
  const auto is_constant = [&](ValueId id) {
    return !id.valid() || source_.value(id).kind == ValueKind::kConstant;
  };
  const auto operands = source_.operands(view.node());
  const auto is_moved = [&](ValueId id) { return is_constant(id) || !is_float(source_.type(id).dtype); };
  return may_be_scaled(view.result()) && std::ranges::all_of(operands, is_moved) &&
         !std::ranges::all_of(operands, is_constant);
}

// True for a float that an elementwise operator computes from integers, bools and constants: a quotient of
// integers, a product with a float constant, a square root. On a target without floats, also true for
// comparisons with a float constant.
bool GraphLowering::computes_from_counts(const NodeView& view) const {
  const OpInfo& row = info(view.op());
  if (!row.has(kElementwise) || row.is_tosa || view.op() == Op::kCast || view.node().result_count != 1)
    return false;
  const bool compares = row.has(kComparison) && !made_.rules.float_arithmetic;
  if (!compares && (!is_float(view.result_type().dtype) || !may_be_scaled(view.result()))) return false;
  bool any = false, has_float = false;
  for (const ValueId id : source_.operands(view.node())) {
    if (!id.valid()) continue;
    const bool is_constant = source_.value(id).kind == ValueKind::kConstant;
    const DType dtype = source_.type(id).dtype;
    if (!is_constant && !is_integer(dtype) && dtype != DType::kBool) return false;
    any = any || !is_constant;
    has_float = has_float || is_float(dtype);
  }
  return any && (has_float || !compares);
}

// True for constants that a condition selects or that indices place, and for a cast of bools or integers,
// whose result may be scaled integers. Integers of 32 or 64 bits also need a known range, or readers that
// bound them.
bool GraphLowering::makes_numbers(const NodeView& view) const {
  if (view.op() == Op::kWhere)
    return view.is_constant(1) && view.is_constant(2) && may_be_scaled(view.result()) &&
           (!made_.rules.float_arithmetic || is_read_beside_integers(view));
  if (view.op() == Op::kIndexPut || view.op() == Op::kScatter) return places_constants(view);
  if (computes_from_counts(view)) return true;
  if (view.op() != Op::kCast) return false;
  const DType from = view.operand_type(0).dtype;
  if (is_float(from) || view.is_constant(0) || !may_be_scaled(view.result())) return false;
  if (byte_size(from) < 4 || view.largest_quantized()) return true;
  const std::optional<analysis::RelevantNumbers> noticed = values_.noticed(view.node());
  if (noticed && !noticed->by_row && noticed->bounds.low <= noticed->bounds.high &&
      magnitude(noticed->bounds).high < 0x1p29)
    return true;
  const std::optional<ValueRange> known = values_.range_of_integers(view.operand(0));
  return known && known->low > -(1 << 29) && known->high < 1 << 29;
}

// True for an operator whose float operands are ScaledIntegers, deferred floats or constants (but not all of
// them constants), and whose float results may be scaled integers.
bool GraphLowering::continues_numbers(const Node& node) const {
  if (is_foreign(node.op) || !node.regions.empty() || info(node.op).has(kEffect)) return false;
  bool any = false;
  for (const ValueId id : source_.operands(node)) {
    if (!id.valid() || !is_float(source_.type(id).dtype)) continue;
    const bool is_number = values_.scaled(id) != nullptr || values_.deferred_table(id) != nullptr;
    if (!is_number && source_.value(id).kind != ValueKind::kConstant) return false;
    any = any || is_number;
  }
  for (std::uint32_t r = 0; r < node.result_count; ++r) {
    const ValueId result = source_.result(node, r);
    if (is_float(source_.type(result).dtype) && !may_be_scaled(result)) return false;
  }
  return any;
}

// ---- quantize and dequantize ----

// The result becomes a ScaledInteger. The node stays if its integers have no signed form, or if they have
// per-channel scales and are not constants. The node's own scale and zero point are used, even if the value's
// qparams differ.
void GraphLowering::lower_dequantize(const RuleContext& ctx) {
  const ValueId from = ctx.node.operand(0), result = ctx.node.result();
  const TensorType& type = source_.type(from);
  const auto& attrs = ctx.node.attrs<DequantizeAttrs>();
  const bool has_signed_form = type.qparams && signed_form(*type.qparams);
  std::optional<QParams> read;
  if (has_signed_form)
    read = signed_form({type.dtype, type.qparams->qmin, type.qparams->qmax, attrs.axis, attrs.scales,
                        attrs.zero_points, attrs.groups});
  const bool is_weight = attrs.axis && ctx.node.is_constant(0);
  if (read && has_integer_form(attrs.dtype) && (!attrs.axis || is_weight)) {
    // ValueMap adds the node if a reader needs the float
    if (std::optional<ScaledInteger> scaled = stored_integers(ctx.build, ctx.as_is(0), *read)) {
      values_.set_scaled(result, *std::move(scaled));
      return;
    }
  }
  if (type.qparams && !read)
    report_float_operator(values_, ctx.node.node(), refused_qparams("its operand", *type.qparams));
  const ValueId operands[] = {ctx.as_is(0)};
  values_.set_value(
      result, made_.graph.add(Op::kDequantize, has_signed_form ? in_signed_form(attrs, type.dtype) : attrs,
                              operands, ctx.build.origin(), ctx.build.name()));
}

// Rounds a ScaledInteger, or emits the table of a deferred float. Over other floats, the quantize node stays.
void GraphLowering::lower_quantize(const RuleContext& ctx) {
  const ValueId from = ctx.node.operand(0), result = ctx.node.result();
  const TensorType& type = source_.type(result);
  const QParams* const to = ctx.node.result_qparams();
  if (to != nullptr && !type.qparams->axis) {
    if (values_.scaled(from) != nullptr) {
      static_cast<void>(store_result(ctx, 0, ctx.scaled(0)));
      return;
    }
    if (reads_table(ctx.node.node()) && lower_tables(ctx)) return;
    number_deferred(from);
    if (values_.scaled(from) != nullptr) {
      static_cast<void>(store_result(ctx, 0, ctx.scaled(0)));
      return;
    }
  }
  QuantizeAttrs attrs = ctx.node.attrs<QuantizeAttrs>();
  if (to != nullptr) {
    attrs = in_signed_form(attrs, type.dtype);
    attrs.dtype = to->storage;
  }
  const ValueId operands[] = {ctx.as_is(0)};
  const ValueId made = made_.graph.add(Op::kQuantize, attrs, operands, ctx.build.origin(), ctx.build.name());
  values_.set_value(result, made);
  if (type.qparams)
    made_.graph.set_qparams(made, to != nullptr ? std::make_shared<const QParams>(*to) : type.qparams);
}

// ---- nodes that compute with numbers ----

void GraphLowering::lower_computed(const RuleContext& ctx) {
  const Node& node = ctx.node.node();
  if (reads_table(node) && lower_tables(ctx)) return;
  number_deferred_operands(node);
  Outcome refused = check_operands_and_results(ctx.node);
  if (!refused) refused = lower_node(ctx);
  if (!refused || defer(ctx, refused->reason)) return;
  const auto has_number_result = [&](std::uint32_t r) {
    return ctx.node.result_type(r).qparams || may_be_scaled(ctx.node.result(r));
  };
  bool has_number_results = true;
  for (std::uint32_t r = 0; r < node.result_count; ++r)
    has_number_results = has_number_results && has_number_result(r);
  if (has_number_results && !refused->by_scale && lower_as_smooth_function(ctx) == kLowered) return;
  add_over_floats(values_, node, refused->reason);
}

// Refuses a node with a float operand without integers, or a result that cannot have integers.
Outcome GraphLowering::check_operands_and_results(const NodeView& view) const {
  for (const ValueId id : source_.operands(view.node()))
    if (id.valid() && is_float(source_.type(id).dtype) && !values_.has_integers(id) &&
        source_.value(id).kind != ValueKind::kConstant)
      return Refusal{"operand '" + source_.value(id).name + "' is a float"};
  for (std::uint32_t r = 0; r < view.node().result_count; ++r) {
    const TensorType& type = view.result_type(r);
    const std::string& name = source_.value(view.result(r)).name;
    if (!type.qparams && is_float(type.dtype) && !may_be_scaled(view.result(r)))
      return Refusal{"result '" + name + "' is read as a float"};
    if (!type.qparams) continue;
    const std::optional<QParams> qparams = view.signed_qparams(r);
    if (!qparams) return Refusal{refused_qparams("result '" + name + "'", *type.qparams)};
    if (qparams->axis) return Refusal{"result '" + name + "' is quantized by channel"};
  }
  return kLowered;
}

bool GraphLowering::reads_table(const Node& node) const {
  const std::span<const ValueId> operands = source_.operands(node);
  return std::any_of(operands.begin(), operands.end(),
                     [&](ValueId id) { return id.valid() && values_.deferred_table(id) != nullptr; });
}

// Lowers a node that reads FunctionTables: to another FunctionTable, or to a table if the result is quantized
// or a bool. Returns false if neither is possible.
bool GraphLowering::lower_tables(const RuleContext& ctx) {
  if (ctx.node.node().result_count != 1) return false;
  const TensorType& type = ctx.node.result_type();
  if (!type.qparams && is_float(type.dtype)) return defer(ctx, "");
  const QParams* const to = ctx.node.result_qparams();
  if (type.qparams && (to == nullptr || to->axis)) return false;
  const std::optional<RuleResult> made = value_or_nothing([&] { return tabulated_composition(ctx); });
  return made && store_result(ctx, 0, *made) == kLowered;
}

// Stores a float result as a FunctionTable for its readers, instead of adding a node. Returns false if the
// result is not such a function. `reason` says why no rule could lower the node.
bool GraphLowering::defer(const RuleContext& ctx, const std::string& reason) {
  if (ctx.node.node().result_count != 1) return false;
  const ValueId result = ctx.node.result();
  if (ctx.node.result_type().qparams || !may_be_scaled(result)) return false;
  std::optional<FunctionTable> table = value_or_nothing([&] { return function_table(ctx); });
  if (!table) return false;
  values_.defer(result, ctx.node.node(), std::move(*table), reason);
  return true;
}

// On a target without floats: emits the table of a deferred float, if its numbers are finite, because the
// next reader is not a function. For example, clamp(1 / x) has finite numbers although 1 / x has not.
void GraphLowering::number_deferred(ValueId id) {
  const FunctionTable* const table = values_.deferred_table(id);
  if (made_.rules.float_arithmetic || table == nullptr || values_.scaled(id) != nullptr) return;
  const Node& node = *source_.producer(id);
  IntegerBuilder build(made_, node.origin, source_.node_name(node));
  const RuleContext ctx(values_, node, build);
  if (std::optional<ScaledInteger> made = value_or_nothing([&] { return numbers_of(ctx, *table); }))
    values_.set_scaled(id, *std::move(made));
}

void GraphLowering::number_deferred_operands(const Node& node) {
  for (const ValueId id : source_.operands(node))
    if (id.valid()) number_deferred(id);
}

}  // namespace tosaic::passes
