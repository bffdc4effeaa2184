// Functions of quantized values, read from the float kernels that the q/dq graph would run: exact.
//
//   one operand of 8 bits    TABLE of 256 entries; nothing where it is the identity, CLAMP where it bounds
//   one operand of 16 bits   TABLE of 513 entries where interpolation is within one unit, else GATHER from
//   65536 two operands of 8 bits   GATHER from 65536 entries at 256 * a + b
//
// Further operands are constants of one element. Within an expansion the result is no quantized value: it is
// tabulated with 24 bits.

#include <algorithm>
#include <cmath>
#include <functional>

#include "tosaic/passes/integer_math.h"

namespace tosaic::passes {
namespace {

constexpr std::int64_t kSmall = 256;
constexpr int kFractionBits = 7;  // of TABLE over 16 bits

// All values of a dtype of 8 or 16 bits in order; `repeat`: each so often; `times`: the whole so often.
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

// Integers of 8 or 16 bits as positions from 0 on, times a factor.
ValueId positions(IntegerLowering& l, ValueId x, std::int64_t factor = 1) {
  const ValueRange all = *integer_limits(l.type(x).dtype);
  if (l.type(x).dtype == DType::kI8) {  // the zero point makes room
    const Real shifted{x, {static_cast<double>(factor)}, all.low, all};
    return l.rescaled(shifted, DType::kI32, 1.0).id;
  }
  return l.binary(Op::kTosaAdd, l.cast(x, DType::kI32), l.number(-all.low, l.type(x).rank()));
}

// ---- one operand ----

using Entry = std::function<std::int64_t(std::int64_t)>;  // by integer

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

// TABLE over 16 bits interpolates: (entry[k] * (128 - r) + entry[k + 1] * r), 7 bits finer than the entries.
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

// 513 entries, the last beyond the range: on the line through the two before it.
std::vector<std::int64_t> knots(const std::vector<std::int64_t>& f) {
  std::vector<std::int64_t> out;
  for (std::int64_t k = 0; k < 512; ++k) out.push_back(f[static_cast<std::size_t>(k << kFractionBits)]);
  out.push_back(f.back());
  return out;
}

// The largest distance, in units of the result, between TABLE and the function where it is read.
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
  std::vector<std::int64_t> knots;  // every value stands twice: 256 * q is on a knot
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

// Truth values are tabulated as 0 and 1.
ConstantRef as_integers(const ConstantRef& f) {
  if (f->dtype != DType::kBool) return f;
  auto out = std::make_shared<Constant>(*f);
  out->dtype = DType::kI8;
  return out;
}

// f32 entries as i32 in units of a power of two.
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

Lowered of_one(IntegerLowering& l, FunctionOperands operands) {
  const Real x = l.real(operands.variables.front().front());
  const QParams label = l.parameters(x);
  operands.set(0, ramp(label.storage), &label);
  const ConstantRef f = as_integers(l.evaluate(operands.constants, operands.labels, l.target()).front());
  if (is_float(f->dtype)) return finely_gathered(l, positions(l, x.id), *f);
  if (l.node().op == Op::kCast && l.target() == nullptr && f->dtype != DType::kI8)
    return gathered(l, positions(l, x.id), *f);
  const ValueId made = label.storage == DType::kI8 ? small_function(l, x, *f) : large_function(l, x, *f);
  return l.result_type().dtype == DType::kBool ? l.cast(made, DType::kBool) : made;
}

// ---- two operands ----

Lowered of_two(IntegerLowering& l, FunctionOperands operands) {
  const Real a = l.real(operands.variables[0].front()), b = l.real(operands.variables[1].front());
  const QParams a_label = l.parameters(a), b_label = l.parameters(b);
  operands.set(0, ramp(DType::kI8, kSmall), &a_label);
  operands.set(1, ramp(DType::kI8, 1, kSmall), &b_label);
  const ConstantRef f = as_integers(l.evaluate(operands.constants, operands.labels, l.target()).front());
  const ValueId index = l.binary(Op::kTosaAdd, positions(l, a.id, kSmall), positions(l, b.id));
  if (is_float(f->dtype)) return finely_gathered(l, index, *f);
  const ValueId made = gathered(l, index, *f);
  return l.result_type().dtype == DType::kBool ? l.cast(made, DType::kBool) : made;
}

// Integer arithmetic is as good, and shorter.
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

std::optional<Lowered> tabulated(IntegerLowering& l) {
  if (!info(l.node().op).has(kElementwise) || info(l.node().op).is_tosa) return std::nullopt;
  const DType result = l.result_type().dtype;
  const bool casts = l.node().op == Op::kCast && is_integer(result);
  if (l.target() == nullptr && result != DType::kF32 && result != DType::kBool && !casts) return std::nullopt;
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
