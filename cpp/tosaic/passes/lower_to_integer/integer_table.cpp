// integer_table: elementwise functions of quantized values, as tables that the float kernels of the q/dq
// graph compute. Results are exact, but a TABLE of 513 entries may be off by one unit.
//
//   one operand of i8     TABLE of 256 entries; no node for the identity, CLAMP if the function only clamps
//   one operand of i16    TABLE of 513 entries if it is within one unit, else GATHER from 65536 entries
//   two operands of i8    GATHER from 65536 entries at 256 * a + b
//
// All other operands are constants of one element. A float result, without qparams, is tabulated with 24
// bits.

#include <algorithm>
#include <cmath>
#include <functional>

#include "tosaic/ir/quantized_value.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"

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

ValueId gathered(IntegerLowering& l, ValueId index, const Constant& f) {
  return IntegerMath(l).lookup(index, integers_of(f), f.dtype);
}

// Positions in a table, for i8 or i16 integers: 0 for the least integer. `factor` multiplies those of i8.
ValueId positions(IntegerLowering& l, ValueId x, std::int64_t factor = 1) {
  const ValueRange all = *integer_limits(l.type(x).dtype);
  if (l.type(x).dtype == DType::kI8) {  // the zero point -128 is subtracted
    const Real shifted{x, {static_cast<double>(factor)}, all.low, all};
    return l.rescaled(shifted, DType::kI32, 1.0).id;
  }
  return l.binary(Op::kTosaAdd, l.cast(x, DType::kI32), l.number(-all.low, l.type(x).rank()));
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

ValueId table_of_16_bits(IntegerLowering& l, ValueId x, const std::vector<std::int64_t>& entries, DType to) {
  const ValueId finer = l.emit(Op::kTosaTable, NoAttrs{}, {x, l.constant(DType::kI16, {513}, entries)});
  const std::int64_t limit = std::int64_t{32768} << kFractionBits;
  const Real real{finer, {std::ldexp(1.0, -kFractionBits)}, 0, {-limit, limit}};
  return l.rescaled(real, to, 1.0).id;
}

ValueId small_function(IntegerLowering& l, const Real& x, const Constant& f) {
  const std::vector<std::int64_t> entries = integers_of(f);
  const auto at = [&](std::int64_t q) { return entries[static_cast<std::size_t>(q + 128)]; };
  if (f.dtype == DType::kI8) {
    if (is_identity(at, x.range)) return x.id;
    if (const std::optional<ValueRange> bounds = as_bounds(at, x.range))
      return l.bounded(x.id, x.range, *bounds);
    return l.emit(Op::kTosaTable, NoAttrs{}, {x.id, l.constant(DType::kI8, {kSmall}, entries)});
  }
  if (f.dtype != DType::kI16) return gathered(l, positions(l, x.id), f);
  std::vector<std::int64_t> knots;  // each entry appears twice, so 256 * q is at a knot
  for (const std::int64_t entry : entries) knots.insert(knots.end(), 2, entry);
  knots.push_back(entries.back());
  const Real spread{x.id, {256.0}, 0, *integer_limits(DType::kI8)};
  return table_of_16_bits(l, l.rescaled(spread, DType::kI16, 1.0).id, knots, DType::kI16);
}

ValueId large_function(IntegerLowering& l, const Real& x, const Constant& f) {
  const std::vector<std::int64_t> entries = integers_of(f);
  const auto at = [&](std::int64_t q) { return entries[static_cast<std::size_t>(q + 32768)]; };
  if (f.dtype == DType::kI16) {
    if (is_identity(at, x.range)) return x.id;
    if (const std::optional<ValueRange> bounds = as_bounds(at, x.range))
      return l.bounded(x.id, x.range, *bounds);
    const std::vector<std::int64_t> few = knots(entries);
    if (slopes_fit(few) && table_error(few, entries, x.range) <= 1)
      return table_of_16_bits(l, x.id, few, DType::kI16);
  }
  return gathered(l, positions(l, x.id), f);
}

// A table of bools as i8 integers, 0 and 1; other tables are unchanged.
ConstantRef as_integers(const ConstantRef& f) {
  if (f->dtype != DType::kBool) return f;
  auto out = std::make_shared<Constant>(*f);
  out->dtype = DType::kI8;
  return out;
}

// A table of floats as i32 entries of 24 bits, in a unit that is a power of two.
Real finely_gathered(IntegerLowering& l, ValueId index, const Constant& f) {
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
  return {IntegerMath(l).lookup(index, entries), {unit}, 0, range};
}

// Looks up a table of integers at one number.
ValueId read_at(IntegerLowering& l, const Real& x, const Constant& f) {
  const ValueId made = l.type(x.id).dtype == DType::kI8 ? small_function(l, x, f) : large_function(l, x, f);
  return l.result_type().dtype == DType::kBool ? l.cast(made, DType::kBool) : made;
}

Lowered of_one(IntegerLowering& l, FunctionOperands operands) {
  const Real x = l.real(operands.variables.front().front());
  const QParams label = l.parameters(x);
  operands.set(0, ramp(label.storage), &label);
  const ConstantRef f = as_integers(l.evaluate_stored(operands.constants, operands.labels));
  if (is_float(f->dtype)) return finely_gathered(l, positions(l, x.id), *f);
  if (l.node().op == Op::kCast && l.target() == nullptr && f->dtype != DType::kI8)
    return gathered(l, positions(l, x.id), *f);
  return read_at(l, x, *f);
}

// ---- two operands ----

ValueId position_of_two(IntegerLowering& l, const Real& a, const Real& b) {
  return l.binary(Op::kTosaAdd, positions(l, a.id, kSmall), positions(l, b.id));
}

// The same at two numbers.
ValueId read_at(IntegerLowering& l, const Real& a, const Real& b, const Constant& f) {
  const ValueId made = gathered(l, position_of_two(l, a, b), f);
  return l.result_type().dtype == DType::kBool ? l.cast(made, DType::kBool) : made;
}

Lowered of_two(IntegerLowering& l, FunctionOperands operands) {
  const Real a = l.real(operands.variables[0].front()), b = l.real(operands.variables[1].front());
  const QParams a_label = l.parameters(a), b_label = l.parameters(b);
  operands.set(0, ramp(DType::kI8, kSmall), &a_label);
  operands.set(1, ramp(DType::kI8, 1, kSmall), &b_label);
  const ConstantRef f = as_integers(l.evaluate_stored(operands.constants, operands.labels));
  if (is_float(f->dtype)) return finely_gathered(l, position_of_two(l, a, b), *f);
  return read_at(l, a, b, *f);
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
FunctionTable as_table(const Real& x, DType integers, DType floats) {
  const ValueRange all = *integer_limits(integers);
  std::vector<double> values;
  for (std::int64_t q = all.low; q <= all.high; ++q)
    values.push_back(dequantize_value(q, x.scale(), x.zero_point));
  const auto count = static_cast<std::int64_t>(values.size());
  return {{x}, make_constant("", floats, {count}, values)};
}

// The variables of all tables, each once. Nothing if there are too many: a table has one of i8 or i16, or two
// of i8.
std::optional<std::vector<Real>> united_variables(const IntegerLowering& l,
                                                  const std::vector<FunctionTable>& tables) {
  std::vector<Real> out;
  for (const FunctionTable& table : tables)
    for (const Real& x : table.variables)
      if (std::none_of(out.begin(), out.end(), [&](const Real& known) { return known.id == x.id; }))
        out.push_back(x);
  const bool is_small =
      std::all_of(out.begin(), out.end(), [&](const Real& x) { return l.type(x.id).dtype == DType::kI8; });
  return out.empty() || out.size() > 2 || (out.size() == 2 && !is_small) ? std::nullopt : std::optional(out);
}

// The values of `table` over `variables`, which include its own variables.
ConstantRef over(const FunctionTable& table, const std::vector<Real>& variables) {
  const auto is = [](const Real& a, const Real& b) { return a.id == b.id; };
  if (std::equal(table.variables.begin(), table.variables.end(), variables.begin(), variables.end(), is))
    return table.values;
  const Elements own(*table.values);
  std::vector<double> values;
  for (std::int64_t a = 0; a < kSmall; ++a)
    for (std::int64_t b = 0; b < kSmall; ++b) {
      std::int64_t at = 0;
      for (const Real& x : table.variables) at = at * kSmall + (is(x, variables.front()) ? a : b);
      values.push_back(own.as_double(static_cast<std::size_t>(at)));
    }
  return make_constant("", table.values->dtype, {kSmall * kSmall}, values);
}

// Operand i if it is i8 or i16 with a single scale, so that a table can have an entry for each integer.
std::optional<Real> number_of_few_bits(IntegerLowering& l, std::size_t i) {
  if (!l.is_real(i)) return std::nullopt;
  const Real x = l.real(i);
  const DType dtype = l.type(x.id).dtype;
  return x.axis || (dtype != DType::kI8 && dtype != DType::kI16) ? std::nullopt : std::optional(x);
}

struct Composition {
  std::vector<Real> variables;
  ConstantRef values;
};

// The table of an elementwise node, or a quantize node, over FunctionTables, numbers of i8 or i16, and
// constants of one element.
std::optional<Composition> composed(IntegerLowering& l) {
  if (!info(l.node().op).has(kElementwise) || info(l.node().op).is_tosa) return std::nullopt;
  std::vector<ConstantRef> constants(l.operand_count());
  std::vector<FunctionTable> tables;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    if (!l.has(i)) continue;
    if (l.is_constant(i)) {
      if (l.operand_type(i).qparams) return std::nullopt;
      constants[i] = single_element(*l.source().value(l.operand(i)).constant);
      if (!constants[i]) return std::nullopt;
      continue;
    }
    places.push_back(i);
    if (const std::optional<Real> x = number_of_few_bits(l, i)) {
      tables.push_back(as_table(*x, l.type(x->id).dtype, l.number_dtype(i)));
    } else if (const FunctionTable* const table = l.table(i)) {
      tables.push_back(*table);
    } else {
      return std::nullopt;
    }
  }
  std::optional<std::vector<Real>> variables = united_variables(l, tables);
  if (!variables) return std::nullopt;
  for (std::size_t k = 0; k < places.size(); ++k) constants[places[k]] = over(tables[k], *variables);
  const std::vector<const QParams*> labels(constants.size(), nullptr);
  return Composition{std::move(*variables), l.evaluate_stored(constants, labels)};
}

// A movement of a FunctionTable: its variables are moved, its values stay.
std::optional<FunctionTable> moved_table(IntegerLowering& l) {
  if (l.operand_count() != 1 || !rearranges(l.node())) return std::nullopt;
  const FunctionTable* const from = l.table(0);
  if (from == nullptr) return std::nullopt;
  FunctionTable out = *from;
  for (Real& x : out.variables) {
    Shape shape = l.type(x.id).shape;
    while (shape.size() < l.operand_type(0).rank()) shape.insert(0, 1);
    const ValueId whole = l.expand(l.reshape(x.id, shape), l.operand_type(0).shape);
    x.id = l.emit(l.node().op, *l.node().attrs, {whole});
  }
  return out;
}

// True if integer arithmetic replaces a table over two operands: it is about as precise, and smaller.
bool has_arithmetic(IntegerLowering& l, const Real& a, const Real& b) {
  switch (l.node().op) {  // NOLINT: the operators with rules for two operands
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kMaximum:
    case Op::kMinimum:
      return true;
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
    case Op::kGt:
    case Op::kGe:
      return a.scales == b.scales;
    default:
      return false;
  }
}

}  // namespace

void FunctionOperands::set(std::size_t variable, const ConstantRef& values, const QParams* label) {
  for (const std::size_t i : variables[variable]) {
    constants[i] = values;
    labels[i] = label;
  }
}

std::optional<FunctionOperands> function_operands(IntegerLowering& l) {
  FunctionOperands out;
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    out.constants.emplace_back();
    out.labels.push_back(nullptr);
    if (!l.has(i)) continue;
    const ValueId id = l.operand(i);
    if (l.is_constant(i)) {
      const Value& value = l.source().value(id);
      const QParams* label = value.type.qparams.get();
      if (num_elements(value.type.shape) != 1 || !value.constant->storage.bound() || (label && label->axis))
        return std::nullopt;
      auto one = std::make_shared<Constant>(*value.constant);
      one->shape = {1};
      out.constants.back() = std::move(one);
      out.labels.back() = label;
      continue;
    }
    if (!l.is_real(i)) return std::nullopt;
    const auto known = std::find_if(out.variables.begin(), out.variables.end(),
                                    [&](const auto& places) { return l.operand(places.front()) == id; });
    if (known == out.variables.end())
      out.variables.push_back({i});
    else
      known->push_back(i);
  }
  return out.variables.empty() ? std::nullopt : std::optional(std::move(out));
}

std::optional<FunctionTable> function_table(IntegerLowering& l) {
  if (std::optional<FunctionTable> moved = moved_table(l)) return moved;
  std::optional<Composition> made = composed(l);
  if (!made || !(stands_for_number(made->values->dtype) || made->values->dtype == DType::kBool))
    return std::nullopt;
  return FunctionTable{std::move(made->variables), std::move(made->values)};
}

std::optional<Lowered> tabulated_composition(IntegerLowering& l) {
  if (l.target() == nullptr && l.result_type().dtype != DType::kBool) return std::nullopt;
  const std::optional<Composition> made = composed(l);
  if (!made) return std::nullopt;
  const ConstantRef f = as_integers(made->values);
  if (made->variables.size() == 2) return read_at(l, made->variables[0], made->variables[1], *f);
  return read_at(l, made->variables.front(), *f);
}

std::optional<Lowered> tabulated(IntegerLowering& l) {
  if (!info(l.node().op).has(kElementwise) || info(l.node().op).is_tosa) return std::nullopt;
  const DType result = l.result_type().dtype;
  const bool casts = l.node().op == Op::kCast && is_integer(result);
  if (l.target() == nullptr && !stands_for_number(result) && result != DType::kBool && !casts)
    return std::nullopt;
  if (l.target() == nullptr && l.node().op == Op::kCast && stands_for_number(result) && l.has(0) &&
      l.is_real(0))
    return std::nullopt;  // a cast to float changes no number: integer_function() returns its operand
  std::optional<FunctionOperands> operands = function_operands(l);
  if (!operands || operands->variables.size() > 2) return std::nullopt;
  std::vector<Real> variables;
  for (const auto& places : operands->variables) {
    variables.push_back(l.real(places.front()));
    const DType dtype = l.type(variables.back().id).dtype;
    if (variables.back().axis || (dtype != DType::kI8 && dtype != DType::kI16)) return std::nullopt;
    if (dtype != DType::kI8 && operands->variables.size() > 1) return std::nullopt;
  }
  if (variables.size() == 1) return of_one(l, std::move(*operands));
  if (has_arithmetic(l, variables[0], variables[1])) return std::nullopt;
  return of_two(l, std::move(*operands));
}

}  // namespace tosaic::passes
