#include "tosaic/passes/lower_to_integer/function_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "tosaic/ir/quantized.h"
#include "tosaic/ir/quantized_value.h"
#include "tosaic/ir/reads_order.h"
#include "tosaic/passes/lower_to_integer/evaluation.h"
#include "tosaic/passes/lower_to_integer/integer_math.h"
#include "tosaic/passes/lower_to_integer/octaves.h"
#include "tosaic/passes/lower_to_integer/rescaling.h"
#include "tosaic/passes/lower_to_integer/rules.h"
#include "tosaic/passes/lower_to_integer/table_lookup.h"
#include "tosaic/quant/requantize.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kBytes = 256;

std::int64_t count_of(DType dtype) {
  const ValueRange all = *integer_limits(dtype);
  return all.high - all.low + 1;
}

// All values of a dtype of 8 or 16 bits in ascending order, each `repeat` times in a row. This whole sequence
// is repeated `times` times. A value outside of `occurring` is replaced by the nearest one inside, since the
// result at an integer that never occurs does not matter.
ConstantRef ramp(DType dtype, ValueRange occurring, std::int64_t repeat = 1, std::int64_t times = 1) {
  const ValueRange all = *integer_limits(dtype);
  const std::int64_t count = count_of(dtype) * repeat * times;
  Storage storage = Storage::allocate(static_cast<std::size_t>(count) * byte_size(dtype));
  std::byte* to = storage.writable();
  for (std::int64_t i = 0; i < count; ++i, to += byte_size(dtype)) {
    const std::int64_t each = all.low + i / repeat % count_of(dtype);
    store_element(dtype, to, static_cast<double>(std::clamp(each, occurring.low, occurring.high)));
  }
  return constant_over("", ConstantKind::kFolded, dtype, {count}, std::move(storage));
}

// A table of bools becomes a table of the i8 integers 0 and 1. Other tables are unchanged.
ConstantRef as_integers(const ConstantRef& f) {
  if (f->dtype != DType::kBool) return f;
  auto out = std::make_shared<Constant>(*f);
  out->dtype = DType::kI8;
  return out;
}

// `made`, from a table, in the shape of the node's result: constants of one element may have more axes than
// the variables of the table.
ValueId in_shape(const RuleContext& ctx, ValueId made) {
  return ctx.build.reshape(made, ctx.node.result_type().shape);
}

// Converts `made`, integers from a table, to the node's result: casts them to bool if the result is bool.
ValueId as_result(const RuleContext& ctx, ValueId made) {
  made = in_shape(ctx, made);
  return ctx.node.result_type().dtype == DType::kBool ? ctx.build.cast(made, DType::kBool) : made;
}

// The integers of x for which a table needs numbers. A table of integers covers all integers of the dtype,
// since it saturates and may be interpolated; a table of unrounded numbers covers only integers that occur.
ValueRange occurring(const RuleContext& ctx, const ScaledInteger& x) {
  const ValueRange all = *integer_limits(ctx.build.type(x.id).dtype);
  const bool makes_numbers =
      ctx.node.result_qparams() == nullptr && has_integer_form(ctx.node.result_type().dtype);
  return makes_numbers ? ValueRange{std::max(x.range.low, all.low), std::min(x.range.high, all.high)} : all;
}

// True if every number of the table is a multiple of the unit, so that none is rounded. This is often true of
// whole numbers.
bool is_multiple(const Constant& table, double unit) {
  const Elements elements(table);
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (std::fmod(elements.as_double(i), unit) != 0) return false;
  return true;
}

// Reads the numbers of a table. Numbers that saturate in the end are bounded first. Throws NoIntegerForm if
// the unit of the numbers is too coarse for the readers.
ScaledInteger numbers_at(const RuleContext& ctx, ValueId position, const Constant& table) {
  const std::optional<QParams> to = ctx.node.eventual_qparams();
  const double most = to ? 2 * largest_number(*to) : std::numeric_limits<double>::infinity();
  ScaledInteger made = gathered_numbers(ctx.build, position, table, most);
  made.id = in_shape(ctx, made.id);
  if (!is_multiple(table, made.scale())) ctx.require_fine_results(made.scale());
  return made;
}

// Reads a table of u8. TOSA has no such tables, so it reads the entries minus 128 from a table of i8.
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
  operands.set(0, ramp(qparams.storage, occurring(ctx, x)), &qparams);
  const ConstantRef f = as_integers(evaluate_stored(ctx.node, operands.constants, operands.qparams));
  if (is_float(f->dtype)) {
    ScaledInteger made = numbers_at(ctx, position_of(ctx.build, x), *f);
    require_fine_counts(ctx, ctx.node.operand(operands.variables.front().front()), x, made.scale());
    return made;
  }
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
  operands.set(0, ramp(DType::kI8, occurring(ctx, a), kBytes), &a_qparams);
  operands.set(1, ramp(DType::kI8, occurring(ctx, b), 1, kBytes), &b_qparams);
  const ConstantRef f = as_integers(evaluate_stored(ctx.node, operands.constants, operands.qparams));
  if (is_float(f->dtype)) return numbers_at(ctx, position_of(ctx.build, a, b), *f);
  return as_result(ctx, gathered(ctx.build, position_of(ctx.build, a, b), *f));
}

// The constant operands of several elements, broadcast to `shape`. A row has one number of each such operand.
// `index` has the row for each element of `shape`.
struct ConstantRows {
  std::vector<std::size_t> operands;
  std::vector<std::vector<double>> rows;  // numbers of `operands`, all different
  Shape shape;
  std::vector<std::int64_t> index;
};

// The number at each place of `shape`, to which a constant of the shape `from` broadcasts.
std::vector<double> broadcast_numbers(const std::vector<double>& numbers, const Shape& from,
                                      const Shape& shape) {
  const auto count = static_cast<std::size_t>(num_elements(shape));
  std::vector<double> out(count);
  for (std::size_t at = 0; at < count; ++at) {
    std::size_t rest = at, stride = 1, place = 0;
    for (std::size_t k = 0; k < from.size(); ++k) {
      const auto extent = static_cast<std::size_t>(shape[shape.size() - 1 - k]);
      const auto own = static_cast<std::size_t>(from[from.size() - 1 - k]);
      if (own != 1) place += rest % extent * stride;
      rest /= extent;
      stride *= own;
    }
    out[at] = numbers[place];
  }
  return out;
}

// Returns nothing if no operand is such a constant, or if one has no data.
std::optional<ConstantRows> constant_rows(const RuleContext& ctx) {
  ConstantRows out;
  for (std::size_t i = 0; i < ctx.node.operand_count(); ++i) {
    if (!ctx.node.has(i) || !ctx.node.is_constant(i) || num_elements(ctx.node.operand_type(i).shape) < 2)
      continue;
    if (!ctx.node.graph().value(ctx.node.operand(i)).constant->storage.bound()) return std::nullopt;
    out.operands.push_back(i);
    out.shape = broadcast(out.shape, ctx.node.operand_type(i).shape);
  }
  if (out.operands.empty()) return std::nullopt;
  std::vector<std::vector<double>> columns;
  for (const std::size_t i : out.operands)
    columns.push_back(broadcast_numbers(ctx.numbers(i), ctx.node.operand_type(i).shape, out.shape));
  std::map<std::vector<double>, std::int64_t> known;
  for (std::size_t at = 0; at < columns.front().size(); ++at) {
    std::vector<double> row;
    for (const std::vector<double>& column : columns) row.push_back(column[at]);
    if (std::ranges::any_of(row, [](double number) { return std::isnan(number); })) return std::nullopt;
    const auto [found, is_new] = known.emplace(row, static_cast<std::int64_t>(out.rows.size()));
    if (is_new) out.rows.push_back(std::move(row));
    out.index.push_back(found->second);
  }
  return out;
}

// ---- functions of functions ----

// The constant, if it has one element; otherwise null. A constant with axes gets the shape {1}, as tables
// have it. A Python number stays without axes, so that it does not decide the dtype of the result.
ConstantRef single_element(const Constant& from) {
  if (num_elements(from.shape) != 1 || !from.storage.bound()) return nullptr;
  auto one = std::make_shared<Constant>(from);
  if (one->shape.size() > 1) one->shape = {1};
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

// ---- functions of an operand and of constants of several elements ----

// The variable of i8 or i16 of which operand i is a function: the operand itself, or the only variable of its
// FunctionTable.
struct RowVariable {
  ScaledInteger x;
  ConstantRef values;  // the operand for each integer of x
};

std::optional<RowVariable> row_variable(const RuleContext& ctx, std::size_t i) {
  if (std::optional<ScaledInteger> x = number_of_few_bits(ctx, i)) {
    FunctionTable own = as_table(*x, ctx.build.type(x->id).dtype, ctx.node.number_dtype(i));
    return RowVariable{*std::move(x), own.values};
  }
  const FunctionTable* const table = table_of(ctx, i);
  if (table == nullptr || table->variables.size() != 1) return std::nullopt;
  return RowVariable{table->variables.front(), table->values};
}

// The elements of `f` for the integers of x, repeated `rows` times. An integer that does not occur gets the
// element of the nearest integer that does.
ConstantRef repeated(const ConstantRef& f, const ValueRange& occurring, std::int64_t least,
                     std::int64_t rows) {
  const Elements elements(*f);
  std::vector<double> out;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t k = 0; k < static_cast<std::int64_t>(elements.size()); ++k) {
      const std::int64_t q = std::clamp(least + k, occurring.low, occurring.high);
      out.push_back(elements.as_double(static_cast<std::size_t>(q - least)));
    }
  const auto count = static_cast<std::int64_t>(out.size());
  return make_constant("", f->dtype, {count}, out);
}

// Linear interpolation of a function of i16 between knots. The knots have kFinerBits more bits than the
// results, and are not clamped where results saturate.
class LinesOfRow {
 public:
  static constexpr int kFinerBits = 4;

  // `f` has the function at each integer from -32768 on, in the unit of the results, not rounded. It is only
  // read at integers from `curved.low` to `curved.high`. If one of the two knots of a line is outside of this
  // range, that knot is placed so that the line goes through the function at the end of the range.
  LinesOfRow(const std::vector<double>& f, const Octaves& octaves, ValueRange curved) : octaves_(octaves) {
    for (const bool is_negative : {false, true}) {
      const std::int64_t sign = is_negative ? -1 : 1;
      const auto at = [&](std::int64_t magnitude) {
        const double number =
            f[static_cast<std::size_t>(std::min<std::int64_t>(65535, 32768 + sign * magnitude))];
        return std::clamp(number, -kFar, kFar);
      };
      const std::int64_t low = std::max<std::int64_t>(0, is_negative ? -curved.high : curved.low);
      const std::int64_t high = std::max<std::int64_t>(0, is_negative ? -curved.low : curved.high);
      for (std::int64_t k = 0; k < octaves.count(); ++k) {
        const std::int64_t m = octaves.magnitude(k);
        double number = at(std::clamp(m, low, high));
        if (m < low && octaves.magnitude(k + 1) > low)
          number = beyond(at, low, std::min(octaves.magnitude(k + 1), high), m);
        else if (m > high && octaves.magnitude(k - 1) < high)
          number = beyond(at, high, std::max(octaves.magnitude(k - 1), low), m);
        knots_[is_negative ? 1 : 0].push_back(
            std::llround(std::ldexp(std::clamp(number, -kFar, kFar), kFinerBits)));
      }
    }
  }

  // The knots of the negative integers, or of the others.
  [[nodiscard]] const std::vector<std::int64_t>& knots(bool is_negative) const {
    return knots_[is_negative ? 1 : 0];
  }

  // The range of the knots.
  [[nodiscard]] static ValueRange range() {
    const auto most = static_cast<std::int64_t>(kFar) << kFinerBits;
    return {-most, most};
  }

  // The result for an integer, as IntegerMath::on_lines() computes it.
  [[nodiscard]] std::int64_t at(std::int64_t q) const {
    const int bits = octaves_.fraction_bits();
    const std::vector<std::int64_t>& knots = knots_[q < 0 ? 1 : 0];
    const std::int64_t position = octaves_.position(std::abs(q));
    const auto k = static_cast<std::size_t>(position >> bits);
    const std::int64_t behind = position & ((std::int64_t{1} << bits) - 1);
    const std::int64_t rise = k + 1 < knots.size() ? knots[k + 1] - knots[k] : 0;
    const std::int64_t finer = knots[k] + ((rise * behind + (std::int64_t{1} << (bits - 1))) >> bits);
    return (finer + (std::int64_t{1} << (kFinerBits - 1))) >> kFinerBits;
  }

 private:
  static constexpr double kFar = 0x1p20;  // units; far beyond the units of 16 bits

  // The value at m of a line through f at `inner` and near f at `end`, the last integer at which f is known.
  // A clamp may begin between `end` and the integer next to it, so the line goes halfway between f(end) and
  // the extension of f without the clamp.
  static double beyond(const auto& f, std::int64_t end, std::int64_t inner, std::int64_t m) {
    const std::int64_t next = inner > end ? end + 1 : end - 1;
    if (inner == end) return f(end);
    const auto line = [&](std::int64_t from, double value, std::int64_t place) {
      return value +
             (f(inner) - value) * static_cast<double>(place - from) / static_cast<double>(inner - from);
    };
    const double unclamped = inner == next ? f(end) : line(next, f(next), end);
    return line(end, (f(end) + unclamped) / 2, m);
  }

  Octaves octaves_;
  std::array<std::vector<std::int64_t>, 2> knots_;
};

// An operator of one variable and constant tensors, such as x ** exponents. Each different row of constants
// has its own function of the integers of the variable.
class FunctionsOfRows {
 public:
  FunctionsOfRows(const RuleContext& ctx, ConstantRows constants, FunctionOperands operands,
                  RowVariable variable)
      : ctx_(ctx),
        constants_(std::move(constants)),
        operands_(std::move(operands)),
        variable_(std::move(variable)),
        dtype_(ctx.build.type(variable_.x.id).dtype) {}

  [[nodiscard]] RuleResult lowered() {
    if (rows() * count_of(dtype_) <= kMostEntries) return by_entries();
    if (std::optional<RuleResult> made = by_lines()) return *std::move(made);
    return Refusal{"its constant has " + std::to_string(rows()) + " different numbers: with " +
                   std::to_string(8 * byte_size(dtype_)) + " bits, tables have room for " +
                   std::to_string(kMostEntries / count_of(dtype_)) +
                   " (with 8 bits, for 4096), and for more where lines between few entries are exact"};
  }

 private:
  static constexpr std::int64_t kMostEntries = std::int64_t{1} << 20;

  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(constants_.rows.size()); }

  // Sets the operands of the operator for `count` rows of the joined table, from row `first` on. For each
  // row, the variable has every integer of its dtype, and the constants have the values of that row.
  void set_rows(std::size_t first, std::size_t count) {
    const auto repeats = static_cast<std::int64_t>(count);
    operands_.set(
        0, repeated(variable_.values, occurring(ctx_, variable_.x), integer_limits(dtype_)->low, repeats),
        nullptr);
    for (std::size_t k = 0; k < constants_.operands.size(); ++k) {
      const std::size_t i = constants_.operands[k];
      std::vector<double> numbers;
      for (std::size_t row = first; row < first + count; ++row)
        numbers.insert(numbers.end(), static_cast<std::size_t>(count_of(dtype_)), constants_.rows[row][k]);
      const TensorType& type = ctx_.node.operand_type(i);
      operands_.constants[i] = make_constant("", type.qparams ? ctx_.node.number_dtype(i) : type.dtype,
                                             {repeats * count_of(dtype_)}, numbers);
    }
  }

  // The results, as integers if the node has qparams.
  ConstantRef stored() const {
    return as_integers(evaluate_stored(ctx_.node, operands_.constants, operands_.qparams));
  }

  // The index at which the table of each element begins, if each table has `stride` entries.
  ValueId starts(std::int64_t stride) {
    std::vector<std::int64_t> out;
    for (const std::int64_t row : constants_.index) out.push_back(row * stride);
    return ctx_.build.constant(DType::kI32, constants_.shape, out);
  }

  RuleResult by_entries() {
    set_rows(0, constants_.rows.size());
    const ConstantRef f = stored();
    const ValueId at =
        ctx_.build.binary(Op::kTosaAdd, position_of(ctx_.build, variable_.x), starts(count_of(dtype_)));
    if (is_float(f->dtype)) return numbers_at(ctx_, at, *f);
    return as_result(ctx_, gathered(ctx_.build, at, *f));
  }

  // Results of up to 16 bits on lines between knots. Returns nothing if a result would be off by more than
  // one unit, as far as TABLE over i16 may be, or if the knots are too many.
  std::optional<RuleResult> by_lines() {
    const std::optional<QParams> to = ctx_.node.eventual_qparams();
    if (dtype_ != DType::kI16 || !to || to->axis || byte_size(to->storage) > 2) return std::nullopt;
    constexpr int kLeastBits = 5, kMostBits = 10;
    const auto has_room = [&](const Octaves& octaves) {
      return 2 * rows() * octaves.count() <= kMostEntries;
    };
    if (!has_room(Octaves(kLeastBits, 15))) return std::nullopt;
    const ValueRange curved = curved_part(*to);
    for (int bits = kLeastBits; bits <= kMostBits; ++bits) {
      const Octaves octaves(bits, 15);
      if (!has_room(octaves)) return std::nullopt;
      if (std::optional<RuleResult> made = by_lines(octaves, *to, curved)) return made;
    }
    return std::nullopt;
  }

  // The results of one row in the unit of `to`, not rounded. NaN becomes the integer for 0, as in a quantize
  // node.
  std::vector<double> unrounded(const QParams& to) const {
    const ConstantRef floats = evaluate_unrounded(ctx_.node, operands_.constants, operands_.qparams);
    const Elements elements(*floats);
    std::vector<double> out(elements.size());
    for (std::size_t k = 0; k < out.size(); ++k) {
      const double number = elements.as_double(k) / to.scales.front();
      out[k] = (std::isnan(number) ? 0 : number) + static_cast<double>(to.zero_points.front());
    }
    return out;
  }

  // The integers of the variable that occur.
  [[nodiscard]] ValueRange occurring_integers() const {
    const ValueRange all = *integer_limits(dtype_);
    return {std::max(variable_.x.range.low, all.low), std::min(variable_.x.range.high, all.high)};
  }

  // The integers of the variable without the ends at which all rows are constant, as after a clamp in front
  // of the operator. A line between two knots cannot follow the corner at which a constant end begins.
  ValueRange curved_part(const QParams& to) {
    const ValueRange all = *integer_limits(dtype_), occurs = occurring_integers();
    ValueRange curved{occurs.high, occurs.low};
    for (std::size_t row = 0; row < constants_.rows.size(); ++row) {
      set_rows(row, 1);
      const std::vector<double> f = unrounded(to);
      const auto at = [&](std::int64_t q) { return f[static_cast<std::size_t>(q - all.low)]; };
      std::int64_t low = occurs.low, high = occurs.high;
      while (low < curved.low && at(low + 1) == at(occurs.low)) ++low;
      while (high > curved.high && at(high - 1) == at(occurs.high)) --high;
      curved = {std::min(low, curved.low), std::max(high, curved.high)};
    }
    return curved.low < curved.high ? curved : occurs;
  }

  std::optional<RuleResult> by_lines(const Octaves& octaves, const QParams& to, ValueRange curved) {
    const ValueRange all = *integer_limits(dtype_), limits{to.qmin, to.qmax}, occurs = occurring_integers();
    std::vector<std::int64_t> knots;
    for (std::size_t row = 0; row < constants_.rows.size(); ++row) {
      set_rows(row, 1);
      const std::vector<double> numbers = unrounded(to);
      const LinesOfRow lines(numbers, octaves, curved);
      for (std::int64_t q = occurs.low; q <= occurs.high; ++q) {
        const std::int64_t asked = std::clamp(q, curved.low, curved.high);
        const std::int64_t made = std::clamp(lines.at(asked), limits.low, limits.high);
        const double exact = std::nearbyint(numbers[static_cast<std::size_t>(q - all.low)]);
        const auto stored =
            std::clamp(exact, static_cast<double>(limits.low), static_cast<double>(limits.high));
        if (std::fabs(static_cast<double>(made) - stored) > 1) return std::nullopt;
      }
      for (const bool is_negative : {false, true})
        knots.insert(knots.end(), lines.knots(is_negative).begin(), lines.knots(is_negative).end());
    }
    IntegerMath math(ctx_.build);
    const int fraction = octaves.fraction_bits();
    const ValueId x = ctx_.build.bounded(in_32_bits(ctx_.build, variable_.x.id), variable_.x.range, curved);
    const ValueId within = octaves.signed_position(ctx_.build, x);
    const ValueId at = math.add(within, starts(2 * octaves.count() << fraction));
    const ValueId finer = math.on_lines(at, fraction, knots);
    if (ctx_.node.result_qparams() == nullptr) {
      const double unit = std::ldexp(to.scales.front(), -LinesOfRow::kFinerBits);
      const std::int64_t zero = to.zero_points.front() << LinesOfRow::kFinerBits;
      return ScaledInteger{in_shape(ctx_, finer), {unit}, zero, LinesOfRow::range()};
    }
    const ValueId rounded = math.right(finer, LinesOfRow::kFinerBits, true);
    const ValueId made = ctx_.build.bounded(rounded, *integer_limits(DType::kI32), limits);
    return as_result(ctx_, ctx_.build.cast(made, to.storage));
  }

  const RuleContext& ctx_;
  ConstantRows constants_;
  FunctionOperands operands_;
  RowVariable variable_;
  DType dtype_;
};

std::optional<RuleResult> by_rows(const RuleContext& ctx) {
  std::optional<ConstantRows> constants = constant_rows(ctx);
  if (!constants) return std::nullopt;
  std::optional<FunctionOperands> operands = function_operands(ctx, constants->operands);
  if (!operands || operands->variables.size() != 1) return std::nullopt;
  std::optional<RowVariable> variable = row_variable(ctx, operands->variables.front().front());
  if (!variable) return std::nullopt;
  return FunctionsOfRows(ctx, *std::move(constants), *std::move(operands), *std::move(variable)).lowered();
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

bool is_finite(const Constant& table) {
  const Elements elements(table);
  for (std::size_t i = 0; i < elements.size(); ++i)
    if (!std::isfinite(elements.as_double(i))) return false;
  return true;
}

// The numbers of a table of x. Integers at one end of the range of x may have NaN, as negative ones do for a
// logarithm: they get the nearest number, and a mask.
std::optional<ScaledInteger> numbers_of_one(const RuleContext& ctx, const ScaledInteger& x,
                                            const ConstantRef& values) {
  const std::int64_t least = integer_limits(ctx.build.type(x.id).dtype)->low;
  const Elements elements(*values);
  const auto is_nan = [&](std::int64_t q) {
    return std::isnan(elements.as_double(static_cast<std::size_t>(q - least)));
  };
  ValueRange numbers = x.range;
  while (numbers.low < numbers.high && is_nan(numbers.low)) ++numbers.low;
  while (numbers.low < numbers.high && is_nan(numbers.high)) --numbers.high;
  const ConstantRef table = repeated(values, numbers, least, 1);
  if (!is_finite(*table)) return std::nullopt;
  ScaledInteger made = numbers_at(ctx, position_of(ctx.build, x), *table);
  if (numbers == x.range) return made;
  const ValueId id = in_32_bits(ctx.build, x.id);
  const auto bound = [&](std::int64_t q) { return ctx.build.number(q, ctx.build.type(id).rank()); };
  if (numbers.low > x.range.low) made.nan_mask = ctx.build.binary(Op::kTosaGreater, bound(numbers.low), id);
  if (numbers.high < x.range.high)
    made.nan_mask =
        ctx.build.either(made.nan_mask, ctx.build.binary(Op::kTosaGreater, id, bound(numbers.high)));
  made.nan_mask = in_shape(ctx, *made.nan_mask);
  return made;
}

// True for integers without qparams from which an operator other than a cast computes a float.
bool is_count(const RuleContext& ctx, std::size_t i) {
  const TensorType &from = ctx.node.operand_type(i), &to = ctx.node.result_type();
  return is_integer(from.dtype) && !from.qparams && (is_float(to.dtype) || to.qparams) &&
         ctx.node.op() != Op::kCast;
}

}  // namespace

void FunctionOperands::set(std::size_t variable, const ConstantRef& values, const QParams* of_values) {
  for (const std::size_t i : variables[variable]) {
    constants[i] = values;
    qparams[i] = of_values;
  }
}

std::optional<FunctionOperands> function_operands(const RuleContext& ctx,
                                                  const std::vector<std::size_t>& without) {
  FunctionOperands out;
  for (std::size_t i = 0; i < ctx.node.operand_count(); ++i) {
    out.constants.emplace_back();
    out.qparams.push_back(nullptr);
    if (!ctx.node.has(i) || std::ranges::find(without, i) != without.end()) continue;
    const ValueId id = ctx.node.operand(i);
    if (ctx.node.is_constant(i)) {
      const Value& value = ctx.node.graph().value(id);
      const QParams* qparams = value.type.qparams.get();
      if (qparams && qparams->axis) return std::nullopt;
      out.constants.back() = single_element(*value.constant);
      if (!out.constants.back()) return std::nullopt;
      out.qparams.back() = qparams;
      continue;
    }
    if (!ctx.is_scaled(i) && !is_count(ctx, i)) return std::nullopt;
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

namespace {

// True if entry `at` of a table is for integers that the variables may have.
bool occurs(const std::vector<ScaledInteger>& variables, DType dtype, std::int64_t at) {
  const ValueRange all = *integer_limits(dtype);
  const std::int64_t count = all.high - all.low + 1;
  for (std::size_t k = variables.size(); k-- > 0; at /= count)
    if (!variables[k].range.contains(all.low + at % count)) return false;
  return true;
}

// True if an operator reads only the order of a value's numbers, directly or after movement.
bool is_read_in_order(const Graph& graph, ValueId id) {
  return std::ranges::any_of(graph.users(id), [&](NodeId reader) {
    const Node& node = graph.node(reader);
    if (reads_order(node.op)) return true;
    return rearranges(node) && node.result_count == 1 && is_read_in_order(graph, graph.result(node));
  });
}

// True if the unit of 24 bits rounds most numbers that occur to one integer, since one number is far larger.
// A sort or an argmax would lose the order of such numbers. If such an operator reads the result, this is
// true as soon as a sixteenth of the numbers is lost.
bool merges_numbers(const RuleContext& ctx, const Elements& elements,
                    const std::vector<ScaledInteger>& variables, DType dtype) {
  constexpr std::ptrdiff_t kFew = 16;
  const bool is_ordered = is_read_in_order(ctx.node.graph(), ctx.node.result());
  std::vector<double> numbers;
  double largest = 0;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const double number = elements.as_double(i);
    largest = std::isfinite(number) ? std::max(largest, std::abs(number)) : largest;
    if (occurs(variables, dtype, static_cast<std::int64_t>(i)))
      numbers.push_back(std::isfinite(number) ? number : 0);
  }
  const auto count = [&] {
    std::ranges::sort(numbers);
    return std::unique(numbers.begin(), numbers.end()) - numbers.begin();
  };
  const auto before = count();
  for (double& x : numbers) x = std::nearbyint(std::ldexp(x / largest, 24));
  const auto after = count();
  return largest > 0 && (2 * after < before || (is_ordered && kFew * (before - after) > before));
}

}  // namespace

std::optional<ScaledInteger> numbers_of(const RuleContext& ctx, const FunctionTable& table) {
  const std::vector<ScaledInteger>& x = table.variables;
  const DType integers = ctx.build.type(x.front().id).dtype;
  if (!is_float(table.values->dtype) || merges_numbers(ctx, Elements(*table.values), x, integers))
    return std::nullopt;
  if (x.size() == 1) return numbers_of_one(ctx, x.front(), table.values);
  if (!is_finite(*table.values)) return std::nullopt;
  return numbers_at(ctx, position_of(ctx.build, x[0], x[1]), *table.values);
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
  if (!operands && rule_of(ctx.node.node()) == nullptr) return by_rows(ctx);
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
