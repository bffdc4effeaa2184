#include "tosaic/passes/lower_to_integer/function_table.h"

#include <algorithm>
#include <array>

#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/lower_to_integer/evaluation.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/table_lookup.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kBytes = 256;

// All values of a dtype of 8 or 16 bits in ascending order, each `repeat` times in a row. This whole sequence
// is repeated `times` times.
ConstantRef ramp(DType dtype, std::int64_t repeat = 1, std::int64_t times = 1) {
  const ValueRange all = *integer_limits(dtype);
  const std::int64_t count = (all.high - all.low + 1) * repeat * times;
  Storage storage = Storage::allocate(static_cast<std::size_t>(count) * byte_size(dtype));
  std::byte* to = storage.writable();
  for (std::int64_t i = 0; i < count; ++i, to += byte_size(dtype))
    store_element(dtype, to, static_cast<double>(all.low + i / repeat % (all.high - all.low + 1)));
  return constant_over("", ConstantKind::kFolded, dtype, {count}, std::move(storage));
}

// A table of bools becomes a table of the i8 integers 0 and 1. Other tables are unchanged.
ConstantRef as_integers(const ConstantRef& f) {
  if (f->dtype != DType::kBool) return f;
  auto out = std::make_shared<Constant>(*f);
  out->dtype = DType::kI8;
  return out;
}

// `made`, from a table, in the shape of the node's result: constants of one element may have more axes than the
// variables of the table.
ValueId in_shape(const RuleContext& ctx, ValueId made) {
  return ctx.build.reshape(made, ctx.node.result_type().shape);
}

// Converts `made`, integers from a table, to the node's result: casts them to bool if the result is bool.
ValueId as_result(const RuleContext& ctx, ValueId made) {
  made = in_shape(ctx, made);
  return ctx.node.result_type().dtype == DType::kBool ? ctx.build.cast(made, DType::kBool) : made;
}

// The numbers of a table, unless they are too coarse for their readers.
RuleResult numbers_at(const RuleContext& ctx, ValueId position, const Constant& table) {
  ScaledInteger made = gathered_numbers(ctx.build, position, table);
  made.id = in_shape(ctx, made.id);
  ctx.require_fine_results(made.scale());
  return made;
}

// The entries of a table of u8. TOSA has no such tables: they are smaller by 128 in a table of i8.
ValueId unsigned_at(IntegerBuilder& build, const ScaledInteger& x, const Constant& table) {
  const Elements elements(table);
  std::vector<double> entries;
  for (std::size_t i = 0; i < elements.size(); ++i) entries.push_back(elements.as_double(i) - 128);
  const ValueId made = looked_up(build, x, *make_constant(table.name, DType::kI8, table.shape, entries));
  const double one[] = {1.0};
  RescaleAttrs attrs;
  attrs.rescale = quant::plan_rescale({DType::kI8, -128}, {DType::kU8, 0}, one);
  return build.emit(Op::kRescale, attrs, {made});
}

RuleResult of_one(const RuleContext& ctx, FunctionOperands operands) {
  const ScaledInteger x = ctx.scaled(operands.variables.front().front());
  const QParams qparams = full_range_qparams(ctx.build, x);
  operands.set(0, ramp(qparams.storage), &qparams);
  const ConstantRef f = as_integers(evaluate_stored(ctx.node, operands.constants, operands.qparams));
  if (is_float(f->dtype)) return numbers_at(ctx, position_of(ctx.build, x), *f);
  const bool casts = ctx.node.op() == Op::kCast && ctx.node.result_qparams() == nullptr;
  if (casts && f->dtype == DType::kU8) return in_shape(ctx, unsigned_at(ctx.build, x, *f));
  if (casts && f->dtype != DType::kI8)
    return in_shape(ctx, gathered(ctx.build, position_of(ctx.build, x), *f));
  return as_result(ctx, looked_up(ctx.build, x, *f));
}

RuleResult of_two(const RuleContext& ctx, FunctionOperands operands) {
  const ScaledInteger a = ctx.scaled(operands.variables[0].front()),
                      b = ctx.scaled(operands.variables[1].front());
  const QParams a_qparams = full_range_qparams(ctx.build, a), b_qparams = full_range_qparams(ctx.build, b);
  operands.set(0, ramp(DType::kI8, kBytes), &a_qparams);
  operands.set(1, ramp(DType::kI8, 1, kBytes), &b_qparams);
  const ConstantRef f = as_integers(evaluate_stored(ctx.node, operands.constants, operands.qparams));
  if (is_float(f->dtype)) return numbers_at(ctx, position_of(ctx.build, a, b), *f);
  return as_result(ctx, gathered(ctx.build, position_of(ctx.build, a, b), *f));
}

// ---- functions of functions ----

// A constant of one element, with the shape {1} of tables; null for other constants.
ConstantRef single_element(const Constant& from) {
  if (num_elements(from.shape) != 1 || !from.storage.bound()) return nullptr;
  auto one = std::make_shared<Constant>(from);
  one->shape = {1};
  return one;
}

// x as a function of its own integers: the identity over all integers of its dtype.
FunctionTable as_table(const ScaledInteger& x, DType integers, DType floats) {
  const ValueRange all = *integer_limits(integers);
  std::vector<double> values;
  for (std::int64_t q = all.low; q <= all.high; ++q)
    values.push_back(dequantize_value(q, x.scale(), x.zero_point));
  const auto count = static_cast<std::int64_t>(values.size());
  return {{x}, make_constant("", floats, {count}, values)};
}

// The variables of all tables, each once. Returns nothing if there are too many: a table has one variable of
// i8 or i16, or two variables of i8.
std::optional<std::vector<ScaledInteger>> united_variables(const IntegerBuilder& build,
                                                           const std::vector<FunctionTable>& tables) {
  std::vector<ScaledInteger> out;
  for (const FunctionTable& table : tables)
    for (const ScaledInteger& x : table.variables)
      if (std::none_of(out.begin(), out.end(), [&](const ScaledInteger& known) { return known.id == x.id; }))
        out.push_back(x);
  const bool is_small = std::all_of(
      out.begin(), out.end(), [&](const ScaledInteger& x) { return build.type(x.id).dtype == DType::kI8; });
  return out.empty() || out.size() > 2 || (out.size() == 2 && !is_small) ? std::nullopt : std::optional(out);
}

// The values of `table` over `variables`, which include its own variables.
ConstantRef over(const FunctionTable& table, const std::vector<ScaledInteger>& variables) {
  const auto is = [](const ScaledInteger& a, const ScaledInteger& b) { return a.id == b.id; };
  if (std::equal(table.variables.begin(), table.variables.end(), variables.begin(), variables.end(), is))
    return table.values;
  const Elements own(*table.values);
  std::vector<double> values;
  for (std::int64_t a = 0; a < kBytes; ++a)
    for (std::int64_t b = 0; b < kBytes; ++b) {
      std::int64_t at = 0;
      for (const ScaledInteger& x : table.variables) at = at * kBytes + (is(x, variables.front()) ? a : b);
      values.push_back(own.as_double(static_cast<std::size_t>(at)));
    }
  return make_constant("", table.values->dtype, {kBytes * kBytes}, values);
}

// Operand i if it is i8 or i16 with a single scale, so that a table can have an entry for each integer.
std::optional<ScaledInteger> number_of_few_bits(const RuleContext& ctx, std::size_t i) {
  if (!ctx.is_scaled(i)) return std::nullopt;
  const ScaledInteger x = ctx.scaled(i);
  const DType dtype = ctx.build.type(x.id).dtype;
  return x.axis || (dtype != DType::kI8 && dtype != DType::kI16) ? std::nullopt : std::optional(x);
}

// Operand i as a FunctionTable, or null if the operand cannot be one. A value that is not deferred has a
// FunctionTable if function_table() returns one for its producer.
const FunctionTable* table_of(const RuleContext& ctx, std::size_t i) {
  const ValueId id = ctx.node.operand(i);
  if (const FunctionTable* const deferred = ctx.values.deferred_table(id)) return deferred;
  const Node* const producer = ctx.node.graph().producer(id);
  if (producer == nullptr || producer->result_count != 1 || ctx.node.operand_type(i).qparams) return nullptr;
  return ctx.values.composed_table(id, [&] {
    const RuleContext at_producer(ctx.values, *producer, ctx.build);
    return value_or_nothing([&] { return function_table(at_producer); });
  });
}

struct Composition {
  std::vector<ScaledInteger> variables;
  ConstantRef values;
};

// The table of an elementwise node, or a quantize node, over FunctionTables, numbers of i8 or i16, and
// constants of one element.
std::optional<Composition> composed(const RuleContext& ctx) {
  if (!info(ctx.node.op()).has(kElementwise) || info(ctx.node.op()).is_tosa) return std::nullopt;
  std::vector<ConstantRef> constants(ctx.node.operand_count());
  std::vector<FunctionTable> tables;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < ctx.node.operand_count(); ++i) {
    if (!ctx.node.has(i)) continue;
    if (ctx.node.is_constant(i)) {
      if (ctx.node.operand_type(i).qparams) return std::nullopt;
      constants[i] = single_element(*ctx.node.graph().value(ctx.node.operand(i)).constant);
      if (!constants[i]) return std::nullopt;
      continue;
    }
    places.push_back(i);
    if (const std::optional<ScaledInteger> x = number_of_few_bits(ctx, i)) {
      tables.push_back(as_table(*x, ctx.build.type(x->id).dtype, ctx.node.number_dtype(i)));
    } else if (const FunctionTable* const table = table_of(ctx, i)) {
      tables.push_back(*table);
    } else {
      return std::nullopt;
    }
  }
  std::optional<std::vector<ScaledInteger>> variables = united_variables(ctx.build, tables);
  if (!variables) return std::nullopt;
  for (std::size_t k = 0; k < places.size(); ++k) constants[places[k]] = over(tables[k], *variables);
  const std::vector<const QParams*> qparams(constants.size(), nullptr);
  return Composition{std::move(*variables), evaluate_stored(ctx.node, constants, qparams)};
}

// Moves a FunctionTable: its variables are moved, and its values stay.
std::optional<FunctionTable> moved_table(const RuleContext& ctx) {
  if (ctx.node.operand_count() != 1 || !rearranges(ctx.node.node())) return std::nullopt;
  const FunctionTable* const from = table_of(ctx, 0);
  if (from == nullptr) return std::nullopt;
  FunctionTable out = *from;
  for (ScaledInteger& x : out.variables) {
    const ValueId whole = ctx.build.broadcast_to(x.id, ctx.node.operand_type(0).shape);
    x.id = ctx.build.emit(ctx.node.op(), ctx.node.attributes(), {whole});
  }
  return out;
}

// The operators, apart from comparisons, with a rule for two operands.
constexpr std::array kArithmetic{Op::kAdd, Op::kSub, Op::kMul, Op::kMaximum, Op::kMinimum};

// True if integer arithmetic replaces a table over two operands: it is about as precise, and smaller.
bool has_arithmetic(Op op, const ScaledInteger& a, const ScaledInteger& b) {
  if (info(op).has(kComparison)) return a.scales == b.scales;
  return std::find(kArithmetic.begin(), kArithmetic.end(), op) != kArithmetic.end();
}

}  // namespace

void FunctionOperands::set(std::size_t variable, const ConstantRef& values, const QParams* of_values) {
  for (const std::size_t i : variables[variable]) {
    constants[i] = values;
    qparams[i] = of_values;
  }
}

std::optional<FunctionOperands> function_operands(const RuleContext& ctx) {
  FunctionOperands out;
  for (std::size_t i = 0; i < ctx.node.operand_count(); ++i) {
    out.constants.emplace_back();
    out.qparams.push_back(nullptr);
    if (!ctx.node.has(i)) continue;
    const ValueId id = ctx.node.operand(i);
    if (ctx.node.is_constant(i)) {
      const Value& value = ctx.node.graph().value(id);
      const QParams* qparams = value.type.qparams.get();
      if (num_elements(value.type.shape) != 1 || !value.constant->storage.bound() ||
          (qparams && qparams->axis))
        return std::nullopt;
      auto one = std::make_shared<Constant>(*value.constant);
      one->shape = {1};
      out.constants.back() = std::move(one);
      out.qparams.back() = qparams;
      continue;
    }
    if (!ctx.is_scaled(i)) return std::nullopt;
    const auto known = std::find_if(out.variables.begin(), out.variables.end(), [&](const auto& places) {
      return ctx.node.operand(places.front()) == id;
    });
    if (known == out.variables.end())
      out.variables.push_back({i});
    else
      known->push_back(i);
  }
  return out.variables.empty() ? std::nullopt : std::optional(std::move(out));
}

std::optional<FunctionTable> function_table(const RuleContext& ctx) {
  if (std::optional<FunctionTable> moved = moved_table(ctx)) return moved;
  std::optional<Composition> made = composed(ctx);
  if (!made || !(has_integer_form(made->values->dtype) || made->values->dtype == DType::kBool))
    return std::nullopt;
  return FunctionTable{std::move(made->variables), std::move(made->values)};
}

std::optional<RuleResult> tabulated_composition(const RuleContext& ctx) {
  if (ctx.node.result_qparams() == nullptr && ctx.node.result_type().dtype != DType::kBool)
    return std::nullopt;
  const std::optional<Composition> made = composed(ctx);
  if (!made) return std::nullopt;
  const ConstantRef f = as_integers(made->values);
  const std::vector<ScaledInteger>& x = made->variables;
  return as_result(ctx, x.size() == 2 ? gathered(ctx.build, position_of(ctx.build, x[0], x[1]), *f)
                                      : looked_up(ctx.build, x.front(), *f));
}

std::optional<RuleResult> tabulated(const RuleContext& ctx) {
  if (!info(ctx.node.op()).has(kElementwise) || info(ctx.node.op()).is_tosa) return std::nullopt;
  const DType result = ctx.node.result_type().dtype;
  const bool casts = ctx.node.op() == Op::kCast && is_integer(result);
  if (ctx.node.result_qparams() == nullptr && !has_integer_form(result) && result != DType::kBool && !casts)
    return std::nullopt;
  if (ctx.node.result_qparams() == nullptr && ctx.node.op() == Op::kCast && has_integer_form(result) &&
      ctx.node.has(0) && ctx.is_scaled(0))
    return std::nullopt;  // a cast to float changes no number: integer_function() returns its operand
  std::optional<FunctionOperands> operands = function_operands(ctx);
  if (!operands || operands->variables.size() > 2) return std::nullopt;
  std::vector<ScaledInteger> variables;
  for (const auto& places : operands->variables) {
    variables.push_back(ctx.scaled(places.front()));
    const DType dtype = ctx.build.type(variables.back().id).dtype;
    if (variables.back().axis || (dtype != DType::kI8 && dtype != DType::kI16)) return std::nullopt;
    if (dtype != DType::kI8 && operands->variables.size() > 1) return std::nullopt;
  }
  if (variables.size() == 1) return of_one(ctx, std::move(*operands));
  if (has_arithmetic(ctx.node.op(), variables[0], variables[1])) return std::nullopt;
  return of_two(ctx, std::move(*operands));
}

}  // namespace tosaic::passes
