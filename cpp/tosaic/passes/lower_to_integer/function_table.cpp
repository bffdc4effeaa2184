#include "tosaic/passes/lower_to_integer/function_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/lower_to_integer/evaluation.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rule_context.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kSmall = 256;
constexpr int kFractionBits = 7;  // of the result of a TABLE over i16

// All values of a dtype of 8 or 16 bits in ascending order, each `repeat` times in a row, and the whole
// `times` times.
ConstantRef ramp(DType dtype, std::int64_t repeat = 1, std::int64_t times = 1) {
  const ValueRange all = *integer_limits(dtype);
  auto out = std::make_shared<Constant>();
  out->dtype = dtype;
  const std::int64_t count = (all.high - all.low + 1) * repeat * times;
  out->shape = {count};
  out->storage = Storage::allocate(static_cast<std::size_t>(count) * byte_size(dtype));
  std::byte* to = out->storage.writable();
  for (std::int64_t i = 0; i < count; ++i, to += byte_size(dtype))
    store_element(dtype, to, static_cast<double>(all.low + i / repeat % (all.high - all.low + 1)));
  return out;
}

std::vector<std::int64_t> integers_of(const Constant& constant) {
  const Elements elements(constant);
  std::vector<std::int64_t> out(elements.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = elements.as_int(i);
  return out;
}

ValueId gathered(IntegerBuilder& build, ValueId index, const Constant& f) {
  return IntegerMath(build).lookup(index, integers_of(f), f.dtype);
}

// Positions in a table, for i8 or i16 integers: 0 for the least integer. `factor` multiplies those of i8.
ValueId positions(IntegerBuilder& build, ValueId x, std::int64_t factor = 1) {
  const ValueRange all = *integer_limits(build.type(x).dtype);
  if (build.type(x).dtype == DType::kI8) {  // the zero point -128 is subtracted
    const ScaledInteger shifted{x, {static_cast<double>(factor)}, all.low, all};
    return rescaled(build, shifted, DType::kI32, 1.0).id;
  }
  return build.binary(Op::kTosaAdd, build.cast(x, DType::kI32), build.number(-all.low, build.type(x).rank()));
}

// ---- one operand ----

using Entry = std::function<std::int64_t(std::int64_t)>;  // the table entry for an integer

bool is_identity(const Entry& f, ValueRange range) {
  for (std::int64_t q = range.low; q <= range.high; ++q)
    if (f(q) != q) return false;
  return true;
}

std::optional<ValueRange> as_bounds(const Entry& f, ValueRange range) {
  const ValueRange bounds{f(range.low), f(range.high)};
  if (bounds.low > bounds.high) return std::nullopt;
  for (std::int64_t q = range.low; q <= range.high; ++q)
    if (f(q) != std::clamp(q, bounds.low, bounds.high)) return std::nullopt;
  return bounds;
}

// TABLE over i16 interpolates: entry[k] * (128 - r) + entry[k + 1] * r at position 128 * k + r. The result
// has 7 bits more than the entries.
std::int64_t interpolated(const std::vector<std::int64_t>& entries, std::int64_t position) {
  const auto k = static_cast<std::size_t>(position >> kFractionBits);
  const std::int64_t rest = position & ((1 << kFractionBits) - 1);
  return entries[k] * (1 << kFractionBits) + (entries[k + 1] - entries[k]) * rest;
}

bool slopes_fit(const std::vector<std::int64_t>& entries) {
  const ValueRange limits = *integer_limits(DType::kI16);
  for (std::size_t k = 1; k < entries.size(); ++k)
    if (!limits.contains(entries[k] - entries[k - 1])) return false;
  return true;
}

// 513 entries: the function at every 128th integer. The last, beyond the range, repeats the function's last
// value.
std::vector<std::int64_t> knots(const std::vector<std::int64_t>& f) {
  std::vector<std::int64_t> out;
  for (std::int64_t k = 0; k < 512; ++k) out.push_back(f[static_cast<std::size_t>(k << kFractionBits)]);
  out.push_back(f.back());
  return out;
}

// The largest distance, in units of the result, between TABLE and the function, for integers in `range`.
double table_error(const std::vector<std::int64_t>& entries, const std::vector<std::int64_t>& f,
                   ValueRange range) {
  double worst = 0;
  for (std::int64_t q = range.low; q <= range.high; ++q) {
    const auto at = static_cast<std::size_t>(q + 32768);
    const std::int64_t rounded =
        (interpolated(entries, q + 32768) + (1 << (kFractionBits - 1))) >> kFractionBits;
    worst = std::max(worst, std::abs(static_cast<double>(rounded - f[at])));
  }
  return worst;
}

ValueId table_of_16_bits(IntegerBuilder& build, ValueId x, const std::vector<std::int64_t>& entries,
                         DType to) {
  const ValueId finer =
      build.emit(Op::kTosaTable, NoAttrs{}, {x, build.constant(DType::kI16, {513}, entries)});
  const std::int64_t limit = std::int64_t{32768} << kFractionBits;
  const ScaledInteger real{finer, {std::ldexp(1.0, -kFractionBits)}, 0, {-limit, limit}};
  return rescaled(build, real, to, 1.0).id;
}

ValueId small_function(IntegerBuilder& build, const ScaledInteger& x, const Constant& f) {
  const std::vector<std::int64_t> entries = integers_of(f);
  const auto at = [&](std::int64_t q) { return entries[static_cast<std::size_t>(q + 128)]; };
  if (f.dtype == DType::kI8) {
    if (is_identity(at, x.range)) return x.id;
    if (const std::optional<ValueRange> bounds = as_bounds(at, x.range))
      return build.bounded(x.id, x.range, *bounds);
    return build.emit(Op::kTosaTable, NoAttrs{}, {x.id, build.constant(DType::kI8, {kSmall}, entries)});
  }
  if (f.dtype != DType::kI16) return gathered(build, positions(build, x.id), f);
  std::vector<std::int64_t> knots;  // each entry appears twice, so 256 * q is at a knot
  for (const std::int64_t entry : entries) knots.insert(knots.end(), 2, entry);
  knots.push_back(entries.back());
  const ScaledInteger spread{x.id, {256.0}, 0, *integer_limits(DType::kI8)};
  return table_of_16_bits(build, rescaled(build, spread, DType::kI16, 1.0).id, knots, DType::kI16);
}

ValueId large_function(IntegerBuilder& build, const ScaledInteger& x, const Constant& f) {
  const std::vector<std::int64_t> entries = integers_of(f);
  const auto at = [&](std::int64_t q) { return entries[static_cast<std::size_t>(q + 32768)]; };
  if (f.dtype == DType::kI16) {
    if (is_identity(at, x.range)) return x.id;
    if (const std::optional<ValueRange> bounds = as_bounds(at, x.range))
      return build.bounded(x.id, x.range, *bounds);
    const std::vector<std::int64_t> few = knots(entries);
    if (slopes_fit(few) && table_error(few, entries, x.range) <= 1)
      return table_of_16_bits(build, x.id, few, DType::kI16);
  }
  return gathered(build, positions(build, x.id), f);
}

// A table of bools as i8 integers, 0 and 1; other tables are unchanged.
ConstantRef as_integers(const ConstantRef& f) {
  if (f->dtype != DType::kBool) return f;
  auto out = std::make_shared<Constant>(*f);
  out->dtype = DType::kI8;
  return out;
}

// A table of floats as i32 entries of 24 bits, in a unit that is a power of two.
ScaledInteger finely_gathered(IntegerBuilder& build, ValueId index, const Constant& f) {
  constexpr int kBits = 24;
  double largest = 0;
  const Elements elements(f);
  std::vector<double> numbers(elements.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = elements.as_double(i);
    if (!std::isfinite(numbers[i])) throw NoIntegerForm("it is not finite everywhere");
    largest = std::max(largest, std::abs(numbers[i]));
  }
  const double unit = largest == 0 ? 1.0 : std::ldexp(1.0, std::ilogb(largest) + 1 - kBits);
  std::vector<std::int64_t> entries;
  for (const double value : numbers) entries.push_back(std::llround(value / unit));
  const auto [low, high] = std::minmax_element(entries.begin(), entries.end());
  const ValueRange range{*low, *high};
  return {IntegerMath(build).lookup(index, entries), {unit}, 0, range};
}

// Looks up a table of integers at one number.
ValueId read_at(const RuleContext& ctx, const ScaledInteger& x, const Constant& f) {
  const ValueId made = ctx.build.type(x.id).dtype == DType::kI8 ? small_function(ctx.build, x, f)
                                                                : large_function(ctx.build, x, f);
  return ctx.node.result_type().dtype == DType::kBool ? ctx.build.cast(made, DType::kBool) : made;
}

RuleResult of_one(const RuleContext& ctx, FunctionOperands operands) {
  const ScaledInteger x = ctx.scaled(operands.variables.front().front());
  const QParams qparams = full_range_qparams(ctx.build, x);
  operands.set(0, ramp(qparams.storage), &qparams);
  const ConstantRef f = as_integers(evaluate_stored(ctx.node, operands.constants, operands.qparams));
  if (is_float(f->dtype)) return finely_gathered(ctx.build, positions(ctx.build, x.id), *f);
  if (ctx.node.op() == Op::kCast && ctx.node.result_qparams() == nullptr && f->dtype != DType::kI8)
    return gathered(ctx.build, positions(ctx.build, x.id), *f);
  return read_at(ctx, x, *f);
}

// ---- two operands ----

ValueId position_of_two(IntegerBuilder& build, const ScaledInteger& a, const ScaledInteger& b) {
  return build.binary(Op::kTosaAdd, positions(build, a.id, kSmall), positions(build, b.id));
}

// The same at two numbers.
ValueId read_at(const RuleContext& ctx, const ScaledInteger& a, const ScaledInteger& b, const Constant& f) {
  const ValueId made = gathered(ctx.build, position_of_two(ctx.build, a, b), f);
  return ctx.node.result_type().dtype == DType::kBool ? ctx.build.cast(made, DType::kBool) : made;
}

RuleResult of_two(const RuleContext& ctx, FunctionOperands operands) {
  const ScaledInteger a = ctx.scaled(operands.variables[0].front()),
                      b = ctx.scaled(operands.variables[1].front());
  const QParams a_qparams = full_range_qparams(ctx.build, a), b_qparams = full_range_qparams(ctx.build, b);
  operands.set(0, ramp(DType::kI8, kSmall), &a_qparams);
  operands.set(1, ramp(DType::kI8, 1, kSmall), &b_qparams);
  const ConstantRef f = as_integers(evaluate_stored(ctx.node, operands.constants, operands.qparams));
  if (is_float(f->dtype)) return finely_gathered(ctx.build, position_of_two(ctx.build, a, b), *f);
  return read_at(ctx, a, b, *f);
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

// The variables of all tables, each once. Nothing if there are too many: a table has one of i8 or i16, or two
// of i8.
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
  for (std::int64_t a = 0; a < kSmall; ++a)
    for (std::int64_t b = 0; b < kSmall; ++b) {
      std::int64_t at = 0;
      for (const ScaledInteger& x : table.variables) at = at * kSmall + (is(x, variables.front()) ? a : b);
      values.push_back(own.as_double(static_cast<std::size_t>(at)));
    }
  return make_constant("", table.values->dtype, {kSmall * kSmall}, values);
}

// Operand i if it is i8 or i16 with a single scale, so that a table can have an entry for each integer.
std::optional<ScaledInteger> number_of_few_bits(const RuleContext& ctx, std::size_t i) {
  if (!ctx.is_scaled(i)) return std::nullopt;
  const ScaledInteger x = ctx.scaled(i);
  const DType dtype = ctx.build.type(x.id).dtype;
  return x.axis || (dtype != DType::kI8 && dtype != DType::kI16) ? std::nullopt : std::optional(x);
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
    } else if (const FunctionTable* const table = ctx.table(i)) {
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

// A movement of a FunctionTable: its variables are moved, its values stay.
std::optional<FunctionTable> moved_table(const RuleContext& ctx) {
  if (ctx.node.operand_count() != 1 || !rearranges(ctx.node.node())) return std::nullopt;
  const FunctionTable* const from = ctx.table(0);
  if (from == nullptr) return std::nullopt;
  FunctionTable out = *from;
  for (ScaledInteger& x : out.variables) {
    const ValueId whole = ctx.build.broadcast_to(x.id, ctx.node.operand_type(0).shape);
    x.id = ctx.build.emit(ctx.node.op(), ctx.node.attributes(), {whole});
  }
  return out;
}

// Operators with rules for two operands, and those whose rules are exact only in a common unit.
constexpr std::array kArithmetic{Op::kAdd, Op::kSub, Op::kMul, Op::kMaximum, Op::kMinimum};
constexpr std::array kComparisons{Op::kEq, Op::kNe, Op::kLt, Op::kLe, Op::kGt, Op::kGe};

// True if integer arithmetic replaces a table over two operands: it is about as precise, and smaller.
bool has_arithmetic(Op op, const ScaledInteger& a, const ScaledInteger& b) {
  const auto is_op = [op](Op other) { return other == op; };
  if (std::any_of(kComparisons.begin(), kComparisons.end(), is_op)) return a.scales == b.scales;
  return std::any_of(kArithmetic.begin(), kArithmetic.end(), is_op);
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
  if (made->variables.size() == 2) return read_at(ctx, made->variables[0], made->variables[1], *f);
  return read_at(ctx, made->variables.front(), *f);
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
